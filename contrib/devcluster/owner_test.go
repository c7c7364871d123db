// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The cgroup that slurmd made tells whose a process is, though its parent is init and
// its environment is silent. A cgroup of another making, named like a job's, tells
// nothing, nor do a process's name and environment.
func TestOwners(t *testing.T) {
	needsCgroups(t)
	c := up(t, "--nodes", "1")
	c.cgroups("Alloc,Contain")
	script := "#SBATCH --gres=gpu:1\n#CARMA mem=8G\necho gpu=$CUDA_VISIBLE_DEVICES\n" +
		"(setsid env -u SLURM_JOB_ID simjob --mem 4G --smact 10 --ramp 0s --duration 1h </dev/null &)\nsleep 1h\n"
	id := c.sbatch(alice, "", script)
	uuid := c.gpu(id)
	gpu := func() string {
		for _, g := range c.status("n1") {
			if g.UUID == uuid {
				return fmt.Sprintf("used %v, closed %q", g.UsedMiB > 4000, g.Closed)
			}
		}
		return "no such GPU"
	}
	c.eventually(gpu, `^used true, closed ""$`)

	hierarchy := c.dir + "/cgroup/freezer"
	if cgroup2() {
		hierarchy = "/sys/fs/cgroup"
	}
	lab := filepath.Join(hierarchy, filepath.Base(c.dir), "job_"+id)
	if err := os.MkdirAll(lab, 0o755); err != nil {
		t.Fatal(err)
	}
	run := "echo $$ >" + lab + "/cgroup.procs; exec runuser -u " + bob + " -- env SLURM_JOB_ID=" + id +
		" SIMGPU_STATE=" + c.dir + "/simgpu/n1 CUDA_VISIBLE_DEVICES=" + uuid +
		" simjob --mem 1G --smact 1 --ramp 0s --duration 1h"
	stranger := exec.Command("bash", "-c", run)
	stranger.Env = append(os.Environ(), c.env...)
	stranger.Dir = filepath.Join(c.dir, "jobs")
	var said strings.Builder
	stranger.Stdout, stranger.Stderr = &said, &said
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.sh("", "kill -9 $(cat "+lab+"/cgroup.procs); true")
		stranger.Wait()
		c.eventually(func() string {
			os.Remove(lab)
			return fmt.Sprint(os.Remove(filepath.Dir(lab)))
		}, "nil|no such")
		if t.Failed() {
			t.Logf("the stranger said: %s", said.String())
		}
	})
	c.eventually(gpu, `closed "1 process(es that belong| that belongs) to no job"$`)
}
