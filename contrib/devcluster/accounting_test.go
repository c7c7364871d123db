// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"bytes"
	"encoding/json"
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

// account is what carma-report --json says of a job, as far as it is compared.
type account struct {
	ID         string   `json:"id"`
	JobID      uint32   `json:"job_id"`
	Name       string   `json:"name"`
	User       string   `json:"user"`
	State      string   `json:"state"`
	Mode       string   `json:"mode"`
	Method     string   `json:"method"`
	Submit     float64  `json:"submit"`
	Start      float64  `json:"start"`
	End        float64  `json:"end"`
	WaitS      *float64 `json:"wait_s"`
	RunS       float64  `json:"run_s"`
	Attempts   int      `json:"attempts"`
	ReserveMiB int64    `json:"reserve_mib"`
	PeakMiB    *int64   `json:"peak_mib"`
	PeakHow    string   `json:"peak_quality"`
	SMActPct   *float64 `json:"smact_pct"`
	EnergyJ    *float64 `json:"energy_j"`
	EnergyHow  string   `json:"energy_quality"`
	LeaseS     float64  `json:"gpu_s"`
	HeldS      float64  `json:"held_s"`
	SavedS     *float64 `json:"saved_s"`
	Neighbours []uint32 `json:"neighbours"`
	GPUs       []string `json:"gpus"`
	OOM        bool     `json:"oom"`
}

// accounts reads records, by job id.
func (c *cluster) accounts(options string) map[uint32]account {
	c.t.Helper()
	var r struct{ Jobs []account }
	if err := json.Unmarshal([]byte(c.sh("", "carma-report -S now-1day --json "+options)), &r); err != nil {
		c.t.Fatal(err)
	}
	all := map[uint32]account{}
	for _, j := range r.Jobs {
		all[j.JobID] = j
	}
	return all
}

// complete waits until the agent has put slurmctld's word into the records.
func (c *cluster) complete(ids ...string) {
	c.t.Helper()
	for _, id := range ids {
		c.eventually(func() string { return c.sh("", "carma-report -n -t -o JobName%30 "+id) }, `\.sh`)
	}
}

// learn has carma-report write what jobs used, and waits until slurmctld has read the file: until a job that is held
// and cancelled books as want says.
func (c *cluster) learn(sbatch, want string) {
	c.t.Helper()
	c.sh("", "carma-report history --write")
	c.eventually(func() string {
		id := c.submit(alice, sbatch, false)
		defer c.sh("", "scancel "+id)
		return c.adminComment(id)
	}, want)
}

// One script, three times: alone, then shared at what was learned. When it takes
// twice the memory it is requeued once, alone, and is learned anew.
func TestLearnedSharing(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1", "--time-scale", "10")
	if err := os.WriteFile(filepath.Join(c.dir, "jobs", "size"), []byte("10240"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(c.dir, "jobs", "learn.sh")
	if err := os.WriteFile(script, []byte("#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA on\nsimjob --mem $(cat size)M --smact 30"+
		untilPeak("$(cat size)")), 0o755); err != nil {
		t.Fatal(err)
	}
	c.notePeaks()
	learned := func(mib int) {
		t.Helper()
		c.learn("sbatch --parsable -H "+script, fmt.Sprintf(`"method":"history".*"reserve_mib":%d\b`, mib))
	}
	once := func(state string) account {
		t.Helper()
		id := c.submit(alice, "sbatch --parsable "+script, false)
		c.ends(id, state)
		c.complete(id)
		n, _ := strconv.Atoi(id)
		return c.accounts("")[uint32(n)]
	}
	expect := func(what string, a account, mode, method string, reserve int64, attempts int) {
		t.Helper()
		if a.Mode != mode || a.Method != method || a.ReserveMiB != reserve || a.Attempts != attempts {
			t.Errorf("%s: %+v", what, a)
		}
	}
	expect("first run", once("COMPLETED"), "exclusive", "none", 40503, 1)
	learned(11264)
	// What is learned is slurmctld's alone, unless the site opens the file.
	if out := c.sh(alice, "carma-estimate "+script); !strings.Contains(out, "history    it is not for you to read") {
		t.Errorf("carma-estimate of what is closed:\n%s", out)
	}
	c.sh("", "chmod 644 "+c.dir+"/var/history")
	// carma-estimate finds it by the same key, for the job's user only.
	if out := c.sh(alice, "carma-estimate "+script); !strings.Contains(out, "history    1 run, peak 10240 MiB") ||
		!strings.Contains(out, "11264 of 40536 MiB") {
		t.Errorf("carma-estimate:\n%s", out)
	}
	if out := c.sh(bob, "carma-estimate "+script); strings.Contains(out, "history") {
		t.Errorf("carma-estimate of another user:\n%s", out)
	}
	expect("second run", once("COMPLETED"), "shared", "history", 11264, 1)
	learned(10752)
	expect("third run", once("COMPLETED"), "shared", "history", 10752, 1)
	if err := os.WriteFile(filepath.Join(c.dir, "jobs", "size"), []byte("20480"), 0o644); err != nil {
		t.Fatal(err)
	}
	grown := once("COMPLETED")
	expect("twice the memory", grown, "exclusive", "history", 40503, 2)
	if !grown.OOM || grown.PeakMiB == nil || *grown.PeakMiB != 20480 {
		t.Errorf("twice the memory: %+v", grown)
	}
	learned(21504)
	expect("learned anew", once("COMPLETED"), "shared", "history", 21504, 1)
}

// plain has values in the place of pointers.
func plain(a account) (list []any) {
	text, err := json.Marshal(a)
	if err != nil {
		return []any{err}
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return []any{err}
	}
	keys := []string{}
	for k := range fields {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		list = append(list, k, fields[k])
	}
	return list
}

// joules are those of the counters of a node's GPUs, in simulated time.
func (c *cluster) joules(node string) (joules float64) {
	c.t.Helper()
	var s struct {
		GPUs []struct {
			EnergyJ float64 `json:"energy_j"`
		}
	}
	if err := json.Unmarshal([]byte(c.sh("", "SIMGPU_STATE="+c.dir+"/simgpu/"+node+" simgpu show --json")), &s); err != nil {
		c.t.Fatal(err)
	}
	for _, g := range s.GPUs {
		joules += g.EnergyJ
	}
	return joules
}

// sampled is the energy in the agent's samples, and the part of no job; 0 while samples are missing.
func (c *cluster) sampled() (seen, unowned float64) {
	c.t.Helper()
	var g struct {
		GPUs []struct {
			EnergyJ  *float64 `json:"energy_j"`
			UnownedJ *float64 `json:"unowned_j"`
			Watts    *float64 `json:"watts"`
		}
	}
	if err := json.Unmarshal([]byte(c.sh("", "carma-report gpus -S now-1day --json")), &g); err != nil {
		c.t.Fatal(err)
	}
	for _, x := range g.GPUs {
		if x.EnergyJ == nil {
			return 0, 0
		}
		seen, unowned = seen+*x.EnergyJ, unowned+*x.UnownedJ
		// Under user-mode-linux the time of a look counts in less than a minute.
		short := underUML && *x.EnergyJ <= 60*watts(0)
		if !short && (*x.Watts < watts(0)-1 || *x.Watts > watts(1)+1) {
			c.t.Errorf("a mean power of %.0f W", *x.Watts)
		}
	}
	return seen, unowned
}

// Users read the memory of ended jobs over time: each job's own, also beside another.
func TestMemoryOfJobs(t *testing.T) {
	c := up(t, "--nodes", "1", "--time-scale", "10")
	want := map[uint32]int64{}
	var ids []string
	for user, gib := range map[string]int64{alice: 6, bob: 4} {
		ids = append(ids, c.sbatch(user, "", fmt.Sprintf("#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem %dG --smact 10 "+
			"--ramp 0s --duration 10h &\nuntil [ -e seen ]; do sleep 0.2; done\nkill $!; wait; true\n", gib)))
		n, _ := strconv.Atoi(ids[len(ids)-1])
		want[uint32(n)] = 1024 * gib
	}
	read := func(reader string) {
		t.Helper()
		c.eventually(func() string {
			var v struct {
				GPUs []struct {
					Memory []struct {
						JobID   uint32  `json:"job_id"`
						LengthS float64 `json:"length_s"`
						UsedMiB int64   `json:"used_mib"`
					}
				}
			}
			if err := json.Unmarshal([]byte(c.sh(reader, "carma-report gpus -S now-1day --json")), &v); err != nil {
				t.Fatal(err)
			}
			most, length := map[uint32]int64{}, map[uint32]float64{}
			for _, g := range v.GPUs {
				for _, m := range g.Memory {
					most[m.JobID], length[m.JobID] = max(most[m.JobID], m.UsedMiB), length[m.JobID]+m.LengthS
				}
			}
			for id, mib := range want {
				if most[id] < mib || most[id] > mib+1024 || length[id] < 5 {
					return fmt.Sprintf("%d MiB for %.0f s of job %d, want %d", most[id], length[id], id, mib)
				}
			}
			return "as used"
		}, "^as used$")
	}
	read("")
	c.sh("", "touch seen")
	for _, id := range ids {
		c.ends(id, "COMPLETED")
	}
	c.complete(ids...)
	read("")
	read(alice)
}

// Over 500 jobs, jobs and nobody together have used what the GPUs' counters say from
// the agent's first look at them on.
func TestEnergyConserved(t *testing.T) {
	takesMinutes(t)
	const scale = 20
	c := up(t, "--nodes", "1", "--time-scale", fmt.Sprint(scale))
	counter := func() float64 { return c.joules("n1") / scale } // what NVML says is of real time
	samples := c.sampled
	// What the samples lack at any time is the same idle moment, at the beginning and
	// at the end.
	c.eventually(func() string { seen, _ := samples(); return fmt.Sprint(seen > 0) }, "true")
	seen, _ := samples()
	before := counter() - seen
	var ids []string
	for i := range 10 {
		script := fmt.Sprintf("#SBATCH --gres=gpu:1\n#CARMA mem=6G\nsimjob --mem 4G --smact %d --ramp 0s --duration "+
			"$((RANDOM %% 40 + 5))s\n", 10+5*i)
		ids = append(ids, c.sbatch([]string{alice, bob}[i%2], "-o /dev/null --array=1-50", script))
	}
	list := strings.Join(ids, ",")
	for start := time.Now(); c.sh("", "squeue -h -j "+list+" | wc -l") != "0"; time.Sleep(2 * time.Second) {
		if time.Since(start) > 25*time.Minute {
			t.Fatal("500 jobs do not end")
		}
	}
	// A record has its last figures once the agent has put slurmctld's word there (the job's name); an
	// Epilog that comes before the agent's next look writes none.
	complete := func() (n int) {
		for _, a := range c.accounts("") {
			if a.Name != "" {
				n++
			}
		}
		return n
	}
	for start := time.Now(); complete() < 500; time.Sleep(time.Second) {
		if time.Since(start) > 10*time.Minute {
			t.Fatalf("%d of 500 records are complete", complete())
		}
	}
	time.Sleep(5 * time.Second) // until the samples have the last of the jobs, too
	seen, unowned := samples()
	total := counter() - before
	jobs, shared := 0.0, 0
	all := c.accounts("")
	for _, a := range all {
		if a.EnergyJ == nil {
			t.Errorf("job %s: energy unknown", a.ID)
			continue
		}
		jobs += *a.EnergyJ
		if a.EnergyHow == "shared" {
			shared++
		}
	}
	t.Logf("counters %.0f J, samples %.0f J, jobs %.0f J, nobody %.0f J; %d jobs shared", total, seen, jobs, unowned,
		shared)
	if math.Abs(jobs+unowned-total) > 0.01*total || shared < 100 {
		t.Errorf("jobs and nobody are off by %.2f %%", 100*(jobs+unowned-total)/total)
	}
}

// The HTML of a cluster's jobs can be opened, and the SVG is well formed.
func TestPagesOfACluster(t *testing.T) {
	c := up(t, "--nodes", "1", "--time-scale", "10")
	id := c.sbatch(alice, "-o /dev/null", train("10G", "20s"))
	c.ends(id, "COMPLETED")
	for _, view := range []string{"--svg " + id, "--svg", "--svg summary", "--svg gpus"} {
		out := c.sh("", "carma-report -S now-1hour "+view)
		if !bytes.HasPrefix([]byte(out), []byte("<?xml")) || !strings.HasSuffix(out, "</svg>") {
			t.Errorf("%s: %.80s", view, out)
		}
	}
}
