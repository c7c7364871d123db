// SPDX-License-Identifier: Apache-2.0

package userfile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helpers are what the test program is when it is started as another process.
var helpers = map[string]func([]string){"attack": attack, "parent": parent}

func helper(name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{"USERFILE_TEST=" + name}
	cmd.Stderr = os.Stderr
	return cmd
}

// held starts a child that waits for its question, and returns it when it has
// become what it is to be.
func held(t *testing.T, u User) (pid int) {
	t.Helper()
	cmd := command(t.Context(), u)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); cmd.Wait() })
	awaitThreads(t, cmd.Process.Pid)
	return cmd.Process.Pid
}

// awaitThreads waits until Go's runtime runs in a process: by then the constructor
// in credentials.c has returned.
func awaitThreads(t *testing.T, pid int) {
	t.Helper()
	until(t, fmt.Sprintf("process %d has threads", pid), func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		return len(tasks) > 1
	})
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 6000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("after a minute not yet: %s", what)
}

// checkThreads requires of every thread that it reads with u's rights, and is
// root's to everybody else.
func checkThreads(t *testing.T, pid int, u User) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if len(files) < 2 {
		t.Fatalf("process %d has %d threads", pid, len(files))
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			got[key] = strings.Join(strings.Fields(value), " ")
		}
		none := strings.Repeat("0", 16)
		for key, want := range map[string]string{
			"Uid":    fmt.Sprintf("0 0 0 %d", u.UID),
			"Gid":    fmt.Sprintf("%[1]d %[1]d %[1]d %[1]d", u.GID),
			"Groups": strings.Trim(fmt.Sprint(u.Groups), "[]"),
			"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
			"NoNewPrivs": "1",
		} {
			if got[key] != want {
				t.Errorf("%s: %s is %q, want %q", file, key, got[key], want)
			}
		}
	}
}

func TestCredentials(t *testing.T) {
	u := nobody(t)
	u.Groups = append(u.Groups, u.GID-1, u.GID-2)
	u.Groups[0], u.Groups[2] = u.Groups[2], u.Groups[0] // the kernel tells them in order
	pid := held(t, u)
	checkThreads(t, pid, u)
	t.Run("directory", func(t *testing.T) {
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		if errors.Is(err, fs.ErrPermission) { // root in a container: no CAP_SYS_PTRACE (proc(5))
			t.Skipf("root may not ask here: %v", err)
		}
		if cwd != "/" {
			t.Errorf("works in %q (%v): it holds somebody's directory", cwd, err)
		}
	})
}

// What a process can do to another of its own user it cannot do to the child.
func TestUserCannotTouchTheChild(t *testing.T) {
	u := nobody(t)
	as := func(cmd *exec.Cmd) *exec.Cmd {
		cmd.Dir = "/"
		credential := &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		return cmd
	}
	attacked := func(pid int) string {
		out, err := as(helper("attack", strconv.Itoa(pid))).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := attacked(held(t, u)); got != "" {
		t.Errorf("the user could: %s", got)
	}
	own := as(exec.Command("sleep", "600"))
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	defer own.Wait()
	defer own.Process.Kill()
	const all = "prlimit nice affinity scheduler fds memory seize stop kill "
	if got := attacked(own.Process.Pid); got != all {
		t.Errorf("the attacker could do %q to its own process, want %q: it proves nothing", got, all)
	}
}

// attack prints what this process can do to the one that is named.
func attack(args []string) {
	runtime.LockOSThread()
	pid, _ := strconv.Atoi(args[0])
	proc := "/proc/" + args[0]
	for _, a := range []struct {
		name string
		try  func() error
	}{
		{"prlimit", func() error {
			return unix.Prlimit(pid, unix.RLIMIT_CPU, &unix.Rlimit{Cur: 60, Max: 60}, nil)
		}},
		{"nice", func() error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 19) }},
		{"affinity", func() error { return unix.SchedSetaffinity(pid, &unix.CPUSet{1}) }},
		{"scheduler", func() error {
			return unix.SchedSetAttr(pid, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		}},
		{"fds", func() error { _, err := os.Readlink(proc + "/fd/0"); return err }},
		{"memory", func() error {
			f, err := os.Open(proc + "/mem")
			if err == nil {
				f.Close()
			}
			return err
		}},
		{"seize", func() error {
			if err := unix.PtraceSeize(pid); err != nil {
				return err
			}
			unix.PtraceDetach(pid)
			return nil
		}},
		{"stop", func() error { return unix.Kill(pid, unix.SIGSTOP) }},
		{"kill", func() error { return unix.Kill(pid, unix.SIGKILL) }},
	} {
		if a.try() == nil {
			fmt.Print(a.name, " ")
		}
	}
}

// Only root can become a child; else there is no answer.
func TestChildOfAnother(t *testing.T) {
	u := nobody(t)
	for _, args := range [][]string{{Command, "65534"}, {Command, "0"}} {
		cmd := exec.Command("/proc/self/exe", args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: u.UID, Gid: u.GID}}
		cmd.Stdin = strings.NewReader(`{"Op":"scan"}`)
		out, err := cmd.Output()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != exitRoot || len(out) > 0 {
			t.Errorf("%v: %v, answer %q", args, err, out)
		}
	}
	for _, id := range []string{"", "x", "-1", "+1", " 1", "1x", "4294967295", "99999999999999999999999"} {
		out, err := exec.Command("/proc/self/exe", Command, id).Output()
		if e := (*exec.ExitError)(nil); !errors.As(err, &e) || e.ExitCode() != exitRoot || len(out) > 0 {
			t.Errorf("uid %q: %v, answer %q", id, err, out)
		}
	}
}

// The child ends with who asked, though nobody closes its input.
func TestChildEndsWithItsParent(t *testing.T) {
	nobody(t) // needs root
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	cmd := helper("parent")
	cmd.Stdin = in
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(stdout, &pid)
	if err == nil {
		awaitThreads(t, pid)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if err != nil {
		t.Fatal(err)
	}
	until(t, fmt.Sprintf("the child %d has gone", pid), func() bool { return gone(pid) })
}

// gone tells whether a process has ended; whose child a zombie is does not matter.
func gone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err != nil || bytes.Contains(text, []byte("\nState:\tZ")) || bytes.Contains(text, []byte("\nState:\tX"))
}

// parent starts a child and waits to be killed.
func parent([]string) {
	runtime.LockOSThread()
	cmd := command(context.Background(), User{UID: 65534, GID: 65534})
	cmd.Stdin = os.Stdin
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(cmd.Process.Pid)
	select {}
}

// What the user may read by group, by access control list and in own directories is
// read, and nothing that root may read besides.
func TestRights(t *testing.T) {
	u, d := nobody(t), dir(t)
	other := u
	other.Groups = []uint32{4242}
	file := func(name string, mode os.FileMode, uid, gid uint32) string {
		path := filepath.Join(d, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, path, oom)
		if err := errors.Join(os.Chmod(path, mode), os.Chown(path, int(uid), int(gid))); err != nil {
			t.Fatal(err)
		}
		return path
	}
	within := func(path string, mode os.FileMode, uid, gid uint32) string {
		d := filepath.Dir(path)
		if err := errors.Join(os.Chmod(d, mode), os.Chown(d, int(uid), int(gid))); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		what, path string
		u          User
		want       State
	}{
		{"the user's", file("own", 0o400, u.UID, 0), u, StateOK},
		{"the user's, write only", file("shut", 0o200, u.UID, 0), u, StateDenied},
		{"root's", file("root", 0o600, 0, 0), u, StateDenied},
		{"root's group's", file("root-group", 0o640, 0, 0), u, StateDenied},
		{"the own group's", file("group", 0o040, 0, u.GID), u, StateOK},
		{"another group's", file("other-group", 0o040, 0, 4242), u, StateDenied},
		{"a supplementary group's", file("more", 0o040, 0, 4242), other, StateOK},
		{"the own group's, not in the list of groups", file("primary", 0o040, 0, u.GID), other, StateOK},
		{"in the user's closed directory", within(file("own-dir/f", 0o600, u.UID, 0), 0o700, u.UID, 0), u, StateOK},
		{"in root's closed directory", within(file("root-dir/f", 0o644, u.UID, 0), 0o700, 0, 0), u, StateDenied},
		{"root's, of a job of root", file("root-job", 0o600, 0, 0), User{}, StateOK},
		{"another's, of a job of root", file("others", 0o600, u.UID, 0), User{}, StateDenied},
	} {
		r := ask(t, c.u, Ask{Op: OpScan, Files: []File{{Path: c.path}}})
		if r.State != c.want || (r.Signature != "") != (c.want == StateOK) {
			t.Errorf("%s: %+v, want %s", c.what, r, c.want)
		}
	}
	for id, want := range map[uint32]State{u.UID: StateOK, u.UID - 1: StateDenied} {
		path := file("acl", 0o600, 0, 0)
		if err := setACL(path, id); errors.Is(err, unix.ENOTSUP) {
			t.Skip("access control lists not tried: the file system of the temporary directory has none")
		} else if err != nil {
			t.Fatal(err)
		}
		if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.State != want {
			t.Errorf("readable by uid %d: %+v, want %s", id, r, want)
		}
	}
}

// setACL gives one user the right to read a file of mode 0600 (acl(5),
// linux/posix_acl_xattr.h).
func setACL(path string, uid uint32) error {
	type entry struct {
		tag, perm uint16
		id        uint32
	}
	const none = ^uint32(0)
	list := []entry{{1, 6, none}, {2, 4, uid}, {4, 0, none}, {16, 4, none}, {32, 0, none}}
	value := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range list {
		value = binary.LittleEndian.AppendUint16(value, e.tag)
		value = binary.LittleEndian.AppendUint16(value, e.perm)
		value = binary.LittleEndian.AppendUint32(value, e.id)
	}
	return unix.Setxattr(path, "system.posix_acl_access", value, 0)
}
