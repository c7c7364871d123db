// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A cluster of Ray in a job: the head and a worker on each further node are steps in the background, and the
// program on the cluster is a step beside the head's. ray stands for Ray's program.
const rayScript = `#!/bin/bash
#SBATCH --job-name=ray --nodes=2 --ntasks-per-node=1 --gpus-per-task=1
ray() { srun --nodes=1 --ntasks=1 --overlap -w "$1" "${@:2}"; }
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
for node in "${nodes[@]}"; do
	ray "$node" ./work &
done
ray "${nodes[0]}" bash -c 'echo "driver=$CUDA_VISIBLE_DEVICES"'
wait
`

// A portal's script: a login shell sets up a session, starts the session's server and waits for the server.
const portalScript = `#!/bin/bash -l
export host=$(hostname) port=8888 password=secret
cd .
session() { module() { :; }; module load jupyter; ./work; }
session &
pid=$!
trap 'kill $pid' TERM
wait $pid
`

// tools are how jobs get to slurmctld without a #CARMA line of the user's: %s is an option, or nothing. The
// variable, if any, is in the environment of all tools. ID tells a tool's files from another tool's.
func tools(c *cluster) map[string]string {
	// script makes a pseudo terminal; the typing begins once the shell is there.
	c.file(alice, "rc", "touch typing; PS1=\n")
	c.file(alice, "steps.sh", "srun ./work &\nsrun --overlap bash -c 'echo step=$CUDA_VISIBLE_DEVICES'\nwait\n")
	const gpu = " --gres=gpu:1 "
	list := map[string]string{
		"--wrap": "sbatch -W -o ID %s" + gpu + "--wrap ./work; cat ID",
		"ray":    "sbatch -W -o ID %s " + c.file(alice, "ray.sh", rayScript) + "; cat ID",
		"open ondemand": "sbatch --parsable -W -J sys/dashboard/jupyter -D $PWD -o ID --export=NONE %s" + gpu +
			"<" + c.file(alice, "portal.sh", portalScript) + "; cat ID",
		"components": "sbatch -W -o ID %s" + gpu + ":" + gpu + c.file(alice, "het.sh", "#!/bin/bash\nsrun --het-group=0,1 "+
			"./work\n") + "; cat ID",
		"srun": "srun %s" + gpu + "./work",
		"srun --pty": "rm -f typing; { until [ -e typing ]; do sleep 0.1; done; echo tty; echo ./work; echo exit; } | " +
			"script -qec 'srun %s" + gpu + "--pty bash --noprofile --rcfile rc -i' /dev/null",
		"salloc": "salloc %s" + gpu + "bash ./steps.sh",
	}
	for name, text := range wrapped("./work") {
		list[name] = "sbatch -W -o ID %s" + gpu + c.file(alice, strings.ReplaceAll(name, " ", "")+".sh",
			fmt.Sprintf(text, 1, 1)) + "; cat ID"
	}
	return list
}

// Each tool's job shares a GPU with a running job: by option, by variable, and by the partition's default for jobs
// that say nothing.
func TestToolsShare(t *testing.T) {
	takesMinutes(t)
	needsServer(t)
	c := up(t, "--spank", "--time-scale", "10")
	c.settings(map[string]string{"partition.gpu.directive": `"mem=5G smact=10"`, "placement.settle": `"0s"`})
	c.file(alice, "work", "#!/bin/bash\necho job=$SLURM_JOB_ID gpu=$CUDA_VISIBLE_DEVICES\n"+
		"exec "+c.dir+"/bin/simjob --mem 2G --smact 5 --ramp 0s --duration 20s\n")
	c.eventually(func() string { return c.adminComment(c.sbatch(alice, "--gres=gpu:1", "true\n")) }, `"reserve_mib":5120`)
	// A GPU of each node is left to share.
	var beside []string
	for _, node := range []string{"n1", "n2"} {
		rest := c.sbatch(bob, "-o /dev/null -w "+node, "#SBATCH --gres=gpu:3\n#CARMA policy=exclusive\nsleep 1h\n")
		c.eventually(func() string { return c.job(rest, "%T") }, "RUNNING")
		id := c.sbatch(alice, "-w "+node, train("10G", "10h"))
		c.gpu(id)
		beside = append(beside, id)
	}
	shared := map[string]bool{c.gpu(beside[0]): true, c.gpu(beside[1]): true}
	ofJob := regexp.MustCompile(`job=(\d+) gpu=(\S+)`)
	ways := []struct {
		name, variable, option string
		mib                    int64
	}{
		{"option", "", "--carma=mem=3G,smact=10", 3072},
		{"variable", "export CARMA=mem=4G,smact=10; ", "", 4096},
		{"default", "", "", 5120},
	}
	list := tools(c)
	names := slices.Sorted(maps.Keys(list))
	type result struct{ out, stderr string }
	var late atomic.Int32 // jobs for which libcarma's answer came too late: the tool submits again
	for _, w := range ways {
		results := make([]result, len(names))
		var running sync.WaitGroup
		for i, name := range names {
			command := strings.NewReplacer("ID", fmt.Sprintf("tool%d%s", i, w.name), "%s", w.option).Replace(list[name])
			running.Add(1)
			go func() {
				defer running.Done()
				for range 5 {
					results[i].out, results[i].stderr, _ = c.run(alice, w.variable+command)
					if ofJob.MatchString(results[i].out) || late.Load() == 0 {
						return
					}
				}
			}()
		}
		stop := make(chan struct{})
		go func() {
			running.Wait()
			close(stop)
		}()
		for done := false; !done; {
			select {
			case <-stop:
				done = true
			case <-time.After(2 * time.Second):
				late.Add(c.cancelUnanswered(alice))
			}
		}
		for i, name := range names {
			what, out := name+", "+w.name, results[i].out
			m := ofJob.FindAllStringSubmatch(out, -1)
			if nodes := map[bool]int{true: 2, false: 1}[name == "ray" || name == "components"]; len(m) != nodes {
				t.Errorf("%s: ran on %d nodes, want %d: %s\n%s", what, len(m), nodes, out, results[i].stderr)
				continue
			}
			for _, ran := range m {
				if !shared[ran[2]] {
					t.Errorf("%s: job %s ran on %s, not on %v", what, ran[1], ran[2], shared)
				}
			}
			// A job that was returned to the queue has a record of the return first, and of the run a moment later.
			var r report
			c.eventually(func() string {
				r = c.report(m[0][1])
				return r.State
			}, "^(COMPLETED|FAILED|CANCELLED.*)$")
			said := c.adminComment(m[0][1])
			if !strings.Contains(said, `"mode":"shared","method":"user"`) || r.ReserveMiB != w.mib {
				t.Errorf("%s: %s, %+v, want %d MiB", what, said, r, w.mib)
			}
			// The job may have been returned to the queue before the run, as others came first.
			if r.State != "COMPLETED" || r.OOM || r.RequeuedTo != "" || !slices.ContainsFunc(r.Neighbours, func(id uint32) bool {
				return slices.Contains(beside, strconv.FormatUint(uint64(id), 10))
			}) {
				t.Errorf("%s: %+v, want it beside %v", what, r, beside)
			}
			// Each further step, and the terminal.
			more := map[string]string{"ray": "driver=GPU-", "salloc": "step=GPU-", "srun --pty": "/dev/pts/"}[name]
			if !strings.Contains(out, more) {
				t.Errorf("%s: no %q in %s", what, more, out)
			}
		}
	}
	c.noDrain()
}

// cancelUnanswered cancels the waiting jobs of a user for which libcarma's answer came too late, on a busy machine:
// whole GPUs are booked for the jobs. The number of jobs is returned.
func (c *cluster) cancelUnanswered(user string) (n int32) {
	out, _, _ := c.run("", "squeue -h -t PENDING -u "+user+" -o %A")
	for _, id := range strings.Fields(out) {
		if strings.Contains(c.adminComment(id), "no answer for this job") {
			c.run("", "scancel "+id)
			n++
		}
	}
	return n
}
