// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carma/gres"
)

// kept is what a user keeps of a daemon.
type kept struct {
	silent, control, directory, log, lock int
	idle                                  io.WriteCloser // commands to one of NVIDIA's programs, which has had an answer
	daemon                                os.FileInfo
}

func keepAll(t *testing.T, c tried) kept {
	t.Helper()
	dir := PipeDir(c.RunDir, "GPU-1")
	open := func(name string, flags int) int {
		t.Helper()
		fd, err := unix.Open(filepath.Join(dir, name), flags|unix.O_CLOEXEC, 0)
		must(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	k := kept{control: open("control", unix.O_PATH), directory: open("", unix.O_PATH),
		log: open("log", unix.O_WRONLY|unix.O_NONBLOCK), lock: open("control_lock", unix.O_RDWR)}
	cmd := exec.CommandContext(t.Context(), c.Program)
	cmd.Env, cmd.Dir = c.env("GPU-1"), "/"
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	fmt.Fprintln(in, "get_default_active_thread_percentage")
	for asked := false; !asked; time.Sleep(time.Millisecond) { // what it prints comes when it ends
		text, err := os.ReadFile(filepath.Join(c.logDir("GPU-1"), "control.log"))
		must(t, err)
		asked = bytes.Contains(text, []byte("Cmd:get_default_active_thread_percentage"))
	}
	t.Cleanup(func() { in.Close(); io.Copy(io.Discard, out); cmd.Wait() })
	k.idle = in
	k.silent, err = connect(filepath.Join(dir, "control"))
	must(t, err)
	t.Cleanup(func() { unix.Close(k.silent) })
	k.daemon, err = os.Stat(dir)
	must(t, err)
	return k
}

func connect(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Nothing that a user keeps of a daemon reaches that of the next user: not a connection that says
// nothing, nor O_PATH descriptors, nor a connection that has had an answer, nor the FIFO of the
// servers' log, nor the lock.
func TestMPSNextUserContract(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for other users")
	}
	each(t, func(t *testing.T, c tried) {
		must(t, c.keep(t, otherUID))
		k := keepAll(t, c)
		pid := c.pid()
		must(t, unix.Kill(pid, unix.SIGSTOP)) // nor a daemon that hangs
		must(t, c.keep(t, userUID))
		dir := PipeDir(c.RunDir, "GPU-1")
		if now, err := os.Stat(dir); err != nil || os.SameFile(now, k.daemon) || c.pid() == pid || uidOf(pid) >= 0 {
			t.Errorf("the next user has the same directory or daemon: %v", err)
		}
		answers := func(after string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := c.do(ctx, "GPU-1", "get_server_list"); err != nil {
				t.Errorf("%s: %v", after, err)
			}
		}
		answers("a silent connection")
		for _, path := range []string{fmt.Sprintf("/proc/self/fd/%d", k.control),
			fmt.Sprintf("/proc/self/fd/%d/control", k.directory)} {
			if _, err := connect(path); err == nil {
				t.Errorf("%s is connected", path)
			}
		}
		fmt.Fprintln(k.idle, strings.Repeat("x", 5000))
		answers("a long command to the daemon before")
		if _, err := unix.Write(k.log, []byte(faultLog)); !errors.Is(err, unix.EPIPE) {
			t.Errorf("the log of before: %v", err)
		}
		if fault, _, err := c.ServerFault("GPU-1", 0); fault || err != nil {
			t.Errorf("a fault of before: %v, %v", fault, err)
		}
		lock := unix.Flock_t{Type: unix.F_WRLCK}
		must(t, unix.FcntlFlock(uintptr(k.lock), unix.F_SETLK, &lock))
		if c.pid() == 0 {
			t.Error("the daemon is lost")
		}
	})
}

// What a user writes into the log of a tenure is not read as that of the next.
func TestFaultOfTheTenureBefore(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for other users")
	}
	each(t, func(t *testing.T, c tried) {
		if c.real {
			t.Skip("NVIDIA's daemon keeps short texts back")
		}
		must(t, c.keep(t, otherUID))
		_, from, err := c.ServerFault("GPU-1", 0)
		must(t, err)
		log, err := os.OpenFile(filepath.Join(PipeDir(c.RunDir, "GPU-1"), "log"), os.O_WRONLY, 0)
		must(t, err)
		defer log.Close()
		_, err = log.WriteString(faultLog)
		must(t, err)
		var fault bool
		var to int64
		for until := time.Now().Add(time.Minute); !fault && time.Now().Before(until); time.Sleep(time.Millisecond) {
			fault, to, err = c.ServerFault("GPU-1", from)
			must(t, err)
		}
		if !fault || to == from {
			t.Fatalf("%v, to %d from %d", fault, to, from)
		}
		must(t, c.keep(t, userUID))
		next := filepath.Join(c.logDir("GPU-1"), "server.log")
		for _, position := range []int64{0, from, to} {
			if fault, _, err := c.ServerFault("GPU-1", position); fault || err != nil {
				t.Errorf("from %d: %v, %v", position, fault, err)
			}
		}
		// Nor is anything of the next one's passed over.
		must(t, os.WriteFile(next, []byte(faultLog+strings.Repeat("x\n", 1000)), 0o600))
		if fault, _, err := c.ServerFault("GPU-1", to); !fault || err != nil {
			t.Errorf("of this tenure: %v, %v", fault, err)
		}
		old, err := os.ReadFile(next + ".old")
		if err != nil || !strings.Contains(string(old), faultLog) {
			t.Errorf("what an admin looks for: %q, %v", old, err)
		}
	})
}

// A server that its user has stopped ends with the tenure, also if its daemon has ended before it.
func TestStoppedServerEnds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for other users")
	}
	for _, killed := range []bool{false, true} {
		each(t, func(t *testing.T, c tried) {
			if c.real {
				t.Skip("NVIDIA's daemon starts no server without a GPU")
			}
			must(t, c.keep(t, gres.Nobody))
			must(t, c.Admit(t.Context(), "GPU-1", otherUID))
			servers, err := c.servers(t.Context(), "GPU-1")
			if err != nil || len(servers) != 1 {
				t.Fatalf("servers %v, %v", servers, err)
			}
			must(t, unix.Kill(servers[0], unix.SIGSTOP))
			if uid, gid := idsOf(servers[0]); uid != otherUID || gid != 0 {
				t.Errorf("the server has the ids %d and %d", uid, gid)
			}
			if killed {
				must(t, c.Kill(t.Context(), "GPU-1"))
			}
			if now := processOf(servers[0]); now.PID == 0 {
				t.Fatal("the stopped server has ended by itself")
			}
			must(t, c.keep(t, userUID))
			if now := processOf(servers[0]); now.PID != 0 {
				t.Errorf("server %d runs on", servers[0])
			}
			must(t, c.Admit(t.Context(), "GPU-1", userUID))
		})
	}
}

// A process that a note does not mean is not ended: it has the number of one that has ended.
func TestKillsNoOtherProcess(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sleep", "100")
	must(t, cmd.Start())
	defer cmd.Wait()
	p := processOf(cmd.Process.Pid)
	must(t, process{p.PID, p.Start + 1}.kill(t.Context()))
	if !p.runs() {
		t.Fatal("another process was ended")
	}
	must(t, cmd.Process.Signal(syscall.SIGSTOP))
	must(t, p.kill(t.Context()))
	if p.runs() {
		t.Error("it runs on")
	}
}

// The user of a daemon cannot have another process taken for it.
func TestStrangersLockIsNoDaemon(t *testing.T) {
	run, err := os.MkdirTemp("/tmp", "mps")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(run) })
	dir := filepath.Join(run, "mps", "GPU-1")
	path := filepath.Join(dir, "control_lock")
	must(t, errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(run, 0o755)))
	must(t, errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(path, 0o666)))
	stranger(t, path)
	if p := founder(dir); p.PID != 0 {
		t.Errorf("process %d is taken for a daemon: %s", p.PID, exeOf(p.PID))
	}
}

// A job waits for its daemon as long as that of the user before is ending.
func TestAdmitWaitsForTheEndOfATenure(t *testing.T) {
	c := Control{RunDir: t.TempDir()}
	must(t, os.MkdirAll(filepath.Join(endedDir(c.RunDir), "GPU-1.7"), 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), noneFor*lookEvery+200*time.Millisecond)
	defer cancel()
	if err := c.Admit(ctx, "GPU-1", userUID); !errors.Is(err, ErrNotGiven) || ctx.Err() == nil {
		t.Errorf("it gave up: %v", err)
	}
}

// However long another user's tenure was awaited, the moment between two directories ends no wait.
func TestAdmitWaitsBetweenTwoTenures(t *testing.T) {
	c := Control{RunDir: t.TempDir()}
	dir := PipeDir(c.RunDir, "GPU-1")
	must(t, os.MkdirAll(dir, 0o700))
	must(t, tenure{User: otherUID}.write(dir))
	ctx, cancel := context.WithTimeout(t.Context(), noneFor*lookEvery+400*time.Millisecond)
	defer cancel()
	gone := time.AfterFunc(noneFor*lookEvery+200*time.Millisecond, func() { os.RemoveAll(dir) })
	defer gone.Stop()
	if err := c.Admit(ctx, "GPU-1", userUID); !errors.Is(err, ErrNotGiven) || ctx.Err() == nil {
		t.Errorf("it gave up: %v", err)
	}
}

// No job is given a daemon that is still being started: it would be closed to the user afterwards.
func TestDaemonIsGivenWhenItHasStarted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for other users")
	}
	each(t, func(t *testing.T, c tried) {
		if c.real {
			t.Skip("NVIDIA's daemon starts no server without a GPU")
		}
		asked, goOn := filepath.Join(c.RunDir, "asked"), filepath.Join(c.RunDir, "go")
		program := filepath.Join(c.RunDir, "slow")
		must(t, os.WriteFile(program, fmt.Appendf(nil, `#!/bin/bash
[ $# = 0 ] || exec %[1]s "$@"
text=$(cat)
if [ "$text" = "get_server_status 0" ] && [ ! -e %[3]s ]; then
	touch %[2]s
	until [ -e %[3]s ]; do sleep 0.01; done
fi
echo "$text" | exec %[1]s
`, c.Program, asked, goOn), 0o755))
		slow := c
		slow.Program = program
		kept := make(chan error, 1)
		go func() { kept <- slow.keep(t, gres.Nobody) }()
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
			if _, err := os.Stat(asked); err == nil {
				break
			}
		}
		given, why := c.tryGive(t.Context(), "GPU-1", userUID)
		must(t, os.WriteFile(goOn, nil, 0o600))
		must(t, <-kept)
		if given {
			t.Error("it was given while it was being started")
		} else if why == nil {
			t.Error("no reason is told")
		}
		must(t, c.Admit(t.Context(), "GPU-1", userUID))
		if !reaches(t, c.Control, "GPU-1", userUID) {
			t.Error("its user cannot reach it")
		}
	})
}

// groups notes the names of cgroups and makes none.
type groups struct{ killed []string }

func (g *groups) Put(name string, _ int) (string, error) { return "/" + name, nil }
func (g *groups) Kill(_ context.Context, dir string) error {
	g.killed = append(g.killed, dir)
	return nil
}

// A daemon and its servers end by their cgroup, and without one also where an agent before had cgroups.
func TestTenureWithACgroupEnds(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for other users")
	}
	for _, has := range []bool{true, false} {
		each(t, func(t *testing.T, c tried) {
			if c.real {
				t.Skip("NVIDIA's daemon starts no server without a GPU")
			}
			g := &groups{}
			c.Groups = g
			must(t, c.keep(t, gres.Nobody))
			must(t, c.Admit(t.Context(), "GPU-1", otherUID))
			servers, err := c.servers(t.Context(), "GPU-1")
			if err != nil || len(servers) != 1 {
				t.Fatalf("servers %v, %v", servers, err)
			}
			if !has {
				c.Groups = nil
			}
			must(t, c.End(t.Context(), "GPU-1", unused))
			if has != (len(g.killed) == 1) || has && !strings.HasPrefix(filepath.Base(g.killed[0]),
				filepath.Base(c.RunDir)+".GPU-1.") {
				t.Errorf("cgroups killed: %v", g.killed)
			}
			if !has && processOf(servers[0]).PID != 0 {
				t.Errorf("server %d runs on", servers[0])
			}
		})
	}
}

// What a set of GPUs leaves when its end does not succeed is ended at a later look.
func TestEndedSetIsCleared(t *testing.T) {
	each(t, func(t *testing.T, c tried) {
		const set gres.Daemon = "GPU-1,GPU-2"
		must(t, os.MkdirAll(endedDir(c.RunDir), 0o700))
		must(t, c.Keep(t.Context(), set, func(int64) (int64, error) { return gres.Nobody, nil }))
		dir := PipeDir(c.RunDir, set)
		note, _ := readTenure(dir)
		must(t, retire(c.RunDir, set)) // and the agent is killed
		if sets, err := c.Sets(); len(sets) != 0 || err != nil || !note.runs() {
			t.Fatalf("sets %v, %v", sets, err)
		}
		must(t, c.ClearEnded(t.Context()))
		if left, err := os.ReadDir(endedDir(c.RunDir)); len(left) != 0 || err != nil || note.runs() {
			t.Errorf("left: %v, %v; its daemon runs: %v", left, err, note.runs())
		}
	})
}

// stuck is the cgroup of a server in a hanging driver.
type stuck struct{ entered chan struct{} }

func (g stuck) Put(name string, _ int) (string, error) { return "/" + name, nil }
func (g stuck) Kill(ctx context.Context, dir string) error {
	if dir != "/stuck" {
		return nil
	}
	close(g.entered)
	<-ctx.Done()
	return errors.New("processes do not end")
}

// ClearEnded may wait for an ended tenure, while Keep clears the next ended tenure and starts a daemon for another user
// at the same path.
func TestClearEndedLeavesTheNextTenure(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for other users")
	}
	each(t, func(t *testing.T, c tried) {
		if c.real {
			t.Skip("NVIDIA's daemon starts no server without a GPU")
		}
		g := stuck{make(chan struct{})}
		c.Groups = g
		must(t, c.keep(t, gres.Nobody))
		must(t, c.Admit(t.Context(), "GPU-1", otherUID))
		dir := filepath.Join(endedDir(c.RunDir), "GPU-0.1")
		must(t, os.MkdirAll(dir, 0o700))
		must(t, tenure{process: process{PID: 1 << 29, Start: 1}, Group: "/stuck"}.write(dir))
		must(t, retire(c.RunDir, "GPU-1"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- c.ClearEnded(ctx) }()
		<-g.entered
		must(t, c.keep(t, userUID))
		must(t, c.Admit(t.Context(), "GPU-1", userUID))
		servers, err := c.servers(t.Context(), "GPU-1")
		if err != nil || len(servers) != 1 {
			t.Fatalf("servers %v, %v", servers, err)
		}
		server := processOf(servers[0])
		cancel()
		if err := <-done; err == nil {
			t.Error("no word of the server that does not end")
		}
		time.Sleep(200 * time.Millisecond) // a killed process takes a moment to end
		if !server.runs() {
			t.Error("the next user's server was ended")
		}
	})
}

// full is a cgroup file system, full for a while.
type full struct{ fails bool }

func (g *full) Put(name string, _ int) (string, error) {
	if g.fails {
		return "", errors.New("no cgroup")
	}
	return "/" + name, nil
}
func (g *full) Kill(context.Context, string) error { return nil }

// A daemon without a note does not stay.
func TestFailedStartLeavesNoDaemon(t *testing.T) {
	each(t, func(t *testing.T, c tried) {
		g := &full{}
		c.Groups = g
		must(t, c.keep(t, otherUID))
		must(t, c.Kill(t.Context(), "GPU-1"))
		g.fails = true
		if err := c.keep(t, otherUID); err == nil {
			t.Error("no word of the cgroup")
		}
		if p := founder(PipeDir(c.RunDir, "GPU-1")); p.PID != 0 {
			t.Errorf("daemon %d runs, and nobody has noted it", p.PID)
			must(t, p.kill(t.Context()))
		}
		g.fails = false
		must(t, c.keep(t, otherUID))
	})
}
