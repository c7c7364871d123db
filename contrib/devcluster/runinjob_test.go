// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// cgroups gives a cluster proctrack/cgroup and task/cgroup, which constrains
// devices, and PrologFlags.
func (c *cluster) cgroups(prologFlags string) {
	c.t.Helper()
	lockCgroups(c.t)
	path := filepath.Join(c.dir, "etc", "slurm.conf")
	text, err := os.ReadFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	conf := strings.NewReplacer("proctrack/linuxproc", "proctrack/cgroup", "task/none", "task/cgroup",
		"PrologFlags=Alloc\n", "PrologFlags="+prologFlags+"\n").Replace(string(text))
	cgroup := "CgroupPlugin=cgroup/v1\nCgroupMountpoint=" + c.dir + "/cgroup\nConstrainDevices=yes\n"
	if cgroup2() {
		cgroup = "CgroupPlugin=cgroup/v2\nCgroupMountpoint=/sys/fs/cgroup\nConstrainDevices=yes\n"
	}
	for file, text := range map[string]string{path: conf, filepath.Join(c.dir, "etc", "cgroup.conf"): cgroup} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			c.t.Fatal(err)
		}
	}
	c.restart("slurmctld")
	c.restart("slurmd")
	c.eventually(func() string { return c.sh("", "sinfo -h -p plain -o %T") }, "^idle")
}

// lockCgroups waits until no other test has a cluster with cgroups v2, named after the nodes: n1 in all
// clusters. In v1 each cluster has separate cgroups (cgroups.sh).
func lockCgroups(t *testing.T) {
	t.Helper()
	if !cgroup2() {
		return
	}
	lock, err := os.OpenFile("/run/carma-devcluster.cgroups", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// cgroup2 tells whether the machine has cgroup v2 alone.
func cgroup2() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.procs")
	return err == nil
}

// inCgroups tells whether the cluster's jobs are in cgroups: not in contrib/bare.sh, where root may make none.
func (c *cluster) inCgroups() bool {
	_, err := os.Stat(filepath.Join(c.dir, "cgroup"))
	return cgroup2() || err == nil
}

func needsCgroups(t *testing.T) {
	t.Helper()
	if cgroup2() {
		return
	}
	for _, controller := range []string{"freezer", "devices"} {
		dir, err := os.MkdirTemp(filepath.Join("/sys/fs/cgroup", controller), "carma-test")
		if err != nil {
			t.Skipf("no cgroup v1 that can be written: %v", err)
		}
		os.Remove(dir)
	}
}

// slurmstepd runs the hooks inside the job's cgroup, and tells the Epilog no exit
// status: a job that ran out of memory is requeued all the same.
func TestRunInJob(t *testing.T) {
	if r := release(t); r < 2405 {
		t.Skipf("PrologFlags=RunInJob came with Slurm 24.05, this is %d.%02d", r/100, r%100)
	}
	needsCgroups(t)
	c := up(t, "--nodes", "1")
	c.cgroups("Alloc,Contain,RunInJob")
	fillers, complete := c.fill()
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n"+nearLimit+"srun simjob --mem 12G --smact 10 --ramp 0s "+
		"--duration 1s\n")
	fails := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nexit 3\n")
	c.ends(fails, "FAILED")
	c.eventually(func() string { return c.job(id, "%P") }, "gpu-recovery")
	complete()
	c.ends(id, "COMPLETED")
	for _, f := range fillers {
		c.ends(f, "COMPLETED")
	}
	if r := c.report(id); !r.OOM || r.RequeuedTo != "gpu-recovery" || r.Attempts != 2 || r.State != "COMPLETED" {
		t.Errorf("report %+v", r)
	}
	if r := c.report(fails); r.State != "FAILED" || r.OOM {
		t.Errorf("report %+v", r)
	}
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.noDrain()
}
