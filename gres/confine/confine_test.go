// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"context"
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

// TestMain is also the program that opens device nodes: it says what became of each.
func TestMain(m *testing.M) {
	if list := os.Getenv("CONFINE_OPEN"); list != "" {
		if group := os.Getenv("CONFINE_CGROUP"); group != "" {
			if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
		for _, path := range strings.Split(list, ",") {
			_, err := os.OpenFile(path, os.O_RDWR, 0)
			var errno syscall.Errno
			errors.As(err, &errno)
			fmt.Print(unix.ErrnoName(errno), " ")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// nodes makes device nodes with NVIDIA's major, which no driver serves here: ENXIO is what
// comes when nothing forbids to open one.
func nodes(t *testing.T, n int) (dir, list string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("makes device nodes: for root alone")
	}
	dir = t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && st.Flags&unix.ST_NODEV != 0 { // as /tmp of Debian 13
		if dir, err = os.MkdirTemp("/var/tmp", "confine"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
	}
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if st, err := os.Stat(d); err == nil && st.Mode()&0o001 == 0 {
			os.Chmod(d, st.Mode()|0o055)
		}
	}
	var paths []string
	for i := range n {
		path := filepath.Join(dir, fmt.Sprint("nvidia", i))
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(NVIDIAMajor, uint32(i)))); err != nil {
			t.Skipf("no device node can be made here: %v", err)
		}
		os.Chmod(path, 0o666)
		paths = append(paths, path)
	}
	return dir, strings.Join(paths, ",")
}

// opened tries the nodes in a process of a user, in a cgroup.
func opened(t *testing.T, list, group string, uid uint32) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{"CONFINE_OPEN=" + list, "CONFINE_CGROUP=" + group}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.Output() // with -cover the program complains on stderr
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// devices is a guard on the machine's own cgroups, below a cgroup of this test's alone. Tests beside take the lock of
// the root (v1.remove).
func devices(t *testing.T) *v1 {
	t.Helper()
	const root = "/sys/fs/cgroup/devices"
	if isCgroup2(filepath.Dir(root)) {
		t.Skip("this machine has cgroup v2 alone")
	}
	own, err := os.MkdirTemp(root, "carma-test")
	if err != nil {
		t.Skipf("no cgroup v1 that can be written: %v", err)
	}
	home := filepath.Join(own, "slurm")
	t.Cleanup(func() {
		for _, dir := range []string{home, own} {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left behind: %v", err)
			}
		}
	})
	if err := errors.Join(os.Chmod(own, 0o755), os.Mkdir(home, 0o755)); err != nil {
		t.Fatal(err)
	}
	return &v1{root: own, homes: []string{home}}
}

func TestV1(t *testing.T) {
	_, list := nodes(t, 3)
	g := devices(t)
	job := Job{ID: 7, UID: 1000}
	step := filepath.Join(g.homes[0], "uid_1000", "job_7", "step_0", "task_0")
	want := func(want string) {
		t.Helper()
		if got := opened(t, list, step, 0); got != want {
			t.Errorf("a task opens %s, want %s", got, want)
		}
	}
	open := func(minors ...int) {
		t.Helper()
		if err := g.Open(job, minors); err != nil {
			t.Fatal(err)
		}
	}
	defer syscall.Umask(syscall.Umask(0o077)) // a Prolog's
	// An earlier release has left this.
	if err := os.Mkdir(filepath.Join(g.homes[0], "uid_1000"), 0o700); err != nil {
		t.Fatal(err)
	}
	open() // in the Prolog
	for dir := filepath.Join(g.homes[0], "uid_1000", "job_7"); dir != g.root; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v; its user is to look into it", dir, st.Mode(), err)
		}
	}
	if err := os.Remove(filepath.Dir(filepath.Dir(step))); err == nil {
		t.Error("Slurm could remove the job's cgroup with its last step, and make it anew")
	}
	if err := os.MkdirAll(step, 0o755); err != nil {
		t.Fatal(err)
	}
	want("EPERM EPERM EPERM")
	open(1) // its task has waited for this
	want("EPERM ENXIO EPERM")
	open(0, 2) // another attempt
	want("ENXIO EPERM ENXIO")
	if jobs, err := g.Jobs(); err != nil || len(jobs) != 1 || jobs[0] != job {
		t.Errorf("jobs %v, %v", jobs, err)
	}
	done := func(err error, left int) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		if jobs, err := g.Jobs(); err != nil || len(jobs) != left {
			t.Errorf("jobs %v, %v; want %d", jobs, err, left)
		}
	}
	// Its Prolog was killed, and it is started again without one.
	done(g.Close(job), 1)
	want("EPERM EPERM EPERM")
	done(g.Close(job), 1)
	remove(t, step, filepath.Dir(step))
	if err := os.MkdirAll(step, 0o755); err != nil {
		t.Fatal(err)
	}
	want("EPERM EPERM EPERM")
	open()
	open(2)
	want("EPERM EPERM ENXIO")
	if err := g.Ready(job); err != nil {
		t.Error(err)
	}
	open(2) // by an agent that starts
	done(g.Close(job), 1)
	want("EPERM EPERM EPERM") // what goes on after the end
	done(g.Forget(job), 0)    // a killed slurmstepd has left the step
	open()
	open(2)
	if err := g.Ready(job); err != nil {
		t.Error(err)
	}
	done(g.Close(job), 0)
	// Killed before it could make the cgroup.
	done(g.Close(job), 1)
	if err := os.MkdirAll(step, 0o755); err != nil {
		t.Fatal(err)
	}
	want("EPERM EPERM EPERM")
	remove(t, step, filepath.Dir(step))
	// The hooks of PrologFlags=RunInJob run in a step of the job.
	g.inJob = true
	if err := os.MkdirAll(step, 0o755); err != nil {
		t.Fatal(err)
	}
	open()
	if err := g.Ready(job); err != nil {
		t.Error(err)
	}
	done(g.Close(job), 0)
	want("EPERM EPERM EPERM")
	if jobs, err := g.Unconfined(); err != nil || jobs != nil {
		t.Errorf("not confined: %v, %v", jobs, err)
	}
	g.inJob = false
	open()
	done(g.Forget(job), 0)
	// What an earlier attempt has left does not count for the next.
	open()
	if err := g.Ready(job); err != nil {
		t.Error(err)
	}
	open()
	done(g.Close(job), 1)
	done(g.Forget(job), 0)
}

// Processes that outlive their job open no GPU, also where an agent that started beside the Epilog
// opened some to the job.
func TestV1ForgetBesideProcesses(t *testing.T) {
	_, list := nodes(t, 3)
	g := devices(t)
	job := Job{ID: 7, UID: 1000}
	if err := g.Forget(job); err != nil {
		t.Error("nothing is there: ", err)
	}
	if err := g.Open(job, []int{2}); err != nil {
		t.Fatal(err)
	}
	step := filepath.Join(g.homes[0], "uid_1000", "job_7", "step_0")
	if err := os.Mkdir(step, 0o755); err != nil {
		t.Fatal(err)
	}
	left := exec.Command("sleep", "60")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(step, "cgroup.procs"), []byte(strconv.Itoa(left.Process.Pid)), 0); err != nil {
		t.Error(err)
	}
	if err := g.Forget(job); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("beside a process: %v", err)
	}
	if got := opened(t, list, step, 0); got != "EPERM EPERM EPERM" {
		t.Errorf("what is left opens %s", got)
	}
	left.Process.Kill()
	left.Wait()
	if err := g.Forget(job); err != nil {
		t.Error(err)
	}
}

func remove(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	}
}

// A job that no Prolog has confined loses the GPUs that others lease.
func TestV1Unconfined(t *testing.T) {
	_, list := nodes(t, 3)
	g := devices(t)
	early := filepath.Join(g.homes[0], "uid_1001", "job_5", "step_0")
	if err := os.MkdirAll(early, 0o755); err != nil {
		t.Fatal(err)
	}
	seen := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Watch(ctx, g, func() { seen <- struct{}{} }) }()
	<-seen
	job := Job{ID: 7, UID: 1000}
	if err := errors.Join(g.Open(job, nil), g.Open(job, []int{1})); err != nil {
		t.Fatal(err)
	}
	if got := opened(t, list, early, 0); got != "ENXIO EPERM ENXIO" {
		t.Errorf("a job that is older than the guard opens %s", got)
	}
	if jobs, err := g.Unconfined(); err != nil || len(jobs) != 1 || jobs[0] != (Job{ID: 5, UID: 1001}) {
		t.Errorf("not confined: %v, %v", jobs, err)
	}
	for len(seen) > 0 {
		<-seen
	}
	late := filepath.Join(g.homes[0], "uid_1001", "job_6")
	if err := os.Mkdir(late, 0o755); err != nil {
		t.Fatal(err)
	}
	for { // a look before it may still come
		select {
		case <-seen:
		case <-time.After(time.Minute):
			t.Fatal("a new cgroup is not seen")
		}
		if jobs, err := g.Unconfined(); err == nil && len(jobs) == 2 {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	remove(t, late, early, filepath.Dir(early), filepath.Dir(filepath.Dir(early)))
	if err := g.Forget(job); err != nil {
		t.Error(err)
	}
}

func TestEarly(t *testing.T) {
	dir := t.TempDir()
	jobs := []Job{{ID: 3}, {ID: 4}}
	for _, c := range []struct {
		jobs  []Job
		first bool
		late  int
	}{{jobs[:1], true, 0}, {jobs[:1], false, 0}, {jobs, false, 1}, {nil, false, 0}} {
		first, late, err := Early(dir, c.jobs)
		if err != nil || first != c.first || len(late) != c.late {
			t.Errorf("%v: first %v, late %v, %v", c.jobs, first, late, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.conf"), []byte("CgroupMountpoint="+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := Host{RunDir: dir, Pins: filepath.Join(dir, "pins"), SlurmConf: filepath.Join(dir, "slurm.conf")}
	if err := Undo("none", nil, h); err != nil {
		t.Error(err)
	}
	if first, _, err := Early(dir, jobs); err != nil || !first {
		t.Errorf("after a time without a guard: %v", err)
	}
	if err := os.WriteFile(earlyPath(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, late, err := Early(dir, jobs); err == nil || late != nil {
		t.Errorf("a broken file: %v, %v", late, err)
	}
}

func TestV2(t *testing.T) {
	_, list := nodes(t, 3)
	mount, slice := groups(t, "n1_slurmstepd.scope/job_5/step_0")
	scope := filepath.Join(mount, slice, "n1_slurmstepd.scope")
	early := filepath.Join(scope, "job_5", "step_0")
	h := Host{Node: "n1", RunDir: t.TempDir(), Pins: filepath.Join(t.TempDir(), "carma", "n1")}
	if _, err := findV2(mount, slice, h); !Unavailable(err) {
		t.Errorf("without a BPF file system: %v", err)
	}
	h.Pins = pins(t)
	g, err := findV2(mount, slice, h)
	if err != nil {
		t.Skip(err)
	}
	job := Job{ID: 7, UID: 1000, SLUID: "sABC123"}
	var step string
	want := func(want string) {
		t.Helper()
		if got := opened(t, list, step, 0); got != want {
			t.Errorf("a task in %s opens %s, want %s", step, got, want)
		}
	}
	open := func(minors ...int) {
		t.Helper()
		if err := g.Open(job, minors); err != nil {
			t.Fatal(err)
		}
	}
	if jobs, err := g.Unconfined(); err != nil || len(jobs) != 1 || jobs[0].ID != 5 {
		t.Errorf("not confined: %v, %v", jobs, err)
	}
	step = early
	want("ENXIO ENXIO ENXIO")
	open()
	for _, name := range []string{"job_7", "sABC123"} {
		dir := filepath.Join(scope, name)
		if err := os.Remove(dir); err == nil {
			t.Errorf("%s could be removed with its last step", dir)
		}
		step = filepath.Join(dir, "step_0", "user", "task_0")
		if err := os.MkdirAll(step, 0o755); err != nil {
			t.Fatal(err)
		}
		open()
		want("EPERM EPERM EPERM")
		open(1)
		want("EPERM ENXIO EPERM")
		open(0, 2)
		want("ENXIO EPERM ENXIO")
		for d := step; d != dir; d = filepath.Dir(d) {
			if err := os.Remove(d); err != nil {
				t.Error(err)
			}
		}
	}
	step = early                         // was there before the guard
	want("EPERM EPERM EPERM")            // another job has leased these
	step = filepath.Join(scope, "job_9") // no Prolog has heard of it
	if err := os.Mkdir(step, 0o755); err != nil {
		t.Fatal(err)
	}
	want("EPERM EPERM EPERM")
	os.Remove(step)
	step = filepath.Dir(scope) // not Slurm's
	want("ENXIO ENXIO ENXIO")
	if jobs, err := g.Jobs(); err != nil || len(jobs) != 1 || jobs[0].ID != 7 {
		t.Errorf("jobs %v, %v", jobs, err)
	}
	// As the agent closes it, who knows no SLUID.
	known := Job{ID: 7}
	if err := errors.Join(g.Close(known), g.Close(known)); err != nil {
		t.Error(err)
	}
	// Slurm may make its scope anew. What is pinned then guards nothing.
	step = filepath.Join(scope, "job_9")
	for _, dir := range []string{early, filepath.Dir(early), scope} {
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(step, 0o755); err != nil {
		t.Fatal(err)
	}
	job.ID = 9
	open(2)
	want("EPERM EPERM ENXIO")
	if err := Undo("cgroup", g, h); err != nil {
		t.Error(err)
	}
	want("EPERM EPERM ENXIO")
	if err := Undo("none", nil, h); err != nil {
		t.Error(err)
	}
	settle(func() bool { return opened(t, list, step, 0) == "ENXIO ENXIO ENXIO" })
	want("ENXIO ENXIO ENXIO")
	if err := g.Close(job); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(h.Pins); left != nil {
		t.Errorf("the end of a job brings back %v", left)
	}
}

// pins is a directory in a BPF file system of this test's.
func pins(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=700"); err != nil {
		t.Skipf("mount a BPF file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "carma", "n1")
}

// What is left of jobs that ran when CARMA was removed.
func TestV1Undo(t *testing.T) {
	g := devices(t)
	job := Job{ID: 7, UID: 1000}
	above := userDir(g.homes[0], job.UID)
	step := filepath.Join(jobDir(above, job.ID), "step_0")
	if err := errors.Join(g.Open(job, []int{1}), g.Ready(job), os.Mkdir(step, 0o755),
		makeGroups(filepath.Join(unfinishedDir(above, 8), keeper), 1)); err != nil { // of a Prolog that was killed
		t.Fatal(err)
	}
	if jobs, err := g.Jobs(); err != nil || len(jobs) != 2 {
		t.Errorf("jobs %v, %v", jobs, err)
	}
	if jobs, err := g.Unconfined(); err != nil || jobs != nil {
		t.Errorf("not confined: %v, %v", jobs, err)
	}
	for range 2 {
		if err := g.undo(); err != nil {
			t.Error(err)
		}
		if jobs, err := g.Jobs(); err != nil || jobs != nil {
			t.Errorf("left: %v, %v", jobs, err)
		}
	}
	for d := step; d != g.homes[0]; d = filepath.Dir(d) { // as Slurm does
		remove(t, d)
	}
}

// Whoever holds Slurm's lock, which anybody can take, keeps no job from its start or end.
func TestV1LockHeld(t *testing.T) {
	g := devices(t)
	f, err := os.Open(g.root)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	job := Job{ID: 7, UID: 1000}
	if err := errors.Join(g.Open(job, nil), g.Ready(job), g.Close(job)); err != nil {
		t.Error(err)
	}
	f.Close()
	g.remove(userDir(g.homes[0], job.UID), g.homes[0])
}

// A stopped process that has the guard's lock keeps no hook for ever.
func TestLockHeld(t *testing.T) {
	t.Parallel()
	h := Host{RunDir: t.TempDir()}
	unlock, err := h.lock()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := h.lock()
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it still waits")
	}
	unlock()
	if unlock, err = h.lock(); err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestACL(t *testing.T) {
	dir, list := nodes(t, 2)
	users := map[int][]uint32{1: {1001, 1000, 1001}}
	h := Host{Devices: dir, RunDir: t.TempDir(), Users: func() (map[int][]uint32, error) { return users, nil }}
	g, err := findACL(h, false)
	if err != nil {
		t.Skipf("%v", err)
	}
	for _, c := range []struct {
		users map[int][]uint32
		uid   uint32
		want  string
	}{
		{users, 1000, "EACCES ENXIO"},
		{users, 1001, "EACCES ENXIO"},
		{users, 1002, "EACCES EACCES"},
		{map[int][]uint32{0: {1000}}, 1000, "ENXIO EACCES"},
		{map[int][]uint32{0: {1000}}, 1001, "EACCES EACCES"},
		{nil, 1000, "EACCES EACCES"},
		{nil, 0, "ENXIO ENXIO"},
	} {
		users = c.users
		if err := g.Open(Job{ID: 7, UID: 1000}, nil); err != nil {
			t.Fatal(err)
		}
		if got := opened(t, list, "", c.uid); got != c.want {
			t.Errorf("%v: user %d gets %s, want %s", c.users, c.uid, got, c.want)
		}
	}
	for range 2 {
		if err := Undo("auto", nil, h); err != nil {
			t.Error(err)
		}
		if got := opened(t, list, "", 1002); got != "ENXIO ENXIO" {
			t.Errorf("without a guard a user gets %s", got)
		}
	}
}

func TestDeviceMode(t *testing.T) {
	params := filepath.Join(t.TempDir(), "params")
	if got := deviceMode(params); got != 0o666 {
		t.Errorf("without a driver: %o", got)
	}
	for text, want := range map[string]os.FileMode{
		"DeviceFileUID: 0\nDeviceFileMode: 432\nModifyDeviceFiles: 0\n": 0o660, "DeviceFileMode: 99999\n": 0o666, "": 0o666,
	} {
		if err := os.WriteFile(params, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := deviceMode(params); got != want {
			t.Errorf("%q: %o", text, got)
		}
	}
}

// In a container that may not write the cgroups of the machine, those of another node of its
// name keep no job from its GPUs.
func TestUndoReadOnly(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounts a directory: for root alone")
	}
	dir := t.TempDir()
	groups := filepath.Join(dir, "cgroup")
	for _, job := range []string{"job_7/carma/ready", "job_8/carma", "carma_9/carma"} {
		if err := os.MkdirAll(filepath.Join(groups, "devices", "slurm_n1", "uid_1000", job), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := Host{Node: "n1", SlurmConf: filepath.Join(dir, "slurm.conf"), Devices: dir, RunDir: dir}
	conf := []byte("CgroupMountpoint=" + groups + "\n")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "cgroup.conf"), conf, 0o644),
		os.WriteFile(earlyPath(dir), []byte("[]"), 0o644)); err != nil {
		t.Fatal(err)
	}
	var mounted, undone error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: the thread ends, and what it has mounted
		if mounted = unix.Unshare(unix.CLONE_NEWNS); mounted != nil {
			return
		}
		mounted = errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount(groups, groups, "", unix.MS_BIND, ""),
			unix.Mount("", groups, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		if mounted == nil {
			undone = Undo("acl", acl{h}, h)
		}
	}()
	<-done
	if mounted != nil {
		t.Skipf("nothing can be mounted here: %v", mounted)
	}
	if undone != nil {
		t.Error(undone)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h := Host{Node: "n1", SlurmConf: filepath.Join(dir, "slurm.conf"), Devices: dir}
	find := func(confine string) string {
		g, err := Find(confine, h)
		if g != nil {
			return g.String()
		} else if err != nil && !Unavailable(err) {
			return "fault: " + err.Error()
		}
		return fmt.Sprint(err)
	}
	write("slurm.conf", "TaskPlugin=task/affinity,task/cgroup\n")
	write("cgroup.conf", "CgroupMountpoint="+dir+"\n")
	for _, c := range []struct{ cgroup, confine, want string }{
		{"", "none", "<nil>"},
		{"", "auto", "lacks ConstrainDevices"},
		{"", "acl", "access lists"},
		{"ConstrainDevices=yes\n", "auto", "cgroup.procs: no such file"},
	} {
		write("cgroup.conf", "CgroupMountpoint="+dir+"\n"+c.cgroup)
		if got := find(c.confine); !strings.Contains(got, c.want) {
			t.Errorf("%s with %q: %s", c.confine, c.cgroup, got)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "devices"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("devices/cgroup.procs", "")
	if got := find("cgroup"); got != "cgroup v1" {
		t.Error(got)
	}
	write("slurm.conf", "TaskPlugin=task/affinity\n")
	if got := find("cgroup"); !strings.Contains(got, "TaskPlugin") {
		t.Error(got)
	}
	// What cannot be read is no sign that jobs need not be confined.
	os.Remove(filepath.Join(dir, "cgroup.conf"))
	if err := os.Mkdir(filepath.Join(dir, "cgroup.conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := find("auto"); !strings.HasPrefix(got, "fault: read cgroup.conf") {
		t.Error(got)
	}
}

// What confinement adds to the Prolog of a job with a GPU, and its Epilog: a look at how
// Slurm is set up, the job closed, then opened; and all taken away.
func BenchmarkStart(b *testing.B) {
	own := fmt.Sprintf("carma-test%d", os.Getpid())
	h := Host{Node: own, SlurmConf: filepath.Join(b.TempDir(), "slurm.conf"), RunDir: b.TempDir()}
	var conf strings.Builder
	conf.WriteString("TaskPlugin=task/cgroup\n")
	for i := range 1000 {
		fmt.Fprintf(&conf, "NodeName=gpu%d CPUs=64 RealMemory=512000 Gres=gpu:12,carma:160000\n", i)
	}
	if err := os.WriteFile(h.SlurmConf, []byte(conf.String()), 0o644); err != nil {
		b.Fatal(err)
	}
	h.Pins = pins(b)
	v2 := "/sys/fs/cgroup"
	if !isCgroup2(v2) {
		v2 += "/unified"
	}
	for _, c := range []struct{ name, conf, scope string }{
		{"v1", "ConstrainDevices=yes\n", ""},
		{"v2", "CgroupMountpoint=" + v2 + "\nCgroupSlice=" + own + ".slice\n", v2 + "/" + own + ".slice/slurmstepd.scope"},
	} {
		b.Run(c.name, func(b *testing.B) {
			if err := os.WriteFile(filepath.Join(filepath.Dir(h.SlurmConf), "cgroup.conf"), []byte(c.conf), 0o644); err != nil {
				b.Fatal(err)
			}
			if c.scope != "" {
				if err := os.MkdirAll(c.scope, 0o755); err != nil {
					b.Skip(err)
				}
				defer os.Remove(filepath.Dir(c.scope))
				defer os.Remove(c.scope)
			}
			for b.Loop() {
				g, err := Find("cgroup", h)
				if err != nil {
					b.Skip(err)
				}
				job := Job{ID: 7, UID: 1000}
				if err := errors.Join(g.Open(job, nil), g.Open(job, []int{1}), g.Ready(job), g.Close(job)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A directory in which others than root may rename is no place for what holds jobs to GPUs.
func TestRootsAlone(t *testing.T) {
	dir := t.TempDir()
	for mode, want := range map[os.FileMode]bool{0o700: true, 0o755: true, 0o775: false, 0o777 | os.ModeSticky: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := rootsAlone(dir); (err == nil) != (want && os.Getuid() == 0) {
			t.Errorf("%v: %v", mode, err)
		}
	}
	if err := rootsAlone(filepath.Join(dir, "none")); err != nil {
		t.Error(err)
	}
}

// A slurm.conf in Slurm's own syntax keeps no job waiting (cgroup v1): Include with the modifier %c, slurm.conf(5).
func TestFindWithModifier(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"slurm.conf":                  "ClusterName=hpc\nTaskPlugin=task/cgroup\nInclude nodes-%c.conf\n",
		"nodes-hpc.conf":              "NodeName=n1 Gres=gpu:4\n",
		"cgroup.conf":                 "ConstrainDevices=yes\nCgroupMountpoint=" + dir + "/cgroup\n",
		"cgroup/devices/cgroup.procs": "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	g, err := Find("auto", Host{Node: "n1", SlurmConf: filepath.Join(dir, "slurm.conf"), Devices: dir, RunDir: dir})
	if err != nil || g == nil {
		t.Errorf("%v, %v; jobs wait without end: %v", g, err, !Unavailable(err))
	}
}
