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

// Two frameworks that take the whole GPU unless told otherwise, in jobs that say no more
// than #CARMA on: they run alone once, share from the second run on at what they really
// need, and four of them at once on one GPU.
func TestFrameworksShare(t *testing.T) {
	c := up(t, "--nodes", "1", "--time-scale", "10")
	c.settings(map[string]string{"placement.max_jobs": "4"})
	needs := map[string]int64{"jax": 6144, "tensorflow": 7168}
	c.notePeaks()
	submit := func(framework string) string {
		path := filepath.Join(c.dir, "jobs", framework+".sh")
		script := fmt.Sprintf("#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA on\necho gpu=$CUDA_VISIBLE_DEVICES\n"+
			"[ -e forever ] && exec simjob --framework %[1]s --mem %[2]dM --smact 10 --ramp 2s --duration 10h\n"+
			"simjob --framework %[1]s --mem %[2]dM --smact 10%[3]s", framework, needs[framework],
			untilPeak(fmt.Sprint(needs[framework])))
		if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		return c.submit(alice, "sbatch --parsable "+path, false)
	}
	both := []string{"jax", "tensorflow"}
	for _, run := range []string{"first", "second"} {
		var ids []string
		for _, framework := range both {
			id := submit(framework)
			c.ends(id, "COMPLETED")
			ids = append(ids, id)
			want, booked := needs[framework], int64(40503)
			if run == "second" {
				booked = want + (want*10+99)/100
			}
			if r := c.report(id); r.PeakMiB != want || r.ReserveMiB != booked {
				t.Errorf("%s run of %s: peak %d MiB, booked %d; want %d, %d\n%s", run, framework, r.PeakMiB, r.ReserveMiB, want,
					booked, c.output(id))
			}
		}
		c.complete(ids...)
		booked := map[string]int{"first": 6759, "second": 6452}[run]
		c.learn("sbatch --parsable -H "+filepath.Join(c.dir, "jobs", "jax.sh"),
			fmt.Sprintf(`"method":"history".*"reserve_mib":%d\b`, booked))
	}
	// One GPU is left to them. The job is RUNNING before the job's Prolog has leased GPUs.
	rest := c.sbatch(alice, "", "#SBATCH --gres=gpu:3\n#CARMA policy=exclusive\necho gpu=$CUDA_VISIBLE_DEVICES\nsleep 1h\n")
	c.gpu(rest)
	c.sh("", "touch forever")
	var ids, gpus []string
	for range 2 {
		for _, framework := range both {
			ids = append(ids, submit(framework))
		}
	}
	c.eventually(func() string { return c.job(strings.Join(ids, ","), "%T") }, `^RUNNING\nRUNNING\nRUNNING\nRUNNING$`)
	for _, id := range ids {
		gpus = append(gpus, c.gpu(id))
	}
	if len(slices.Compact(gpus)) != 1 {
		t.Errorf("they run on %v, want one GPU", gpus)
	}
	// What they need, and the MPS server.
	need := 2 * (needs["jax"] + needs["tensorflow"])
	c.eventually(func() string {
		used := c.used(gpus[0])
		return fmt.Sprint(used, used >= need && used <= need+64)
	}, "true")
	c.sh(alice, "scancel "+strings.Join(ids, " ")+" "+rest)
	c.noDrain()
}

// used is what nvidia-smi would show of a GPU.
func (c *cluster) used(uuid string) int64 {
	for _, g := range c.status("n1") {
		if g.UUID == uuid {
			return g.UsedMiB
		}
	}
	return 0
}

// What a user has set stays, in the batch script, in steps, and where a step is started
// without the environment or with a value of its own; elsewhere CARMA's values stand, and
// they do not follow a job into one that it submits.
func TestUsersVariables(t *testing.T) { usersVariables(up(t, "--nodes", "1")) }

// The SPANK plugin sets the same.
func TestUsersVariablesBySpank(t *testing.T) { usersVariables(up(t, "--nodes", "1", "--spank")) }

func usersVariables(c *cluster) {
	t := c.t
	if err := os.WriteFile(filepath.Join(c.dir, "jobs", "show"), []byte("#!/bin/bash\n"+
		`echo "$1: pre=$XLA_PYTHON_CLIENT_PREALLOCATE part=$XLA_PYTHON_CLIENT_MEM_FRACTION growth=$TF_FORCE_GPU_ALLOW_GROWTH fraction=$CARMA_MEM_FRACTION"`+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const body = `./show batch
srun --overlap ./show step
srun --overlap --export=NONE ./show without
XLA_PYTHON_CLIENT_PREALLOCATE=maybe srun --overlap ./show own
export TF_FORCE_GPU_ALLOW_GROWTH=no
srun --overlap ./show changed
`
	const ours = "pre=false part=0.2526 growth=true fraction=0.2273"
	for _, test := range []struct {
		name, options, script string
		want                  []string
	}{
		{"none set", "", "#CARMA mem=10G\n" + body, []string{
			"batch: " + ours, "step: " + ours, "without: " + ours,
			"own: pre=maybe part=0.2526 growth=true fraction=0.2273",
			"changed: pre=false part=0.2526 growth=no fraction=0.2273"}},
		{"the user's", "--export=ALL,XLA_PYTHON_CLIENT_PREALLOCATE=true,TF_FORCE_GPU_ALLOW_GROWTH=," +
			"XLA_CLIENT_MEM_FRACTION=3.2,CARMA_MEM_FRACTION=0.5", "#CARMA mem=10G\n" + body, []string{
			"batch: pre=true part= growth= fraction=0.5", "step: pre=true part= growth= fraction=0.5", "without: " + ours,
			"own: pre=maybe part= growth= fraction=0.5", "changed: pre=true part= growth=no fraction=0.5"}},
		{"learning", "", "#CARMA on\n./show batch\n", []string{"batch: pre=false part= growth=true fraction=0.9"}},
		{"for itself", "", "./show batch\n", []string{"batch: pre= part= growth= fraction=0.9"}},
		{"a job that submits another", "", "#CARMA mem=10G\n./show batch\nsbatch --wait -o inner --gres=gpu:1 --wrap " +
			"'./show inner'\ncat inner\n", []string{
			"batch: " + ours, "inner: pre= part= growth= fraction=0.9"}},
	} {
		id := c.sbatch(alice, test.options, "#SBATCH --gres=gpu:1\n"+test.script)
		c.ends(id, "COMPLETED")
		for _, want := range test.want {
			if out := c.output(id); !strings.Contains(out, want+"\n") {
				t.Errorf("%s: want %q in\n%s", test.name, want, out)
			}
		}
	}
}
