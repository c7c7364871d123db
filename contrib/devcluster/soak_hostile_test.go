// SPDX-License-Identifier: Apache-2.0

//go:build integration && abuse

package devcluster_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// dave is the honest one.
const dave = "carma-dave"

// fakeOOM is a message of a job that had memory enough.
const fakeOOM = "echo 'torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB' >&2; exit 1\n"

// hostileFiles are scripts of the attackers, and what an honest user submits in their place.
func hostileFiles(keep string) map[string]string {
	const gpu = "#!/bin/bash\n#SBATCH --gres=gpu:1\n"
	run := func(mem, use, then string) string {
		return "#CARMA mem=" + mem + "\nsimjob --mem " + use + " --smact 20 --ramp 0s --duration 60s\n" + then
	}
	return map[string]string{
		"work":   gpu + run("18G", "16G", ""),
		"cpu":    "#!/bin/bash\nsimjob --mem 16G --smact 20 --ramp 0s --duration 60s || sleep 3\n",
		"fake":   "#!/bin/bash\n" + run("100M", "50M", fakeOOM),
		"stop":   gpu + run("18G", "16G", "pkill -STOP -u $USER -f '^nvidia-cuda-mps-server'\n"),
		"faults": gpu + run("18G", "16G", "timeout 2 "+keep+" log $CUDA_MPS_PIPE_DIRECTORY\n"),
		"keeps":  gpu + "setsid " + keep + " all $CUDA_MPS_PIPE_DIRECTORY &\n" + run("18G", "16G", ""),
		"again":  gpu + run("18G", "16G", "[ ${SLURM_RESTART_COUNT:-0} -gt 3 ] || scontrol requeue $SLURM_JOB_ID\n"),
		"more":   gpu + run("1G", "30G", ""),
		"large":  modelText(7),
	}
}

// attacks are what three users do as often as six jobs each in the system allow, one after the other: the ways of
// the audits (docs/threat-model.md).
func attacks(keep string) map[string][]string {
	const added = "j=$(sbatch --parsable -Q -H cpu); scontrol update JobId=$j Gres=gpu:%s; %s scontrol release $j"
	return map[string][]string{
		alice: {
			fmt.Sprintf(added, "1", ""), // GPUs that are added later
			fmt.Sprintf(added, "16", "scontrol update JobId=$j Requeue=0;"),
			"sbatch -Q --gres='gpu: 2' work", // counted differently
			"sbatch -Q --no-requeue work",
			"j=$(sbatch --parsable -Q work); scontrol update JobId=$j ExcNodeList=n1",
		},
		bob: {
			"sbatch -Q --gres=gpu:4 fake", // out of memory by word alone
			"sbatch -Q --gres=gpu:1 fake",
			"sbatch -Q stop",   // leaves an MPS server that does not go on
			"sbatch -Q faults", // writes faults of a server into its log
		},
		carol: {
			"sbatch -Q keeps", // connections and descriptors outlive the job's end, as far as they can
			"sbatch -Q -p plain --wrap 'timeout 60 " + keep + " all $CARMA_DEVCLUSTER/run/n*/mps/*'",
			"sbatch -Q again",
			"sbatch -Q more", // uses more than is booked
			"sbatch -Q -H -J large large; scancel -u $USER -t PD -n large",
		},
	}
}

// busy has a user do one thing after the other, and an honest job in between, while the user has fewer than six jobs.
func (c *cluster) busy(user string, things []string) (stop func() string) {
	var cases strings.Builder
	for i, thing := range things {
		fmt.Fprintf(&cases, "%d) %s;; ", 2*i, thing)
	}
	return c.background(user, fmt.Sprintf("USER=%s; i=0; while :; do n=$(squeue -h -u $USER -o %%i | wc -l); "+
		"while [ $n -lt 6 ]; do case $((i %% %d)) in %s *) sbatch -Q -o /dev/null work;; esac; i=$((i + 1)); n=$((n + 1)); done; sleep 1; done >/dev/null 2>&1",
		user, 2*len(things), cases.String()))
}

// honest is what happened to the jobs of the honest user.
type honest struct {
	waits []float64 // seconds from submission to start, in order
	ends  map[string]int
}

func (h honest) String() string {
	sum := 0.
	for _, w := range h.waits {
		sum += w
	}
	n := len(h.waits)
	if n == 0 {
		return "no job"
	}
	return fmt.Sprintf("%d jobs, waits %.1f s on average, %.1f median, %.1f at p95; %v", n, sum/float64(n), h.waits[n/2],
		h.waits[n*95/100], h.ends)
}

func (h honest) mean() (sum float64) {
	for _, w := range h.waits {
		sum += w / float64(len(h.waits))
	}
	return sum
}

// TestSoakHostile: for SOAK_MINUTES three users attack, under the faults of TestSoak, and a fourth has all jobs end
// well; their waits are at most 1.2 times those beside three users who have as many jobs and do not attack.
func TestSoakHostile(t *testing.T) {
	length := time.Duration(number(t, "SOAK_MINUTES", 10)) * time.Minute
	var beside [2]honest
	beside[0] = soakBeside(t, false, min(length, 20*time.Minute)) // a mean needs no hour
	beside[1] = soakBeside(t, true, length)
	row(t, "an honest user beside honest ones", beside[0].String())
	row(t, "an honest user beside three who attack", beside[1].String())
	for i, h := range beside {
		if len(h.ends) != 1 || h.ends["COMPLETED"] == 0 || len(h.waits) != h.ends["COMPLETED"] {
			t.Errorf("run %d: the honest user's jobs ended %v", i, h.ends)
		}
	}
	if was, is := beside[0].mean(), beside[1].mean(); is > 1.2*was+1 { // dates are whole seconds
		t.Errorf("waits of %.1f s beside attackers, %.1f beside others", is, was)
	}
}

func soakBeside(t *testing.T, hostile bool, length time.Duration) honest {
	c := up(t, "--time-scale", "20")
	s := &soak{cluster: c, rng: rand.New(rand.NewPCG(1, 2)), state: map[string]string{}, fault: map[string]int{}}
	keep := c.client("keep")
	for name, text := range hostileFiles(keep) {
		c.file(alice, name, text)
	}
	var stops []func() string
	for user, things := range attacks(keep) {
		if !hostile {
			things = []string{"sbatch -Q -o /dev/null work"}
		}
		stops = append(stops, c.busy(user, things))
	}
	submitted := map[string]time.Time{}
	script := "#SBATCH --gres=gpu:1\n#CARMA mem=18G\necho started $(date +%s.%N)\n" +
		"exec simjob --mem 16G --smact 20 --ramp 0s --duration 60s\n"
	disturbed := time.Now()
	for start := time.Now(); time.Since(start) < length; time.Sleep(2 * time.Second) {
		if c.sh("", "squeue -h -u "+dave+" | wc -l") < "4" {
			submitted[s.sbatch(dave, "-J honest", script)] = time.Now()
		}
		s.look()
		if time.Since(disturbed) > 20*time.Second {
			disturbed = time.Now()
			s.disturb(faults[:len(faults)-1]) // a fault of the honest user's own MPS server would be that user's
		}
	}
	for _, stop := range stops {
		stop()
	}
	for deadline := time.Now().Add(10 * time.Minute); c.sh("", "squeue -h -u "+dave+" | wc -l") != "0"; s.look() {
		if time.Now().After(deadline) {
			t.Errorf("jobs of the honest user are still there:\n%s", c.sh("", "squeue"))
			break
		}
		time.Sleep(2 * time.Second)
	}
	h := honest{ends: map[string]int{}}
	started := regexp.MustCompile(`started ([0-9.]+)`)
	for id, at := range submitted {
		h.ends[s.state[id]]++
		text, _ := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
		if m := started.FindSubmatch(text); m != nil {
			seconds, _ := strconv.ParseFloat(string(m[1]), 64)
			h.waits = append(h.waits, seconds-float64(at.UnixMilli())/1000)
		}
		if s.state[id] != "COMPLETED" {
			t.Logf("honest job %s: %q, %s\n%s", id, s.state[id], text, c.hookLog(id))
		}
	}
	if hostile { // each attack with GPUs has run; a job without has no record
		names := c.sh("", "carma-report --json")
		for _, name := range []string{"fake", "stop", "faults", "keeps", "again", "more"} {
			if !strings.Contains(names, `"name": "`+name+`"`) {
				t.Errorf("no job %s ran", name)
			}
		}
	}
	slices.Sort(h.waits)
	t.Logf("hostile %t: %s; faults %v", hostile, h, s.fault)
	c.noDrain()
	c.nothingLeft()
	return h
}
