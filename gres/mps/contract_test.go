// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carma/gres"
)

// standIn is where simgpu is built, for these tests.
var standIn string

func TestMain(m *testing.M) {
	if path := os.Getenv("MPS_HOLD"); path != "" {
		os.Exit(hold(path))
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("/tmp", "mps")
		if err == nil {
			err = os.Chmod(dir, 0o755)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		standIn = dir
		out, err := exec.Command("make", "-C", "../../contrib/simgpu", "BIN="+dir, "LIB="+dir,
			"BUILD="+filepath.Join(dir, "build"),
			filepath.Join(dir, "simgpu"), filepath.Join(dir, "nvidia-cuda-mps-control")).CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "make: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// hold is a stranger's process that has a daemon's lock, or its attention, until its stdin ends.
func hold(path string) int {
	err := error(nil)
	if filepath.Base(path) == "control" {
		var fd int
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0); err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
	} else {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
		}
	}
	fmt.Println(err)
	bufio.NewReader(os.Stdin).ReadString('\n')
	return 0
}

// stranger starts hold as another user, if this one is root.
func stranger(t *testing.T, path string) {
	t.Helper()
	self := filepath.Join(filepath.Dir(filepath.Dir(filepath.Dir(path))), "self")
	text, err := os.ReadFile(os.Args[0]) // go test keeps its own for its user
	if err == nil {
		err = os.WriteFile(self, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), "MPS_HOLD="+path)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = as(otherUID)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "<nil>\n" {
		t.Fatalf("the stranger says %q, %v", line, err)
	}
}

const (
	userUID  = 64321 // who needs no name
	otherUID = 64322
)

func as(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

// reaches tells whether a user can talk to a daemon.
func reaches(t *testing.T, c Control, d gres.Daemon, uid uint32) bool {
	t.Helper()
	dir := PipeDir(c.RunDir, d)
	cmd := exec.CommandContext(t.Context(), "test", "-w", dir+"/control", "-a", "-w", dir+"/log")
	cmd.SysProcAttr = as(uid)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return err == nil
}

// tried is a daemon that the tests are run on: the stand-in and, by `make test-mps`,
// those of NVIDIA, whose servers do not start without a GPU.
type tried struct {
	name    string
	version int
	real    bool
	Control
}

func daemons(t *testing.T) []tried {
	t.Helper()
	var list []tried
	add := func(version int, program string, isReal bool) {
		dir, err := os.MkdirTemp("/tmp", "mps") // short: UNIX sockets lie below it
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		c := tried{fmt.Sprintf("%d real=%v", version, isReal), version, isReal,
			Control{Program: program, RunDir: dir, LogDir: filepath.Join(dir, "log")}}
		t.Cleanup(func() { c.End(context.Background(), "GPU-1", unused) })
		list = append(list, c)
	}
	for _, version := range []int{535, 550} {
		add(version, filepath.Join(standIn, "nvidia-cuda-mps-control"), false)
		if dir := os.Getenv("MPS_REAL"); dir != "" {
			add(version, filepath.Join(dir, strconv.Itoa(version), "usr/bin/nvidia-cuda-mps-control"), true)
		}
	}
	return list
}

// each runs f on each daemon of 550.
func each(t *testing.T, f func(t *testing.T, c tried)) {
	for _, c := range daemons(t) {
		if c.version >= 550 {
			t.Run(c.name, func(t *testing.T) { simulate(t, c); f(t, c) })
		}
	}
}

func simulate(t *testing.T, c tried) {
	t.Helper()
	state := filepath.Join(c.RunDir, "state")
	create := exec.Command(filepath.Join(standIn, "simgpu"), "create", state, "--model", "h100", "--gpus", "1")
	if out, err := create.CombinedOutput(); err != nil {
		t.Fatalf("simgpu: %v\n%s", err, out)
	}
	t.Setenv("SIMGPU_STATE", state)
	t.Setenv("SIMGPU_MPS_VERSION", strconv.Itoa(c.version))
	t.Setenv("CUDA_VISIBLE_DEVICES", "7")
	t.Setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M")
	if c.real {
		t.Setenv("PATH", "/bin:/usr/bin") // its server is in no directory of these
	}
}

// keep has the daemon run for a user; gres.Nobody: for who has it.
func (c tried) keep(t *testing.T, user int64) error {
	return c.Keep(t.Context(), "GPU-1", func(now int64) (int64, error) {
		if user == gres.Nobody {
			return now, nil
		}
		return user, nil
	})
}

func unused() (bool, error) { return false, nil }

// pid is the process of the daemon; 0: it does not run.
func (c tried) pid() int {
	if t, _ := readTenure(PipeDir(c.RunDir, "GPU-1")); t.runs() {
		return t.PID
	}
	return 0
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (c tried) logSize(t *testing.T) int64 {
	t.Helper()
	st, err := os.Stat(filepath.Join(c.logDir("GPU-1"), "control.log"))
	must(t, err)
	return st.Size()
}

// A daemon is started once, for its GPUs alone, in directories whose modes no umask
// changes; to see that it runs costs nothing of its log.
func TestMPSEnsureContract(t *testing.T) {
	each(t, func(t *testing.T, c tried) {
		defer syscall.Umask(syscall.Umask(0o077))
		must(t, c.keep(t, gres.Nobody))
		dir := PipeDir(c.RunDir, "GPU-1")
		pid := c.pid()
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		must(t, err)
		if !bytes.Contains(environ, []byte("CUDA_VISIBLE_DEVICES=GPU-1\x00")) || bytes.Contains(environ, []byte("PINNED")) {
			t.Errorf("environment of the daemon: %q", environ)
		}
		for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Dir(dir): 0o755} {
			if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
				t.Errorf("%s: %v, %v", path, st.Mode(), err)
			}
		}
		size := c.logSize(t)
		for range 10 {
			must(t, c.keep(t, gres.Nobody))
			if !Listens(c.RunDir, "GPU-1") {
				t.Error("it does not run")
			}
		}
		if got := c.logSize(t); got != size || c.pid() != pid {
			t.Errorf("to look cost %d bytes; process %d, then %d", got-size, pid, c.pid())
		}
		must(t, c.End(t.Context(), "GPU-1", unused))
		if _, err := os.Stat(dir); Listens(c.RunDir, "GPU-1") || !os.IsNotExist(err) {
			t.Errorf("after quit: %v", err)
		}
		must(t, c.End(t.Context(), "GPU-1", unused))
	})
}

// A daemon that was killed leaves its sockets, and whoever could reach them may have its
// lock: the next one starts all the same, for the same user.
func TestMPSKilledContract(t *testing.T) {
	each(t, func(t *testing.T, c tried) {
		must(t, c.keep(t, gres.Nobody))
		dir := PipeDir(c.RunDir, "GPU-1")
		if os.Geteuid() == 0 {
			must(t, c.keep(t, otherUID))
		}
		pid := c.pid()
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		for until := time.Now().Add(time.Minute); c.pid() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("it runs")
			}
		}
		if _, err := os.Stat(filepath.Join(dir, "control")); err != nil {
			t.Error(err)
		}
		if Listens(c.RunDir, "GPU-1") {
			t.Error("a killed daemon listens")
		}
		if os.Geteuid() == 0 { // else the stranger is of our user, and counts
			stranger(t, filepath.Join(dir, "control_lock"))
		}
		if Listens(c.RunDir, "GPU-1") {
			t.Error("a stranger's lock is taken for a daemon")
		}
		must(t, c.keep(t, gres.Nobody))
		if _, err := c.do(t.Context(), "GPU-1", "get_server_list"); err != nil || c.pid() == 0 {
			t.Errorf("started again: process %d, %v", c.pid(), err)
		}
		if os.Geteuid() == 0 && !reaches(t, c.Control, "GPU-1", otherUID) {
			t.Error("its user does not reach it")
		}
	})
}

// A client that says nothing keeps a daemon from answering: another one replaces it, for the same user.
func TestMPSKillContract(t *testing.T) {
	each(t, func(t *testing.T, c tried) {
		must(t, c.keep(t, gres.Nobody))
		dir := PipeDir(c.RunDir, "GPU-1")
		user := int64(os.Geteuid())
		if os.Geteuid() == 0 {
			user = otherUID
			must(t, c.keep(t, user))
		}
		stranger(t, filepath.Join(dir, "control"))
		if !Listens(c.RunDir, "GPU-1") {
			t.Error("it does not run beside a silent client")
		}
		pid := c.pid()
		must(t, c.Kill(t.Context(), "GPU-1"))
		if uidOf(pid) >= 0 {
			t.Error("the daemon that does not answer runs on")
		}
		must(t, c.keep(t, gres.Nobody))
		if got := c.pid(); got == 0 || got == pid {
			t.Errorf("process %d, after %d", got, pid)
		}
		if of, _ := c.Tenant("GPU-1"); os.Geteuid() == 0 && (of != user || !reaches(t, c.Control, "GPU-1", otherUID)) {
			t.Errorf("it is user %d's, want %d's", of, user)
		}
	})
}

// Refusals are errors, though the program's status is 0.
func TestMPSRefusalsContract(t *testing.T) {
	each(t, func(t *testing.T, c tried) {
		must(t, c.keep(t, gres.Nobody))
		for _, command := range []string{"frobnicate", "get_server_status 1", "get_server_status", "get_client_list 1",
			"terminate_client 1 2", "start_server"} {
			if text, err := c.do(t.Context(), "GPU-1", command); err == nil {
				t.Errorf("%s: %q", command, text)
			}
		}
		if faulted, err := c.Faulted(t.Context(), "GPU-1"); faulted || err != nil {
			t.Errorf("faulted %v, %v", faulted, err)
		}
	})
}

// A daemon of before 550 is not used.
func TestMPSOldContract(t *testing.T) {
	for _, c := range daemons(t) {
		if c.version >= 550 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			simulate(t, c)
			if err := c.keep(t, gres.Nobody); !errors.Is(err, errOld) || Listens(c.RunDir, "GPU-1") {
				t.Errorf("%v, and it listens: %v", err, Listens(c.RunDir, "GPU-1"))
			}
		})
	}
}

// The directory of a daemon is open to the user of its jobs alone, who finds a server.
func TestMPSAdmitContract(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for other users")
	}
	each(t, func(t *testing.T, c tried) {
		defer syscall.Umask(syscall.Umask(0o077))
		if err := c.Admit(t.Context(), "GPU-1", userUID); err == nil || !strings.Contains(err.Error(), "there is none") {
			t.Errorf("without an agent: %v", err)
		}
		must(t, c.keep(t, gres.Nobody))
		reach := func(when string, user, other bool) {
			t.Helper()
			if u, o := reaches(t, c.Control, "GPU-1", userUID), reaches(t, c.Control, "GPU-1", otherUID); u != user ||
				o != other {
				t.Errorf("%s: user %v, other %v; want %v, %v", when, u, o, user, other)
			}
		}
		reach("before", false, false)
		err := c.Admit(t.Context(), "GPU-1", userUID)
		reach("admitted", true, false)
		if c.real {
			if err == nil || !strings.Contains(err.Error(), "no server for user") {
				t.Errorf("without a GPU: %v", err)
			}
		} else {
			must(t, err)
			servers, err := c.servers(t.Context(), "GPU-1")
			if err != nil || len(servers) != 1 || uidOf(servers[0]) != userUID {
				t.Fatalf("servers %v, %v", servers, err)
			}
			must(t, c.Admit(t.Context(), "GPU-1", userUID))
			if again, err := c.servers(t.Context(), "GPU-1"); err != nil || len(again) != 1 || again[0] != servers[0] {
				t.Errorf("servers %v, %v", again, err)
			}
		}
		pid := c.pid()
		must(t, c.keep(t, userUID))
		reach("in use", true, false)
		// The ledger is not known: nothing changes.
		if err := c.Keep(t.Context(), "GPU-1", func(int64) (int64, error) { return 0, errors.New("locked") }); err == nil {
			t.Error("no error")
		}
		must(t, c.End(t.Context(), "GPU-1", func() (bool, error) { return true, nil }))
		reach("not known, and used", true, false)
		if c.pid() != pid {
			t.Error("the daemon changes under its user's jobs")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := c.Admit(ctx, "GPU-1", otherUID); !errors.Is(err, ErrNotGiven) {
			t.Errorf("another user is admitted: %v", err)
		}
		must(t, c.keep(t, otherUID))
		reach("another's", false, true)
		if c.pid() == pid {
			t.Error("the daemon is the same")
		}
		must(t, c.Keep(t.Context(), "GPU-1", func(int64) (int64, error) { return gres.Nobody, nil }))
		reach("after", false, false)
	})
}
