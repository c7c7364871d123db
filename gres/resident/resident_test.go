// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// process is one entry of a proc file system.
type process struct {
	pid, ppid, uid int
	comm, state    string
	cmdline        string
	cgroup         string
	environ        string
}

func procOf(t *testing.T, processes []process) Proc {
	t.Helper()
	root := t.TempDir()
	for _, p := range processes {
		if p.state == "" {
			p.state = "S (sleeping)"
		}
		dir := filepath.Join(root, fmt.Sprint(p.pid))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"status":  fmt.Sprintf("Name:\t%s\nUmask:\t0022\nState:\t%s\nPid:\t%d\nPPid:\t%d\nUid:\t%d\t%d\t%d\t%d\n", p.comm, p.state, p.pid, p.ppid, p.uid, p.uid, p.uid, p.uid),
			"cmdline": p.cmdline, "cgroup": p.cgroup, "environ": p.environ,
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	return Proc{root}
}

func TestOwner(t *testing.T) {
	p := procOf(t, []process{
		{pid: 1, comm: "systemd"},
		{pid: 10, ppid: 1, comm: "slurmstepd", cmdline: "slurmstepd: [12.batch]\x00"},
		{pid: 11, ppid: 10, uid: 1000, comm: "job.sh"},
		{pid: 12, ppid: 11, uid: 1000, comm: "python (x) S 1", environ: "A=1\x00SLURM_JOB_ID=99\x00"},
		{pid: 20, ppid: 1, uid: 1000, comm: "python", cgroup: "0::/system.slice/slurmstepd.scope/job_34/step_0/user/task_0\n"},
		{pid: 21, ppid: 1, uid: 1000, comm: "python", cgroup: "4:devices:/slurm/uid_1000/job_35/step_batch\n0::/\n"},
		{pid: 22, ppid: 1, uid: 1000, comm: "python", cgroup: "0::/system.slice/slurmstepd.scope/job_36/step_0/user/task_0/job_99\n"},
		{pid: 30, ppid: 1, uid: 1000, comm: "python", environ: "SLURM_JOB_ID=7\x00"},
		{pid: 31, ppid: 1, uid: 1000, comm: "python", environ: "XSLURM_JOB_ID=7\x00SLURM_JOB_ID=x\x00"},
		{pid: 40, ppid: 1, uid: 1000, comm: "slurmstepd", cmdline: "slurmstepd: [13.batch]\x00"},
		{pid: 41, ppid: 40, uid: 1000, comm: "python"},
		{pid: 50, ppid: 1, comm: "nvidia-cuda-mps"},
		{pid: 51, ppid: 50, uid: 1000, comm: "exe"},
		{pid: 60, ppid: 1, uid: 1000, comm: "nvidia-cuda-mps"},
		{pid: 61, ppid: 60, uid: 1000, comm: "nvidia-cuda-mps"},
		{pid: 70, ppid: 10, uid: 1000, comm: "python", state: "Z (zombie)"},
		{pid: 80, ppid: 81, uid: 1000, comm: "a"},
		{pid: 81, ppid: 80, uid: 1000, comm: "b"},
	})
	for pid, want := range map[int]Owner{
		11: {JobID: 12, UID: 1000},
		12: {JobID: 12, UID: 1000}, // the stepd above it counts, not its environment
		20: {JobID: 34, UID: 1000},
		21: {JobID: 35, UID: 1000},
		22: {JobID: 36, UID: 1000}, // the outermost cgroup is slurmd's
		30: {JobID: 7, UID: 1000, Claimed: true},
		31: {UID: 1000, Claimed: true},
		41: {UID: 1000}, // a user's process can call itself slurmstepd
		51: {UID: 1000, MPSServer: true},
		61: {UID: 1000}, // and MPS
		70: {Gone: true},
		80: {UID: 1000}, // a loop that a race can show
		99: {Gone: true},
	} {
		if got := p.Owner(pid); got != want {
			t.Errorf("%d: got %+v, want %+v", pid, got, want)
		}
	}
}

func TestStepds(t *testing.T) {
	p := procOf(t, []process{
		{pid: 10, ppid: 1, comm: "slurmstepd", cmdline: "slurmstepd: [12.batch]\x00"},
		{pid: 11, ppid: 1, comm: "slurmstepd", cmdline: "slurmstepd: [12.extern]\x00"},
		{pid: 12, ppid: 1, comm: "slurmstepd", cmdline: "slurmstepd: [15.0]\x00"},
		{pid: 13, ppid: 1, uid: 1000, comm: "slurmstepd", cmdline: "slurmstepd: [16.0]\x00"},
		{pid: 14, ppid: 1, comm: "slurmstepd", cmdline: "/usr/sbin/slurmstepd\x00"},
	})
	got, err := p.Stepds()
	if want := (map[uint32]bool{12: true, 15: true}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

// The real /proc: this process runs under no slurmstepd.
func TestOwnerOfMyself(t *testing.T) {
	t.Setenv("SLURM_JOB_ID", "")
	o := Proc{"/proc"}.Owner(os.Getpid())
	if o.Gone || o.UID != uint32(os.Geteuid()) || o.MPSServer {
		t.Errorf("got %+v", o)
	}
}
