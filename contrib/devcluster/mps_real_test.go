// SPDX-License-Identifier: Apache-2.0

//go:build integration && mps

package devcluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// NVIDIA's own control daemon, as far as it goes without a GPU: it starts no server. Jobs
// run all the same, without MPS, and are told apart; a daemon that is killed comes back,
// and one that nobody uses is closed to all.
func TestRealMPS(t *testing.T) {
	c := up(t, "--nodes", "1", "--real-mps")
	daemons := func() string { return c.sh("", "pgrep -fc '^"+c.dir+"/lib/nvidia-cuda-mps-control -d' || true") }
	c.eventually(daemons, "^4$")
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\necho $CUDA_MPS_PIPE_DIRECTORY\n"+
		"exec simjob --mem 2G --smact 5 --ramp 0s --duration 10h\n")
	c.eventually(func() string { return c.hookLog(id) }, "no server for user")
	c.eventually(func() string { return c.job(id, "%T") }, "RUNNING")
	c.eventually(func() string { return c.leases("n1") }, "^"+id+"$")
	c.eventually(func() string {
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
		return string(text)
	}, "/mps/GPU-")
	pipe := strings.TrimSpace(c.output(id))
	says := func(user, command string) string {
		out, stderr, _ := c.run(user, "export CUDA_MPS_PIPE_DIRECTORY="+pipe+
			"; echo "+command+" | timeout 20 "+c.dir+"/lib/nvidia-cuda-mps-control; echo status $?")
		return out + stderr
	}
	if got := says(alice, "get_default_active_thread_percentage"); got != "100.0\nstatus 0\n" {
		t.Errorf("alice gets %q", got)
	}
	if got := says(bob, "get_server_list"); !strings.Contains(got, "Cannot find MPS control daemon process") {
		t.Errorf("bob gets %q", got)
	}
	c.sh("", "pkill -9 -f '^"+c.dir+"/lib/nvidia-cuda-mps-control -d'")
	c.eventually(daemons, "^4$")
	// Its directory is open to alice as before.
	c.eventually(func() string { return says(alice, "get_server_list") }, "^status 0\n$")
	c.sh(alice, "scancel "+id)
	c.eventually(func() string { return says(alice, "get_server_list") }, "Cannot find")
	ended := c.sbatch(bob, "", train("4G", "1s"))
	c.ends(ended, "COMPLETED")
	c.noDrain()
}
