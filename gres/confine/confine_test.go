// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
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
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(nvidiaMajor, uint32(i)))); err != nil {
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
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// devices is a guard on the machine's own cgroups, below a name of this test's.
func devices(t *testing.T) *v1 {
	t.Helper()
	const root = "/sys/fs/cgroup/devices"
	home := filepath.Join(root, "carma-test")
	if isCgroup2(filepath.Dir(root)) {
		t.Skip("this machine has cgroup v2 alone")
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Skipf("no cgroup v1 that can be written: %v", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(home); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left behind: %v", err)
		}
	})
	return &v1{root: root, homes: []string{home}}
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
	if err := g.Close(job); err != nil {
		t.Error(err)
	}
	want("ENXIO EPERM ENXIO") // what goes on after the end is as it was
	os.Remove(step)
	os.Remove(filepath.Dir(step))
	if err := g.Close(job); err != nil {
		t.Error(err)
	}
	if jobs, err := g.Jobs(); err != nil || len(jobs) != 0 {
		t.Errorf("jobs %v, %v", jobs, err)
	}
}

func TestV2(t *testing.T) {
	_, list := nodes(t, 3)
	mount := "/sys/fs/cgroup"
	if !isCgroup2(mount) {
		mount += "/unified" // beside v1, where Slurm does not use it
	}
	scope := filepath.Join(mount, "carma-test.slice", "n1_slurmstepd.scope")
	early := filepath.Join(scope, "job_5", "step_0")
	if err := os.MkdirAll(early, 0o755); err != nil {
		t.Skipf("no cgroup v2 that can be written: %v", err)
	}
	t.Cleanup(func() {
		for _, dir := range []string{early, filepath.Dir(early), scope, filepath.Dir(scope)} {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left behind: %v", err)
			}
		}
	})
	h := Host{Node: "n1", RunDir: t.TempDir(), Pins: filepath.Join(t.TempDir(), "carma", "n1")}
	if _, err := findV2(mount, "carma-test.slice", h); !Unavailable(err) {
		t.Errorf("without a BPF file system: %v", err)
	}
	h.Pins = pins(t)
	g, err := findV2(mount, "carma-test.slice", h)
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
	step = early // was there before the guard
	want("ENXIO ENXIO ENXIO")
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
	// The kernel takes its time to detach it.
	for range 600 {
		if opened(t, list, step, 0) == "ENXIO ENXIO ENXIO" {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
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
	if err := errors.Join(g.Open(job, nil), g.Close(job)); err != nil {
		t.Error(err)
	}
	f.Close()
	g.remove(filepath.Join(g.homes[0], "uid_1000"), g.homes[0])
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
	h := Host{Node: "carma-test", SlurmConf: filepath.Join(b.TempDir(), "slurm.conf"), RunDir: b.TempDir()}
	var conf strings.Builder
	conf.WriteString("TaskPlugin=task/cgroup\n")
	for i := range 1000 {
		fmt.Fprintf(&conf, "NodeName=gpu%d CPUs=64 RealMemory=512000 Gres=gpu:12,carmau0:no_consume:160000\n", i)
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
		{"v2", "CgroupMountpoint=" + v2 + "\nCgroupSlice=carma-test.slice\n", v2 + "/carma-test.slice/slurmstepd.scope"},
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
				if err := errors.Join(g.Open(job, nil), g.Open(job, []int{1}), g.Close(job)); err != nil {
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
