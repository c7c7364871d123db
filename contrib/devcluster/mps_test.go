// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Jobs on several GPUs share them through one MPS daemon, which comes with the
// first and ends after the last, and are held to their memory on each GPU.
func TestSharedGPUPairs(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	two := func(mem, lines string) string {
		return fmt.Sprintf("#SBATCH --gres=gpu:2\n#CARMA mem=%s\necho pipe=$CUDA_MPS_PIPE_DIRECTORY "+
			"limit=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\n%s", mem, lines)
	}
	long := "exec simjob --gpus 2 --mem 8G --smact 20 --ramp 0s --duration 10h\n"
	pipe := func(id string) string {
		c.eventually(func() string {
			text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
			return string(text)
		}, `pipe=\S+set-\S+ limit=0=\d+M,1=\d+M`)
		word, _, _ := strings.Cut(c.output(id), " ")
		return strings.TrimPrefix(word, "pipe=")
	}
	first := c.sbatch(alice, "", two("10G", long))
	second := c.sbatch(alice, "", two("10G", long))
	a, b := pipe(first), pipe(second)
	if a == b || filepath.Dir(a) != filepath.Join(c.dir, "run", "n1", "mps") {
		t.Errorf("pairs of idle GPUs have the daemons %s and %s", a, b)
	}
	c.eventually(func() string { return c.clients("n1") }, "^4$") // two jobs on two GPUs each

	// All GPUs are in use: a pair is shared, also by a job on one GPU.
	third := c.sbatch(alice, "", two("10G", "exec simjob --gpus 2 --mem 8G --smact 20 --ramp 0s --duration 20s\n"))
	if p := pipe(third); p != a && p != b {
		t.Errorf("the third job has a daemon of its own: %s", p)
	}
	one := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY "+
		"limit=$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\nexec simjob --mem 2G --smact 5 --ramp 0s --duration 1s\n")
	if p := pipe(one); p != a && p != b {
		t.Errorf("the job on one GPU of a pair has the daemon %s", p)
	}
	c.ends(one, "COMPLETED")

	// Another user gets none of them, and is told so.
	other := c.sbatch(bob, "", two("4G", "simjob --gpus 2 --mem 2G --smact 5 --ramp 0s --duration 1s\n"))
	c.eventually(func() string { return c.hookLog(other) + c.job(other, " %r") }, "leased to another user|Constraints")

	// One that takes more than it booked on its second GPU fails by its limit;
	// those beside it do not notice.
	over := c.sbatch(alice, "--no-requeue", two("4G", "simjob --gpus 2 --mem 9G --smact 5 --ramp 0s --duration 5s\n"))
	c.ends(over, "FAILED")
	if r := c.report(over); !r.OOM {
		t.Errorf("report of the overshooter: %+v", r)
	}
	c.ends(third, "COMPLETED")
	if got := c.job(first+","+second, "%T"); got != "RUNNING\nRUNNING" {
		t.Errorf("the others are %s", got)
	}
	c.sh(alice, "scancel "+first+" "+second)
	c.ends(other, "COMPLETED")
	c.eventually(func() string {
		return strings.Join(glob(t, filepath.Join(c.dir, "run", "n1", "mps", "set-*.gpus")), " ")
	}, "^$")
	c.noDrain()

	// What the daemons write is on the disk, for root alone.
	logs := filepath.Join(c.dir, "log", "hooks.n1-mps")
	if got := len(glob(t, filepath.Join(logs, "*", "control.log"))); got < 6 { // four GPUs, two pairs
		t.Errorf("%d daemons have a log", got)
	}
	if got := glob(t, filepath.Join(c.dir, "run", "n1", "mps", "*", "*.log")); len(got) > 0 {
		t.Errorf("logs in the run directory: %v", got)
	}
	if out, _, err := c.run(alice, "ls "+logs); err == nil {
		t.Errorf("a user reads %s: %s", logs, out)
	}
	full := glob(t, filepath.Join(logs, "GPU-*", "control.log"))[0]
	c.sh("", "head -c 100M /dev/zero >>"+full)
	c.eventually(func() string { return c.sh("", "stat -c %s "+full+".old; du -m "+filepath.Dir(full)) },
		`^1048576\n[1-8]\t`)
	c.sh("", "echo get_server_list | CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(c.dir, "run", "n1", "mps",
		filepath.Base(filepath.Dir(full)))+
		" "+c.dir+"/lib/nvidia-cuda-mps-control")
	c.eventually(func() string { return c.sh("", "tail -c 60 "+full) }, "UI closed") // it writes on
}

// A daemon that was killed has left its sockets: a job that comes then is its successor's
// client. The daemon's directory is open to the user of the GPU's jobs alone.
func TestKilledMPSDaemons(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1")
	c.eventually(func() string {
		return c.sh("", "find "+c.dir+"/run/n1/mps -name control | wc -l")
	}, "^4$")
	daemons := func() []string {
		return strings.Fields(c.sh("", "pgrep -f '^"+c.dir+"/lib/nvidia-cuda-mps-control -d' || true"))
	}
	killed := daemons()
	c.sh("", "pkill -9 -f '^"+c.dir+"/lib/nvidia-cuda-mps-control -d'")
	c.eventually(func() string { // the successors are there, among the sockets of the killed
		return fmt.Sprint(len(slices.DeleteFunc(daemons(), func(pid string) bool { return slices.Contains(killed, pid) })))
	}, "^4$")
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\necho pipe=$CUDA_MPS_PIPE_DIRECTORY\n"+
		"exec simjob --mem 2G --smact 5 --ramp 0s --duration 10h\n")
	c.eventually(func() string { return c.clients("n1") }, "^1$")
	pipe := strings.TrimPrefix(c.output(id), "pipe=")
	pipe = strings.TrimSpace(pipe)
	reaches := func(user string) string {
		out, _, _ := c.run(user, "test -w "+pipe+"/control && test -w "+pipe+"/log && echo yes || echo no")
		return strings.TrimSpace(out)
	}
	if a, b := reaches(alice), reaches(bob); a != "yes" || b != "no" {
		t.Errorf("%s is reached by alice: %s, by bob: %s", pipe, a, b)
	}
	c.sh(alice, "scancel "+id)
	c.eventually(func() string { return reaches(alice) }, "no")
	c.noDrain()
}

// clients counts the MPS clients on a node's GPUs.
func (c *cluster) clients(node string) string {
	n := 0
	for _, g := range c.status(node) {
		n += g.MPSClients
	}
	return fmt.Sprint(n)
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return files
}
