// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/lease"
	"carma/gres/resident"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

func TestAccountSplits(t *testing.T) {
	a := newAgent()
	a.Owners = owners{1: {JobID: 7}, 2: {JobID: 7}, 3: {JobID: 8}}
	leases := []gres.Lease{held(7, 1000), held(8, 1000)}
	leases[0].Age, leases[1].Age = time.Minute, time.Minute
	s := sample(gres.Process{PID: 1, UsedMiB: 100}, gres.Process{PID: 2, UsedMiB: 50},
		gres.Process{PID: 3, UsedMiB: 30, MPS: true})
	s.EnergyJ, s.PowerWatts, s.SMActPct = 1000, 200, 40
	s.ProcessSMPct = map[int]float64{1: 20, 2: 10, 3: 10}
	a.accounts.of(s.GPU).floor.Watts = 100
	a.account(s, leases, a.Owners, time.Second)
	s.EnergyJ = 1300
	usages := a.account(s, leases, a.Owners, 2*time.Second)
	if len(usages) != 2 {
		t.Fatalf("%+v", usages)
	}
	for i, want := range []lease.Usage{
		{Job: jobenv.JobKey{JobID: 7}, UsedMiB: 150, UsedFrom: figure.MemoryProcess, SMActPct: 30, EnergyJ: 50 + 150,
			IdleJ: 50},
		{Job: jobenv.JobKey{JobID: 8}, UsedMiB: 30, UsedFrom: figure.MemoryMPS, SMActPct: 10, EnergyJ: 50 + 50, IdleJ: 50},
	} {
		u := usages[i]
		if u.Job != want.Job || u.UsedMiB != want.UsedMiB || u.UsedFrom != want.UsedFrom || u.SMActPct != want.SMActPct ||
			u.EnergyJ != want.EnergyJ || u.IdleJ != want.IdleJ ||
			!u.Present || u.Seconds != 1 || u.HeldS != 0.5 || u.SharedS != 1 || !math.IsNaN(u.AloneS) {
			t.Errorf("got  %+v\nwant %+v", u, want)
		}
	}
	// What the driver does not tell of a process is what is left of the GPU.
	s.Processes[2].UsedMiB, s.UsedMiB = 0, 400
	if u := a.account(s, leases, a.Owners, 3*time.Second)[1]; u.UsedMiB != 250 || u.UsedFrom != figure.MemoryWindow {
		t.Errorf("no process memory: %+v", u)
	}
}

// The samples of jobs: a figure that stays is a row that grows, also of a job that ends within a sample; memory that
// the driver does not tell of processes belongs to a job without others beside the job.
func TestSamplesOfJobs(t *testing.T) {
	const length = 10 * time.Second
	a := newAgent()
	a.Owners = owners{1: {JobID: 7}, 2: {JobID: 8}}
	a.Records = &sums{}
	one, both := []gres.Lease{held(7, 1000)}, []gres.Lease{held(7, 1000), held(8, 1000)}
	begin := time.Unix(1e9, 0)
	g := a.accounts.of(sample().GPU)
	var now time.Duration
	var got []db.Sample
	for i, c := range []struct {
		leases []gres.Lease
		of     []int64 // memory of the processes
		want   string  // job, seconds since the beginning, length, MiB
	}{
		{one, []int64{100}, "7 0+10 100"},
		{one, []int64{100}, "7 0+20 100"},
		{both, []int64{100, 30}, "7 0+30 100, 8 20+10 30"},
		{both, []int64{200, 30}, "7 30+10 200, 8 20+20 30"},
		{both, []int64{0, 0}, ""},
		{one, []int64{0}, "7 50+10 500"},
		{one, nil, ""},
		{one, []int64{200}, "7 70+10 200"},
	} {
		var processes []gres.Process
		for k, mib := range c.of {
			processes = append(processes, gres.Process{PID: k + 1, UsedMiB: mib})
		}
		s := sample(processes...)
		s.UsedMiB = 500
		for range 2 {
			now += time.Second
			a.account(s, c.leases, a.Owners, now)
		}
		if len(c.of) > 0 { // and ends within the sample
			a.account(s, nil, a.Owners, now)
		}
		g.bucket.At, got = begin.Add(time.Duration(i)*length), nil
		g.turn(begin.Add(time.Duration(i+1)*length), length, &got)
		list := got[0].Memory
		slices.SortFunc(list, func(x, y db.JobSample) int { return int(x.JobID) - int(y.JobID) })
		var rows []string
		for _, j := range list {
			rows = append(rows, fmt.Sprintf("%d %.0f+%.0f %d", j.JobID, j.At.Sub(begin).Seconds(), j.Length.Seconds(),
				j.UsedMiB))
		}
		if text := strings.Join(rows, ", "); text != c.want {
			t.Errorf("%d: %q, want %q", i, text, c.want)
		}
	}
}

// BenchmarkSamples takes the CPU time for ten looks at eight GPUs with three jobs each, and for the samples of the
// looks, in percent of a core at a look a second: without samples of jobs, for jobs whose memory stays, and for jobs
// whose memory changes with each sample.
func BenchmarkSamples(b *testing.B) {
	const gpus, jobs = 8, 3
	for _, c := range []struct {
		name         string
		told, change bool // memory of processes
	}{{"without", false, false}, {"steady", true, false}, {"changing", true, true}} {
		b.Run(c.name, func(b *testing.B) {
			d, err := db.Open(filepath.Join(b.TempDir(), "carma.db"))
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			a := newAgent()
			a.Records = &stored{db: d}
			o := owners{}
			a.Owners = o
			var leases []gres.Lease
			for i := range gpus * jobs {
				l := held(uint32(i+1), 1000)
				l.UUID = fmt.Sprint("GPU-", i/jobs)
				o[i+1] = resident.Owner{JobID: uint32(i + 1)}
				leases = append(leases, l)
			}
			at, now := time.Unix(1e9, 0), lease.Now()
			a.accounts.begin(b.Context(), a, nil, nil)
			before := cpuTime(b)
			for i := range b.N {
				for range sampleOf {
					now += time.Second
					for k := range gpus {
						s := sample()
						s.UUID, s.UsedMiB, s.EnergyJ, s.SMActPct = fmt.Sprint("GPU-", k), 500, figure.Measured(now.Seconds()), 50
						for j := range jobs {
							p := gres.Process{PID: k*jobs + j + 1}
							if c.told {
								p.UsedMiB = 100
							}
							if c.change {
								p.UsedMiB += int64(i)
							}
							s.Processes = append(s.Processes, p)
						}
						a.account(s, leases, o, now)
					}
				}
				var turned []db.Sample
				for _, g := range a.accounts.gpus {
					g.bucket.At = at
					g.turn(at.Add(sampleOf*time.Second), sampleOf*time.Second, &turned)
				}
				at = at.Add(sampleOf * time.Second)
				a.unwritten.put(turned, a.accounts.meters(a.Node))
				a.writeSamples(b.Context())
			}
			used := cpuTime(b) - before
			b.ReportMetric(100*used.Seconds()/float64(b.N)/sampleOf, "%-of-a-core")
		})
	}
}

// cpuTime is the time of the process on all cores.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Over a life of jobs that come and go, jobs and nobody together have used what
// the counter says: also across a counter that starts anew.
func TestAccountConserves(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a := newAgent()
	total := 0.0
	r := &sums{}
	a.Records = r
	type job struct {
		id         uint32
		start, end float64
	}
	var jobs []job
	for i := range 60 {
		start := rng.Float64() * 300
		jobs = append(jobs, job{uint32(i + 1), start, start + 1 + rng.Float64()*30})
	}
	counter, owned := 0.0, 0.0
	base := lease.Now() // not before the machine was up
	o := owners{}
	a.Owners = o
	for tick := range 350 {
		at := float64(tick)
		now := base + time.Duration(at*float64(time.Second))
		var leases []gres.Lease
		var ended []lease.Ended
		var processes []gres.Process
		for _, j := range jobs {
			switch {
			case j.start <= at && at < j.end:
				l := held(j.id, 1000)
				l.Age = time.Duration((at - j.start) * float64(time.Second))
				leases = append(leases, l)
				o[int(j.id)] = resident.Owner{JobID: j.id}
				processes = append(processes, gres.Process{PID: int(j.id), UsedMiB: 10})
			case j.end <= at && at < j.end+5:
				ended = append(ended, lease.Ended{JobKey: jobenv.JobKey{JobID: j.id},
					Age: lease.Now() - base - time.Duration(j.end*float64(time.Second))})
			}
		}
		step := 58 + rng.Float64()*200
		if tick > 0 {
			total += step
		}
		if counter += step; tick == 200 {
			counter = step // the driver was loaded anew
		}
		s := sample(processes...)
		s.EnergyJ, s.PowerWatts, s.SMActPct = figure.Measured(counter), figure.Measured(step),
			figure.Measured(rng.Float64()*100)
		a.accounts.begin(t.Context(), a, nil, ended)
		a.flushSamples()
		for _, u := range a.account(s, leases, a.Owners, now) {
			if !math.IsNaN(u.EnergyJ) {
				owned += u.EnergyJ
			}
		}
	}
	a.closeSamples()
	if r.unowned == 0 || math.Abs(owned+r.unowned-total) > 0.01*total || math.Abs(r.energy-total) > 0.01*total {
		t.Errorf("jobs %.0f J and nobody %.0f J of %.0f J; samples %.0f J", owned, r.unowned, total, r.energy)
	}
}

// A killed agent has told the ledger what a job used up to the last look, the records up to the last
// sample: the next agent counts no look twice.
func TestAccountGoesOnFromTheLastLook(t *testing.T) {
	now := lease.Now()
	a := newAgent()
	a.Records = &sums{meters: []db.Meter{{UUID: "a", CounterJ: 1000, At: time.Now().Add(-9 * time.Second),
		FloorWatts: figure.Unknown}}}
	l := held(1, 1000)
	l.Age = time.Minute
	s := sample(gres.Process{PID: 1, UsedMiB: 10})
	s.EnergyJ = 1950
	readings := []gres.Reading{{GPU: s.GPU, Age: time.Second, CounterJ: 1900}}
	a.accounts.begin(t.Context(), a, readings, nil)
	got := a.account(s, []gres.Lease{l}, owners{1: {JobID: 1}}, now)
	if len(got) != 1 || got[0].EnergyJ != 50 || math.Abs(got[0].Seconds-1) > 0.1 {
		t.Errorf("used since the last look: %+v", got)
	}
}

// A former GPU of the node, and a GPU of another node with the same database, get no samples and no meter: an
// empty sample would replace a sample of the other node's agent.
func TestAccountOfGPUsThatAreHere(t *testing.T) {
	a := newAgent()
	r := &sums{meters: []db.Meter{{UUID: "a", Node: a.Node, CounterJ: 1000}, {UUID: "gone", Node: a.Node, CounterJ: 1000},
		{UUID: "other", Node: "other", CounterJ: 1000}}}
	a.Records = r
	a.Config.NVML.Interval = config.Duration(time.Millisecond)
	for range 3 {
		a.accounts.begin(t.Context(), a, nil, nil)
		a.account(sample(), nil, owners{}, lease.Now())
		a.flushSamples()
		time.Sleep(2 * sampleOf * time.Millisecond)
	}
	a.closeSamples()
	if want := map[string]bool{"a": true}; len(r.written) == 0 || !maps.Equal(r.written, want) {
		t.Errorf("samples or meters of %v", r.written)
	}
}

// Samples wait for a database that refuses, as far as there is place, and are written in order: the oldest samples go,
// and the log says how many.
func TestSamplesWait(t *testing.T) {
	var log bytes.Buffer
	a := newAgent()
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := &sums{err: errors.New("disk full")}
	a.Records = r
	for i := range maxPending + 3 { // one behind the other
		a.unwritten.put([]db.Sample{{UUID: "a", At: time.Unix(int64(i), 0)}}, []db.Meter{{UUID: "a"}})
		if i%1000 == 0 {
			a.keepSamples(t.Context(), lease.Snapshot{})
		}
	}
	if r.tries != 1 {
		t.Errorf("a database that refuses was tried %d times within a sample", r.tries)
	}
	r.err, a.unwritten.tried = nil, time.Time{}
	a.keepSamples(t.Context(), lease.Snapshot{})
	if n := len(r.at); n != maxPending || r.at[0].Unix() != 3 || !slices.IsSortedFunc(r.at, time.Time.Compare) {
		t.Errorf("%d samples", n)
	}
	a.keepSamples(t.Context(), lease.Snapshot{})
	for line, want := range map[string]int{"kept until": 1, "samples are lost": 1, "samples=3": 1} {
		if got := strings.Count(log.String(), line); got != want {
			t.Errorf("%d lines with %q:\n%s", got, line, log.String())
		}
	}
}

// An agent that ends while no GPU can be read, as for an update of the driver, writes the samples that wait.
func TestSamplesOfGPUsThatWent(t *testing.T) {
	a, r := newAgent(), &sums{}
	a.Records = r
	a.unwritten.put([]db.Sample{{UUID: "a", At: time.Unix(1, 0)}}, []db.Meter{{UUID: "a"}})
	a.accounts.of(gres.GPU{UUID: "a"}).here = false
	a.closeSamples()
	if len(r.at) != 1 || !r.written["a"] {
		t.Errorf("written: %v, %v", r.at, r.written)
	}
}

// sums adds samples up.
type sums struct {
	records
	tries           int
	meters          []db.Meter // of an earlier agent
	energy, unowned float64
	written         map[string]bool // GPUs with a sample or a meter
	at              []time.Time     // of samples
	err             error
}

func (r *sums) Meters(context.Context) ([]db.Meter, error) { return r.meters, nil }

func (r *sums) AddSamples(_ context.Context, samples []db.Sample, meters []db.Meter) error {
	r.tries++
	if r.err != nil {
		return r.err
	}
	if r.written == nil {
		r.written = map[string]bool{}
	}
	for _, s := range samples {
		r.energy, r.unowned = r.energy+float64(s.EnergyJ), r.unowned+float64(s.UnownedJ)
		r.written[s.UUID], r.at = true, append(r.at, s.At)
	}
	for _, m := range meters {
		r.written[m.UUID] = true
	}
	return nil
}
