// SPDX-License-Identifier: Apache-2.0

package simgpu_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The contract of an MPS control daemon as CARMA relies on it: what 535.261.03 and
// 550.163.01 of Debian did on a machine without a GPU. The stand-in is held to it here,
// the real daemons by `make test-mps`.

// mpsDaemon is a program that the contract is tried on.
type mpsDaemon struct {
	version int // 535 or 550
	program string
	env     []string
}

// exchange is one command and its answer on stdout. The exit status is 0 and nothing is
// on stderr, whatever the answer says.
type exchange struct {
	command string
	old     string // of 535; empty: as 550
	answer  string
}

// none is an answer of nothing, where that of 550 is something.
const none = "\x00"

func (e exchange) want(version int) string {
	want := e.answer
	if version < 550 && e.old != "" {
		want = e.old
	}
	if want == none || want == "" {
		return ""
	}
	return want + "\n"
}

// Ids of users that need no name.
const (
	ownerUID = 64321
	otherUID = 64322
)

var (
	// Everybody gets these.
	reads = []exchange{
		{"get_server_list", "", ""},
		{"get_server_list extra", "", ""},
		{"get_server_status 1", `Unknown command "get_server_status"`, "Server 1 not found"},
		{"get_server_status", `Unknown command "get_server_status"`, "A server PID is required"},
		{"get_server_status x", `Unknown command "get_server_status"`, "A server PID is required"},
		{"get_client_list 1", "", "Server 1 not found"},
		{"get_client_list", "", "Server 0 not found"},
		{"get_client_list x", "", "Server 0 not found"},
		{"get_device_client_list", "", ""},
		{"get_device_client_list 1", "", "Server 1 not found"},
		{"ps", "", "Server not found"},
		{"terminate_client 1 2", "", "Server 1 not found\nServer 1 not found!\n1"},
		{"terminate_client x y", "", "Server 0 not found\nServer 0 not found!\n1"},
		{"start_server", "", "A user id (UID) is required to start a new server"},
		{"start_server -uid x", "", "A user id (UID) is required to start a new server"},
		{"shutdown_server 1", "", "Server 1 not found"},
		{"shutdown_server 1 -f", "", "Server 1 not found"},
		{"frobnicate", "", `Unknown command "frobnicate"`},
		{"", "", `Unknown command ""`},
	}
	// These change the daemon, in this order, for root and for who started it.
	settings = []exchange{
		{"get_default_device_pinned_mem_limit 0", "", ""},
		{"set_default_device_pinned_mem_limit 0 5G", "", ""},
		{"get_default_device_pinned_mem_limit 0", "", "5G"},
		{"set_default_device_pinned_mem_limit 0 banana", "", ""},
		{"get_default_device_pinned_mem_limit 0", "", ""},
		{"set_default_active_thread_percentage 50", "", "50.0"},
		{"set_default_active_thread_percentage 500", "", "50.0"},
		{"set_default_active_thread_percentage x", "", "50.0"},
		{"set_default_active_thread_percentage 100", "", "100.0"},
		{"get_default_active_thread_percentage", "", "100.0"},
	}
	lacks  = fmt.Sprintf("Insufficient privileges for UID %d", otherUID)
	mayNot = lacks + ". Control deamon settings can only be modified by the user started it or by the root user."
	// And these are for others: 535 lets them.
	strangers = []exchange{
		{"set_default_device_pinned_mem_limit 0 3G", none, mayNot},
		{"get_default_device_pinned_mem_limit 0", "3G", ""},
		{"set_default_device_pinned_mem_limit 0 banana", none, mayNot},
		{"set_default_active_thread_percentage 40", "40.0", mayNot},
		{"set_default_active_thread_percentage 100", "100.0", mayNot},
		{"start_server -uid 0", lacks, lacks + ". Only the root user may start server for another user."},
		{"quit", "", "Not enough privilege to execute quit command"},
		{"quit -t 1", "", "Not enough privilege to execute quit command"},
	}
)

// mpsRoom is a daemon's place.
type mpsRoom struct {
	t          *testing.T
	d          mpsDaemon
	uid        int // of who starts it
	dir, pipes string
}

func newRoom(t *testing.T, d mpsDaemon, uid int) *mpsRoom {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "mps") // short: UNIX sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// Other users must reach the program, too.
	program := filepath.Join(dir, "nvidia-cuda-mps-control")
	text, err := os.ReadFile(d.program)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		t.Fatal(err)
	}
	d.program = program
	r := &mpsRoom{t: t, d: d, uid: uid, dir: dir, pipes: filepath.Join(dir, "pipe")}
	for _, made := range []string{dir, r.pipes, filepath.Join(dir, "log")} {
		if err := errors.Join(os.MkdirAll(made, 0o755), os.Chmod(made, 0o755)); err != nil {
			t.Fatal(err)
		}
		if uid != os.Geteuid() && made != dir {
			if err := os.Chown(made, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		if pid := r.holder(); pid != 0 && pid != os.Getpid() {
			syscall.Kill(pid, syscall.SIGKILL)
			r.gone(pid)
		}
	})
	return r
}

// cmd runs the program as a user. The daemon's server is not in its PATH: it would want a GPU.
func (r *mpsRoom) cmd(ctx context.Context, uid int, stdin string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, r.d.program, args...)
	cmd.Env = append([]string{"PATH=/nonexistent", "CUDA_MPS_PIPE_DIRECTORY=" + r.pipes,
		"CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(r.dir, "log"), "CUDA_VISIBLE_DEVICES=0"}, r.d.env...)
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(stdin)
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	return cmd
}

type answer struct {
	stdout, stderr string
	status         int
}

func (r *mpsRoom) run(uid int, stdin string, args ...string) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	cmd := r.cmd(ctx, uid, stdin, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) {
		r.t.Fatalf("%d: %q: %v", uid, stdin, err)
	}
	return answer{out.String(), errOut.String(), cmd.ProcessState.ExitCode()}
}

// start starts the daemon, which must work.
func (r *mpsRoom) start() {
	r.t.Helper()
	want(r.t, "start", r.run(r.uid, "", "-d"), answer{})
}

var (
	noDaemon = answer{stderr: "Cannot find MPS control daemon process\n", status: 1}
	oneRuns  = answer{stdout: "An instance of this daemon is already running\n", status: 1}
)

// files are what lies in the pipe directory, with types and modes.
func (r *mpsRoom) files() string {
	r.t.Helper()
	entries, err := os.ReadDir(r.pipes)
	if err != nil {
		r.t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			r.t.Fatal(err)
		}
		list = append(list, info.Mode().String()+" "+e.Name())
	}
	return strings.Join(list, ", ")
}

const (
	sockets = "Srw-rw-rw- control, -rw-rw-rw- control_lock, Srwxr-xr-x control_privileged"
	fifo    = ", prwxrwxrwx log"
	pidFile = ", -rw-rw-rw- nvidia-cuda-mps-control.pid"
)

// running is what files says while the daemon runs; 535 leaves no pid.
func (r *mpsRoom) running() string {
	if r.d.version < 550 {
		return sockets + fifo
	}
	return sockets + fifo + pidFile
}

// holder is the process that has the lock of the daemon: itself. 0: nobody.
func (r *mpsRoom) holder() int {
	r.t.Helper()
	f, err := os.Open(filepath.Join(r.pipes, "control_lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		r.t.Fatal(err)
	}
	if lock.Type == unix.F_UNLCK {
		return 0
	}
	return int(lock.Pid)
}

// gone waits for a process that is nobody's child of ours: a zombie counts.
func (r *mpsRoom) gone(pid int) {
	r.t.Helper()
	eventually(r.t, "the daemon ends", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	})
}

// connect is a client that says nothing.
func (r *mpsRoom) connect() (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(r.pipes, "control")}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// fifo opens the pipe of the servers' log without waiting for a reader.
func (r *mpsRoom) fifo() error {
	fd, err := unix.Open(filepath.Join(r.pipes, "log"), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// log is control.log without its stamps.
func (r *mpsRoom) log() []string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "log", "control.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		_, words, _ := strings.Cut(line, "] ")
		lines = append(lines, strings.TrimSuffix(words, "\n"))
	}
	return lines
}

// contract tries it all on one daemon.
func contract(t *testing.T, d mpsDaemon) {
	self := os.Geteuid()
	t.Run("words", func(t *testing.T) {
		starters := []int{self}
		if self == 0 {
			starters = append(starters, ownerUID)
		}
		for _, starter := range starters {
			r := newRoom(t, d, starter)
			r.start()
			callers := []int{starter}
			if self == 0 {
				callers = slices.Compact([]int{0, starter, otherUID})
			}
			for _, uid := range callers {
				table := slices.Concat(reads, settings)
				if uid == otherUID {
					table = slices.Concat(reads, strangers)
				}
				for _, e := range table {
					what := fmt.Sprintf("daemon of %d, %d says %q", starter, uid, e.command)
					want(t, what, r.run(uid, e.command+"\n"), answer{stdout: e.want(d.version)})
				}
			}
			want(t, "files", r.files(), r.running())
			pid := r.holder()
			want(t, "quit", r.run(starter, "quit\n"), answer{})
			r.gone(pid)
		}
	})
	t.Run("life", func(t *testing.T) { life(t, d) })
	t.Run("lock", func(t *testing.T) { strangersLock(t, d) })
	t.Run("silent client", func(t *testing.T) { silentClient(t, d) })
	t.Run("next user", func(t *testing.T) { nextUser(t, d) })
}

// life is what stays of a daemon that ends, and what that is worth.
func life(t *testing.T, d mpsDaemon) {
	r := newRoom(t, d, os.Geteuid())
	want(t, "without a daemon", r.run(r.uid, "get_server_list\n"), noDaemon)
	r.start()
	want(t, "files", r.files(), r.running())
	pid := r.holder()
	if fd, err := r.connect(); err != nil {
		t.Error(err)
	} else {
		cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || int(cred.Pid) != pid || int(cred.Uid) != r.uid {
			t.Errorf("who listens: %+v, %v; the lock's holder is %d", cred, err, pid)
		}
		unix.Close(fd)
	}
	if d.version >= 550 {
		text, err := os.ReadFile(filepath.Join(r.pipes, "nvidia-cuda-mps-control.pid"))
		if err != nil {
			t.Error(err)
		}
		want(t, "pid file", string(text), strconv.Itoa(pid))
	}
	want(t, "log pipe", r.fifo(), nil)
	want(t, "a second daemon", r.run(r.uid, "", "-d"), oneRuns)
	want(t, "the first goes on", r.run(r.uid, "get_server_list\n"), answer{})

	// A command costs four lines, 221 bytes with a pid of up to five digits.
	var took []time.Duration
	for range 20 {
		start := time.Now()
		want(t, "a command", r.run(r.uid, "get_server_list\n"), answer{})
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	t.Logf("a command takes %v", took[len(took)/2].Round(100*time.Microsecond))
	four := []string{"Accepting connection...", "NEW UI", "Cmd:get_server_list", "UI closed"}
	eventually(t, "four lines for each in the log", func() bool {
		lines := r.log()
		return len(lines) > 80 && slices.Equal(lines[len(lines)-80:], slices.Repeat(four, 20))
	})

	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.gone(pid)
	want(t, "files after kill -9", r.files(), r.running())
	// A process may count as ended a moment before the kernel has closed its files.
	eventually(t, "the lock goes after kill -9", func() bool { return r.holder() == 0 })
	want(t, "after kill -9", r.run(r.uid, "get_server_list\n"), noDaemon)
	if _, err := r.connect(); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("connect after kill -9: %v", err)
	}
	// Whoever opens it and waits for a reader waits for ever.
	want(t, "log pipe after kill -9", r.fifo(), error(unix.ENXIO))
	r.start()
	pid = r.holder()
	want(t, "files, started over what stayed", r.files(), r.running())
	want(t, "quit", r.run(r.uid, "quit -t 2\n"), answer{})
	r.gone(pid)
	want(t, "files after quit", r.files(), sockets)
	want(t, "after quit", r.run(r.uid, "get_server_list\n"), noDaemon)
	want(t, "log pipe after quit", r.fifo(), error(unix.ENOENT))
}

// strangersLock: whoever can open the lock file of a daemon that has ended keeps the next
// one from starting, until the file has gone.
func strangersLock(t *testing.T, d mpsDaemon) {
	r := newRoom(t, d, os.Geteuid())
	r.start()
	pid := r.holder()
	want(t, "quit", r.run(r.uid, "quit\n"), answer{})
	r.gone(pid)
	stranger := exec.CommandContext(t.Context(), os.Args[0])
	stranger.Env = append(os.Environ(), "MPS_LOCK="+filepath.Join(r.pipes, "control_lock"))
	in, err := stranger.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := stranger.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		stranger.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
		self := filepath.Join(r.dir, "self") // go test keeps its own for its user
		text, err := os.ReadFile(os.Args[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(self, text, 0o755); err != nil {
			t.Fatal(err)
		}
		stranger.Path = self
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer in.Close()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "locked\n" {
		t.Fatalf("the stranger says %q, %v", line, err)
	}
	want(t, "start", r.run(r.uid, "", "-d"), oneRuns)
	want(t, "after it", r.run(r.uid, "get_server_list\n"), noDaemon)
	if err := os.Remove(filepath.Join(r.pipes, "control_lock")); err != nil {
		t.Fatal(err)
	}
	r.start()
	want(t, "without the lock", r.run(r.uid, "get_server_list\n"), answer{})
}

// holdLock is the stranger: it has the lock until its stdin ends.
func holdLock(path string) int {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("locked")
	bufio.NewReader(os.Stdin).ReadString('\n')
	return 0
}

// silentClient: while somebody has connected and says nothing, the daemon serves nobody.
func silentClient(t *testing.T, d mpsDaemon) {
	r := newRoom(t, d, os.Geteuid())
	r.start()
	fd, err := r.connect()
	if err != nil {
		t.Fatal(err)
	}
	cmd := r.cmd(t.Context(), r.uid, "get_server_list\n")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		t.Errorf("answered beside a silent client: %v", err)
		unix.Close(fd)
		return
	case <-time.After(300 * time.Millisecond):
	}
	if pid := r.holder(); pid == 0 {
		t.Error("the daemon's lock has gone")
	}
	unix.Close(fd)
	if err := <-done; err != nil {
		t.Errorf("after the silent client has gone: %v", err)
	}
	eventually(t, "the log says so", func() bool {
		return slices.Contains(r.log(), "User did not send valid credentials")
	})
}

// nextUser: what a user has opened goes on reaching a daemon whose directory is closed to the
// user by then. It reaches no other daemon, in a directory that is made anew.
func nextUser(t *testing.T, d mpsDaemon) {
	r := newRoom(t, d, os.Geteuid())
	r.start()
	open := func(name string, flags int) int {
		t.Helper()
		fd, err := unix.Open(filepath.Join(r.pipes, name), flags|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	control, log := open("control", unix.O_PATH), open("log", unix.O_WRONLY|unix.O_NONBLOCK)
	// One that has shown who it is and has had an answer, and one that has not.
	idle := r.cmd(t.Context(), r.uid, "")
	idle.Stdin = nil
	in, err := idle.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := idle.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); idle.Wait() })
	fmt.Fprintln(in, "get_default_active_thread_percentage")
	eventually(t, "an answer", func() bool { return slices.Contains(r.log(), "Cmd:get_default_active_thread_percentage") })
	silent, err := r.connect()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(silent)
	again := func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", control)})
			unix.Close(fd)
		}
		return err
	}
	if err := os.Chmod(r.pipes, 0o700); err != nil {
		t.Fatal(err)
	}
	want(t, "O_PATH, closed", again(), nil)
	_, err = unix.Write(log, []byte("a fault\n"))
	want(t, "log, closed", err, nil)
	asked, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := r.cmd(asked, r.uid, "get_server_list\n").Run(); err == nil {
		t.Error("answered beside a silent client, closed")
	}

	pid := r.holder()
	if err := errors.Join(syscall.Kill(pid, syscall.SIGKILL), os.Rename(r.pipes, r.pipes+".before"),
		os.Mkdir(r.pipes, 0o755)); err != nil {
		t.Fatal(err)
	}
	r.gone(pid)
	r.start()
	want(t, "beside a silent client of the daemon before", r.run(r.uid, "get_server_list\n"), answer{})
	want(t, "O_PATH, of the daemon before", again(), error(unix.ECONNREFUSED))
	_, err = unix.Write(log, []byte("a fault\n"))
	want(t, "log, of the daemon before", err, error(unix.EPIPE))
	fmt.Fprintln(in, strings.Repeat("x", 5000))
	want(t, "after a long command to the daemon before", r.run(r.uid, "get_server_list\n"), answer{})
}

// A server has its user's uid and root's group: its user can send it signals, and cannot trace it.
func TestServerCredentials(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for another user")
	}
	r := newRoom(t, mpsDaemon{550, filepath.Join(build, "nvidia-cuda-mps-control"), nil}, 0)
	state := filepath.Join(r.dir, "state")
	simgpu(t, "create", state, "--model", "h100", "--gpus", "1")
	r.d.env = []string{"SIMGPU_STATE=" + state}
	r.start()
	want(t, "start", r.run(0, fmt.Sprintf("start_server -uid %d\n", ownerUID)), answer{})
	server := strings.TrimSpace(r.run(0, "get_server_list\n").stdout)
	eventually(t, "the server is there", func() bool {
		return strings.HasPrefix(r.run(0, "get_server_status "+server+"\n").stdout, "ACTIVE")
	})
	status, err := os.ReadFile("/proc/" + server + "/status")
	ids := fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\nGid:\t0\t0\t0\t0\n", ownerUID)
	if err != nil || !strings.Contains(string(status), ids) {
		t.Errorf("%v\n%s", err, status)
	}
	// The order matters: a stopped server would keep the daemon from quitting.
	for _, c := range []struct {
		command string
		may     bool
	}{{"kill -STOP " + server, true}, {"kill -CONT " + server, true}, {"cat /proc/" + server + "/environ", false}} {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", c.command)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ownerUID, Gid: ownerUID}}
		if err := cmd.Run(); (err == nil) != c.may {
			t.Errorf("%s: %v", c.command, err)
		}
	}
	want(t, "quit", r.run(0, "quit\n"), answer{})
}

// The stand-in answers as the real daemons did.
func TestMPSContract(t *testing.T) {
	for _, version := range []int{535, 550} {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			if os.Geteuid() == 0 { // for its other users
				dir, err := os.MkdirTemp("/tmp", "sim")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { os.RemoveAll(dir) })
				if err := os.Chmod(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				state = filepath.Join(dir, "state")
			}
			simgpu(t, "create", state, "--model", "h100", "--gpus", "1")
			contract(t, mpsDaemon{version, filepath.Join(build, "nvidia-cuda-mps-control"),
				[]string{"SIMGPU_STATE=" + state, fmt.Sprint("SIMGPU_MPS_VERSION=", version)}})
		})
	}
}
