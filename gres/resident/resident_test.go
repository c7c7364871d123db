// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"
	"time"
)

// process is one entry of a proc file system.
type process struct {
	pid, ppid, uid int
	euid           int // as by a set-uid program; 0 with setuid
	setuid         bool
	comm, state    string
	exe            string
	cmdline        string
	cgroup         string
	environ        string
	socket         int // the inode of one that it has open
}

func procOf(t *testing.T, processes []process) Proc {
	t.Helper()
	root := t.TempDir()
	for _, p := range processes {
		if p.state == "" {
			p.state = "S (sleeping)"
		}
		if !p.setuid {
			p.euid = p.uid
		}
		dir := filepath.Join(root, fmt.Sprint(p.pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"status": fmt.Sprintf("Name:\t%s\nUmask:\t0022\nState:\t%s\nPid:\t%d\nPPid:\t%d\nUid:\t%d\t%d\t%d\t%d\n", p.comm,
				p.state, p.pid, p.ppid, p.uid, p.euid, p.euid, p.euid),
			"cmdline": p.cmdline, "cgroup": p.cgroup, "environ": p.environ,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if p.socket != 0 {
			fds := filepath.Join(dir, "fd")
			if err := errors.Join(os.Mkdir(fds, 0o755), os.Symlink("/dev/null", filepath.Join(fds, "0")),
				os.Symlink(fmt.Sprintf("socket:[%d]", p.socket), filepath.Join(fds, "6"))); err != nil {
				t.Fatal(err)
			}
		}
		if p.exe != "" {
			if err := os.Symlink(p.exe, filepath.Join(dir, "exe")); err != nil {
				t.Fatal(err)
			}
		}
	}
	return Proc{Root: root}
}

const (
	stepd   = "/usr/sbin/slurmstepd"
	control = "/usr/bin/nvidia-cuda-mps-control"
)

func TestOwner(t *testing.T) {
	p := procOf(t, []process{
		{pid: 1, comm: "systemd", cgroup: "0::/init.scope\n"},
		{pid: 10, ppid: 1, comm: "slurmstepd", exe: stepd, cmdline: "slurmstepd: [12.batch]\x00"},
		{pid: 11, ppid: 10, uid: 1000, comm: "job.sh"},
		{pid: 12, ppid: 11, uid: 1000, comm: "python (x) S 1", environ: "A=1\x00SLURM_JOB_ID=99\x00"},
		{pid: 13, ppid: 12, comm: "sudo"},
		{pid: 20, ppid: 1, uid: 1000, comm: "python",
			cgroup: "0::/system.slice/slurmstepd.scope/job_34/step_0/user/task_0\n"},
		{pid: 21, ppid: 1, uid: 1000, comm: "python", cgroup: "4:devices:/slurm/uid_1000/job_35/step_batch\n0::/\n"},
		{pid: 22, ppid: 1, uid: 1001, comm: "python", cgroup: "4:devices:/slurm/uid_1000/job_35/step_batch\n0::/\n"},
		{pid: 23, ppid: 1, uid: 1000, setuid: true, comm: "su",
			cgroup: "4:devices:/slurm/uid_1000/job_35/step_batch\n0::/\n"},
		{pid: 24, ppid: 1, uid: 1000, comm: "python", cgroup: "0::/user.slice/user-1000.slice/user@1000.service/job_36/x\n"},
		{pid: 30, ppid: 1, uid: 1000, comm: "python", environ: "SLURM_JOB_ID=7\x00"},
		{pid: 31, ppid: 1, uid: 1000, comm: "python", environ: "XSLURM_JOB_ID=7\x00SLURM_JOB_ID=x\x00"},
		// What a user can call slurmstepd: a process by name and title, a file, and root's effective uid.
		{pid: 40, ppid: 1, uid: 1000, comm: "slurmstepd", exe: "/home/u/slurmstepd", cmdline: "slurmstepd: [13.batch]\x00"},
		{pid: 41, ppid: 40, uid: 1000, comm: "python"},
		{pid: 42, ppid: 1, uid: 1000, setuid: true, comm: "slurmstepd", exe: stepd, cmdline: "slurmstepd: [14.batch]\x00"},
		{pid: 43, ppid: 42, uid: 1000, comm: "python"},
		{pid: 44, ppid: 1, comm: "slurmstepd", exe: "/usr/bin/sudo", cmdline: "slurmstepd: [15.batch]\x00"},
		{pid: 45, ppid: 44, uid: 1000, comm: "python"},
		{pid: 46, ppid: 1, comm: "slurmstepd", exe: "/usr/sbin/slurmstepd-wlm (deleted)", cmdline: "slurmstepd: [16.0]\x00"},
		{pid: 47, ppid: 46, uid: 1000, comm: "python"},
		{pid: 50, ppid: 1, comm: "nvidia-cuda-mps", exe: control},
		{pid: 51, ppid: 50, uid: 1000, comm: "exe"},
		{pid: 60, ppid: 1, uid: 1000, comm: "nvidia-cuda-mps", exe: control},
		{pid: 61, ppid: 60, uid: 1000, comm: "nvidia-cuda-mps"},
		{pid: 62, ppid: 1, uid: 1000, setuid: true, comm: "nvidia-cuda-mps", exe: control},
		{pid: 63, ppid: 62, uid: 1000, comm: "nvidia-cuda-mps"},
		{pid: 64, ppid: 1, comm: "nvidia-cuda-mps", exe: "/usr/bin/sudo"},
		{pid: 65, ppid: 64, uid: 1000, comm: "nvidia-cuda-mps"},
		{pid: 70, ppid: 10, uid: 1000, comm: "python", state: "Z (zombie)"},
		{pid: 80, ppid: 81, uid: 1000, comm: "a"},
		{pid: 81, ppid: 80, uid: 1000, comm: "b"},
	})
	for pid, want := range map[int]Owner{
		10: {}, // a slurmstepd is above its job's processes
		11: {JobID: 12, UID: 1000},
		12: {JobID: 12, UID: 1000}, // the stepd above it counts, not its environment
		13: {JobID: 12},
		20: {JobID: 34, UID: 1000},
		21: {JobID: 35, UID: 1000},
		22: {UID: 1001},            // another user's, whatever brought it there
		23: {JobID: 35, UID: 1000}, // the real uid counts
		24: {UID: 1000},
		30: {JobID: 7, UID: 1000, Claimed: true},
		31: {UID: 1000, Claimed: true},
		41: {UID: 1000},
		43: {UID: 1000},
		45: {UID: 1000},
		47: {JobID: 16, UID: 1000},
		51: {UID: 1000, MPSServer: true},
		61: {UID: 1000},
		63: {UID: 1000},
		65: {UID: 1000},
		70: {Gone: true},
		80: {UID: 1000}, // a loop that a race can show
		99: {Gone: true},
	} {
		if got := p.Owner(pid); got != want {
			t.Errorf("%d: got %+v, want %+v", pid, got, want)
		}
	}
}

func TestOwnerOf(t *testing.T) {
	for _, c := range []struct {
		o    Owner
		want bool // of job 7 of user 1000
	}{
		{Owner{JobID: 7, UID: 1000}, true},
		{Owner{JobID: 7, UID: 1000, Claimed: true}, true},
		{Owner{JobID: 7}, true}, // sudo in the job
		{Owner{JobID: 7, Claimed: true}, false},
		{Owner{JobID: 7, UID: 1001}, false},
		{Owner{JobID: 7, UID: 1001, Claimed: true}, false},
		{Owner{JobID: 8, UID: 1000}, false},
		{Owner{UID: 1000}, false},
		{Owner{Gone: true}, false},
	} {
		if got := c.o.Of(7, 1000); got != c.want {
			t.Errorf("%+v: %v, want %v", c.o, got, c.want)
		}
	}
	if (Owner{UID: 1000}).Of(0, 1000) {
		t.Error("a process of no job is one of a job without a number")
	}
}

func TestStepds(t *testing.T) {
	p := procOf(t, []process{
		{pid: 10, ppid: 1, comm: "slurmstepd", exe: stepd, cmdline: "slurmstepd: [12.batch]\x00"},
		{pid: 11, ppid: 1, comm: "slurmstepd", exe: stepd, cmdline: "slurmstepd: [12.extern]\x00"},
		{pid: 12, ppid: 1, comm: "slurmstepd", exe: stepd, cmdline: "slurmstepd: [15.0 stepmgr]\x00"},
		{pid: 13, ppid: 1, uid: 1000, comm: "slurmstepd", exe: stepd, cmdline: "slurmstepd: [16.0]\x00"},
		{pid: 14, ppid: 1, comm: "slurmstepd", exe: stepd, cmdline: "/usr/sbin/slurmstepd\x00"},
		{pid: 15, ppid: 1, uid: 1000, setuid: true, comm: "slurmstepd", exe: stepd, cmdline: "slurmstepd: [17.0]\x00"},
		{pid: 16, ppid: 1, comm: "slurmstepd", exe: "/usr/bin/sudo", cmdline: "slurmstepd: [18.0]\x00"},
	})
	got, err := p.Stepds()
	if want := (map[uint32]bool{12: true, 15: true}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

// Several nodes, of several clusters, may be on one machine, and have jobs of the same ids.
func TestStepdsOfThisNode(t *testing.T) {
	var processes []process
	unix := "Num       RefCount Protocol Flags    Type St Inode Path\n0000: 00000003 00000000 00000000 0001 03 99\n"
	for i, path := range []string{
		"/spool/n1/n1_1.4294967291", "/spool/n2/n2_2.0", "/other/n1/n1_3.0", "/spool/n1/n1_4.0.1", "/spool/n1/n1_2_5.0",
		"/spool/n1/n10_6.0", "/run/another", "/spool/n1/n1_8.0",
	} {
		socket := 100 + i
		processes = append(processes, process{pid: socket, ppid: 1, comm: "slurmstepd", exe: stepd,
			cmdline: fmt.Sprintf("slurmstepd: [%d.0]\x00", i+1), socket: socket})
		unix += fmt.Sprintf("0000: 00000002 00000000 00010000 0001 01 %d %s\n", socket, path)
	}
	processes = append(processes, process{pid: 200, ppid: 1, comm: "slurmstepd", exe: stepd, // as it starts
		cmdline: "slurmstepd: [20.0]\x00"})
	p := procOf(t, processes)
	os.Mkdir(filepath.Join(p.Root, "net"), 0o755)
	if err := os.WriteFile(filepath.Join(p.Root, "net", "unix"), []byte(unix), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		node, spool string
		want        map[uint32]bool
	}{
		{"n1", "/spool/n1", map[uint32]bool{1: true, 4: true, 7: true, 8: true, 20: true}},
		{"n1", "/spool/n1/", map[uint32]bool{1: true, 4: true, 7: true, 8: true, 20: true}},
		{"n1", "", map[uint32]bool{1: true, 3: true, 4: true, 7: true, 8: true, 20: true}},
		{"n2", "/spool/n2", map[uint32]bool{2: true, 7: true, 20: true}},
	} {
		p.Node, p.Spool = c.node, c.spool
		if got, err := p.Stepds(); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q in %q: got %v, %v, want %v", c.node, c.spool, got, err, c.want)
		}
	}
}

// The real /proc: this process runs under no slurmstepd.
func TestOwnerOfMyself(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "")
	o := Proc{Root: "/proc"}.Owner(os.Getpid())
	if o.Gone || o.UID != uint32(os.Getuid()) || o.MPSServer {
		t.Errorf("got %+v", o)
	}
}

// A process in a container of a user has an id of the container's; it is the user's.
func TestOwnerInUserNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: only root can give a user namespace foreign ids")
	}
	start := func(credential *syscall.Credential, name string, args ...string) int {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		if err := cmd.Start(); err != nil {
			t.Skipf("not tried: %v", err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd.Process.Pid
	}
	const user = 54321
	proc := Proc{Root: "/proc"}
	ours, _ := os.Readlink("/proc/self/ns/user")
	until := func(pid int, done func() bool) {
		t.Helper()
		for i := 0; !done(); i++ {
			if o := proc.Owner(pid); o.Gone || i > 6000 {
				t.Skipf("not tried: no user namespace here (%+v)", o)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	maker := start(&syscall.Credential{Uid: user, Gid: user}, "unshare", "-U", "sleep", "600")
	until(maker, func() bool {
		its, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", maker))
		return its != ours
	})
	for _, file := range []string{"uid_map", "gid_map"} {
		err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", maker, file), []byte("0 100000 10\n"), 0)
		if errors.Is(err, fs.ErrPermission) { // root in a container: no CAP_SYS_ADMIN (user_namespaces(7))
			t.Skipf("not tried: root may give no ids here: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	inside := start(nil, "nsenter", "-U", "-t", fmt.Sprint(maker), "-S", "5", "-G", "5", "sleep", "600")
	until(inside, func() bool { st, ok := proc.stat(inside); return ok && st.uid == 100005 })
	for _, pid := range []int{maker, inside} {
		if o := proc.Owner(pid); o.UID != user {
			t.Errorf("got %+v", o)
		}
	}
}
