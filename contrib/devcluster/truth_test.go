// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// scripted is a job whose process notes when it begins and ends, so that what it
// does can be worked out from the simulator's laws (contrib/simgpu/README.md).
type scripted struct {
	name, user    string
	memGiB        int
	smact, length float64 // percent alone, seconds alone
	id            string
	account
	from, to float64 // of the process
}

// watts is the law of power of an A100: piecewise linear in SM activity.
func watts(u float64) float64 {
	at := [][2]float64{{0, 58}, {.35, 163}, {.5, 204}, {.65, 232}, {.8, 256}, {1, 273}}
	for i := 1; i < len(at); i++ {
		if u <= at[i][0] {
			a, b := at[i-1], at[i]
			return a[1] + (b[1]-a[1])*(u-a[0])/(b[0]-a[0])
		}
	}
	return 273
}

// truth is what a job should be told to have done.
type truth struct{ energy, smact, held, saved, shared float64 }

// leased is when the job's lease began: its Prolog, which counts for Slurm as run, may
// have waited for the GPU before.
func (j *scripted) leased() float64 { return j.End - j.LeaseS/float64(max(1, len(j.GPUs))) }

// truthOf works it out for jobs that were on one GPU, from the times of their leases
// (in the records) and of their processes.
func truthOf(jobs []*scripted) []truth {
	var marks []float64
	for _, j := range jobs {
		marks = append(marks, j.leased(), j.End, j.from, j.to)
	}
	slices.Sort(marks)
	out := make([]truth, len(jobs))
	alone := make([]float64, len(jobs))
	for m := 1; m < len(marks); m++ {
		from, length := marks[m-1], marks[m]-marks[m-1]
		idle, sum, holders := 1.0, 0.0, 0.0
		for _, j := range jobs {
			if j.from <= from && from < j.to {
				idle, sum = idle*(1-j.smact/100), sum+j.smact/100
			}
			if j.leased() <= from && from < j.End {
				holders++
			}
		}
		for i, j := range jobs {
			if j.leased() <= from && from < j.End {
				out[i].held += length / holders
				out[i].energy += watts(0) * length / holders
				alone[i] += length
				if holders > 1 {
					out[i].shared += length
				}
			}
			if j.from <= from && from < j.to {
				part := j.smact / 100 / sum
				out[i].energy += (watts(1-idle) - watts(0)) * length * part
				out[i].smact += 100 * (1 - idle) * part * length
			}
		}
	}
	for i, j := range jobs {
		out[i].smact /= j.End - j.leased()
		out[i].saved = alone[i] - (j.to - j.from) + min(j.length, j.to-j.from) - out[i].held
	}
	return out
}

func (c *cluster) script(j *scripted, lines string) {
	c.t.Helper()
	text := "#!/bin/bash\n#SBATCH --gres=gpu:1\n" + lines
	if j.length > 0 {
		text += fmt.Sprintf("date +%%s.%%N >>%[1]s.$SLURM_RESTART_COUNT.times\nsimjob --mem %[2]dG --smact %[3]g --ramp "+
			"0s --duration %[4]gs\nrc=$?\ndate +%%s.%%N >>%[1]s.$SLURM_RESTART_COUNT.times\nexit $rc\n",
			j.name, j.memGiB, j.smact, j.length)
	}
	path := filepath.Join(c.dir, "jobs", j.name+".sh")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		c.t.Fatal(err)
	}
	j.id = c.submit(j.user, "sbatch --parsable "+path, false)
}

// times reads when the job's process began and ended; one that was killed ended with
// its lease.
func (c *cluster) times(j *scripted, restart string) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "jobs", j.name+"."+restart+".times"))
	if err != nil {
		c.t.Fatal(err)
	}
	words := strings.Fields(string(text))
	j.from, _ = strconv.ParseFloat(words[0], 64)
	j.to = j.End
	if len(words) > 1 {
		j.to, _ = strconv.ParseFloat(words[1], 64)
	}
}

// shared is a script that may share and says what it does.
func shared(j *scripted) string {
	return fmt.Sprintf("#CARMA mem=%dG smact=%g\n", j.memGiB+1, j.smact)
}

const alone = "#CARMA policy=exclusive\n"

// Records against what the simulator's laws say, for twelve jobs of every kind.
func TestRecordsAreTrue(t *testing.T) {
	takesMinutes(t)
	needsServer(t)
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"placement.policy": `"mug"`, "placement.settle": `"3s"`, "nvml.interval": `"250ms"`})
	job := func(name, user string, mem int, smact, length float64) *scripted {
		return &scripted{name: name, user: user, memGiB: mem, smact: smact, length: length}
	}
	end := func(jobs ...*scripted) {
		t.Helper()
		for _, j := range jobs {
			c.eventually(func() string { return c.sh("", "squeue -h -j "+j.id+" 2>/dev/null | wc -l") }, "^0$")
			c.complete(j.id)
			n, _ := strconv.Atoi(j.id)
			j.account = c.accounts("")[uint32(n)]
		}
	}
	near := func(j *scripted, what string, got *float64, want, slack float64) {
		t.Helper()
		if got == nil {
			t.Errorf("%s: %s unknown, want %.2f", j.name, what, want)
		} else if math.Abs(*got-want) > 0.02*math.Abs(want)+slack {
			t.Errorf("%s: %s %.2f, want %.2f", j.name, what, *got, want)
		}
	}
	// check compares jobs that were on one GPU. Leases are known to a tenth of a second.
	check := func(jobs ...*scripted) {
		t.Helper()
		for i, want := range truthOf(jobs) {
			j := jobs[i]
			if j.leased() < j.Start-0.3 || j.leased() > j.from+0.3 {
				t.Errorf("%s: leased from %.2f, started at %.2f, its process at %.2f", j.name, j.leased(), j.Start, j.from)
			}
			near(j, "energy", j.EnergyJ, want.energy, 0.1*watts(j.smact/100))
			near(j, "SMACT", j.SMActPct, want.smact, 0.5)
			near(j, "held", &j.HeldS, want.held, 0.2)
			near(j, "saved", j.SavedS, want.saved, 0.3)
			near(j, "run", &j.RunS, j.End-j.Start, 0.01)
			if j.PeakMiB == nil || *j.PeakMiB != int64(j.memGiB)*1024 || j.PeakHow != "exact" {
				t.Errorf("%s: peak %v %s", j.name, j.PeakMiB, j.PeakHow)
			}
			if len(j.Neighbours) != len(jobs)-1 {
				t.Errorf("%s: neighbours %v", j.name, j.Neighbours)
			}
			if j.WaitS == nil || math.Abs(*j.WaitS-(j.Start-j.Submit)) > 0.1 {
				t.Errorf("%s: waited %v", j.name, j.WaitS)
			}
		}
	}
	limited, solo, killed := job("limited", alice, 5, 60, 600), job("solo", alice, 8, 40, 30),
		job("killed", bob, 5, 50, 600)
	c.script(limited, alone+"#SBATCH -t 1\n")
	c.script(solo, alone)
	c.script(killed, alone)
	for _, j := range []*scripted{limited, solo, killed} {
		// So that the two below have one GPU left.
		c.eventually(func() string { return c.sh("", "ls "+filepath.Join(c.dir, "jobs")) }, `(?m)^`+j.name+`\.\.times$`)
	}
	two := []*scripted{job("two-a", alice, 10, 60, 30), job("two-b", alice, 6, 40, 30)}
	for _, j := range two {
		c.script(j, shared(j))
	}
	time.Sleep(20 * time.Second)
	c.sh(bob, "scancel "+killed.id)
	end(append(two, solo, killed)...)
	for _, j := range append(two, solo, killed) {
		c.times(j, "")
	}
	check(two...)
	check(solo)
	check(killed)
	three := []*scripted{job("three-a", alice, 8, 30, 60), job("three-b", alice, 6, 50, 50),
		job("three-c", alice, 4, 20, 20)}
	for _, j := range three {
		c.script(j, shared(j))
		time.Sleep(6 * time.Second)
	}
	none := job("none", bob, 0, 0, 0)
	c.script(none, alone+"sleep 10\n")
	end(append(three, none, limited)...)
	for _, j := range three {
		c.times(j, "")
	}
	c.times(limited, "")
	check(three...)
	check(limited)
	if limited.State != "TIMEOUT" || killed.State != "CANCELLED" || solo.State != "COMPLETED" {
		t.Errorf("states %s, %s, %s", limited.State, killed.State, solo.State)
	}
	near(none, "energy", none.EnergyJ, watts(0)*none.LeaseS, 10)
	if none.PeakMiB != nil || none.PeakHow != "unknown" {
		t.Errorf("no process has a peak: %+v", none.account)
	}
	pair := job("pair", alice, 5, 50, 20)
	text := strings.Replace(alone, "\n", "\n#SBATCH --gres=gpu:2\n", 1) +
		"date +%s.%N >pair..times\nsimjob --gpus 2 --mem 5G --smact 50 --ramp 0s --duration 20s\ndate +%s.%N >>pair..times\n"
	pair.length = 0
	c.script(pair, text)
	pair.length = 20
	// An array, then one that dies of memory beside another and is requeued.
	array := job("array", alice, 5, 30, 15)
	c.script(array, alone+"#SBATCH --array=3-4\n")
	end(pair)
	c.times(pair, "")
	one := truthOf([]*scripted{pair})[0]
	near(pair, "energy of two GPUs", pair.EnergyJ, 2*one.energy, 0.2*watts(0.5))
	near(pair, "SMACT", pair.SMActPct, one.smact, 0.5)
	if len(pair.GPUs) != 2 {
		t.Errorf("pair: %+v", pair.account)
	}
	c.eventually(func() string { return c.sh("", "squeue -h -j "+array.id+" 2>/dev/null | wc -l") }, "^0$")
	c.eventually(func() string { return c.sh("", "carma-report -n -t -o JobID,State,PeakMem "+array.id) },
		`^`+array.id+`_[34] +COMPLETED +5.0G\n`+array.id+`_[34] +COMPLETED +5.0G$`)
	beside, victim := job("beside", alice, 10, 20, 60), job("victim", alice, 20, 20, 10)
	c.script(beside, shared(beside))
	c.seen(1)
	time.Sleep(5 * time.Second)
	c.script(victim, "#CARMA mem=8G smact=20\n")
	end(beside, victim)
	if !victim.OOM || victim.Attempts != 2 || victim.State != "COMPLETED" || victim.PeakMiB == nil ||
		*victim.PeakMiB != 20*1024 || len(victim.Neighbours) != 1 || len(beside.Neighbours) != 1 {
		t.Errorf("victim %+v\nbeside %+v", victim.account, beside.account)
	}
	near(victim, "wait and run", &victim.RunS, victim.LeaseS, 0.3)
	if victim.WaitS == nil || math.Abs(*victim.WaitS+victim.RunS-(victim.End-victim.Submit)) > 0.1 {
		t.Errorf("victim: waited %v and ran %.1f of %.1f s", victim.WaitS, victim.RunS, victim.End-victim.Submit)
	}
}
