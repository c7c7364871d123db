// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"carma/cmd/carma-sim/internal/workload"
	"carma/gres/choose"
	"carma/slurmbridge/policy"
)

// exact is a setup in which nothing but the jobs takes time.
func exact(gpus int, p choose.Policy) Setup {
	s := Default()
	s.GPUs, s.Policy, s.Estimator, s.HoldAfterS = gpus, p, Oracle, 0
	s.Model.Job.StartupS, s.Model.Job.SpikeS, s.Model.Job.DurationJitterPct = [2]float64{}, [2]float64{}, 0
	s.Model.Slurm.LaunchS, s.Model.Slurm.ReleaseS, s.Model.Slurm.PublishS, s.Model.Slurm.PublishEveryS = 0, 0, 0, 0
	s.Record = true
	return s
}

// jobs makes a workload of lines "arrival duration gpus mem smact".
func jobs(lines ...string) *workload.Workload {
	w := &workload.Workload{}
	for i, l := range lines {
		j := workload.Job{Name: fmt.Sprint("j", i)}
		var at float64
		if _, err := fmt.Sscan(l, &at, &j.DurationS, &j.GPUs, &j.PeakMiB, &j.SMActPct); err != nil {
			panic(err)
		}
		j.SteadyMiB = j.PeakMiB
		w.Jobs = append(w.Jobs, j)
		w.Trace = append(w.Trace, workload.Submission{ArrivalS: at, Job: int32(i), User: 1000})
	}
	return w
}

// Schedules of exclusive GPUs worked out by hand: start and end of every job.
func TestExclusiveByHand(t *testing.T) {
	for _, c := range []struct {
		name string
		gpus int
		q    Queue
		jobs []string
		want string
	}{
		{"one job", 1, FIFO, []string{"0 100 1 1000 50"}, "0-100"},
		{"one after the other", 1, FIFO, []string{"0 100 1 1000 50", "10 50 1 1000 50"}, "0-100 100-150"},
		{"a pause between them", 1, FIFO, []string{"0 100 1 1000 50", "300 50 1 1000 50"}, "0-100 300-350"},
		{"side by side", 2, FIFO, []string{"0 100 1 1000 50", "10 50 1 1000 50"}, "0-100 10-60"},
		{"three on two", 2, FIFO, []string{"0 100 1 1000 50", "0 60 1 1000 50", "0 30 1 1000 50"}, "0-100 0-60 60-90"},
		{"two GPUs wait for both", 2, FIFO, []string{"0 100 1 1000 50", "0 60 2 1000 50"}, "0-100 100-160"},
		{"fifo: nobody passes", 2, FIFO, []string{"0 100 1 1000 50", "0 60 2 1000 50", "0 30 1 1000 50"},
			"0-100 100-160 160-190"},
		{"backfill: a small one passes", 2, Backfill, []string{"0 100 1 1000 50", "0 60 2 1000 50", "0 30 1 1000 50"},
			"0-100 100-160 0-30"},
		{"shortest: the last comes first", 1, Shortest, []string{"0 100 1 1000 50", "5 60 1 1000 50", "6 30 1 1000 50"},
			"0-100 130-190 100-130"},
		{"longest", 1, Longest, []string{"0 100 1 1000 50", "5 30 1 1000 50", "6 60 1 1000 50"}, "0-100 160-190 100-160"},
		{"the trace begins later", 1, FIFO, []string{"500 10 1 1000 50", "505 10 1 1000 50"}, "0-10 10-20"},
		{"four GPUs, seven jobs", 4, FIFO, []string{"0 40 2 1000 50", "0 40 2 1000 50", "5 10 1 1000 50", "5 20 1 1000 50",
			"5 30 1 1000 50", "6 5 4 1000 50", "7 1 1 1000 50"},
			"0-40 0-40 40-50 40-60 40-70 70-75 75-76"},
	} {
		s := exact(c.gpus, policy.Exclusive)
		s.Queue = c.q
		r, err := Run(s, jobs(c.jobs...))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		for _, j := range r.Jobs {
			got = append(got, fmt.Sprintf("%.6g-%.6g", j.StartS, j.EndS))
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, g, c.want)
		}
	}
}

// Two jobs of 50 % share a GPU: 75 % activity, each at 0.75.
func TestSharingByHand(t *testing.T) {
	s := exact(1, policy.MAGM)
	s.Thresholds.Settle = 0
	r, err := Run(s, jobs("0 300 1 4000 50", "0 300 1 4000 50"))
	if err != nil {
		t.Fatal(err)
	}
	// The second is started when the first one's process has been seen: at once.
	if math.Abs(r.MakespanS-400) > 1e-6 || math.Abs(r.SMActPct-75) > 1e-6 || r.OOM != 0 {
		t.Errorf("got %+v", r)
	}
	if want := s.Model.GPU.Watts(0.75) * 400; math.Abs(r.EnergyJ-want) > 1e-6 {
		t.Errorf("energy %g, want %g", r.EnergyJ, want)
	}
}

// Counts are not consumed: slurmctld starts what fits into carma at one
// moment, whoever gets no GPU waits in its Prolog and then backs off.
func TestBurstByHand(t *testing.T) {
	for _, c := range []struct {
		name      string
		jobs      []string
		want      string
		givenBack int
	}{
		{"the third would fit into the node, not on a GPU", []string{"0 100 1 25000 50", "0 100 1 25000 50",
			"0 50 1 25000 50"}, "0-100 0-100 100-150", 1},
		{"it gets what another gives up in time", []string{"0 3 1 25000 50", "0 100 1 25000 50", "0 50 1 25000 50"},
			"0-3 0-100 3-53", 0},
		{"carma lets two start", []string{"0 100 1 39000 50", "0 100 1 39000 50", "0 50 1 39000 50"},
			"0-100 0-100 100-150", 0},
		{"so do the slots", []string{"0 100 1 1000 50", "0 100 1 1000 50", "0 50 1 1000 50"}, "0-100 0-100 100-150", 0},
	} {
		s := exact(2, policy.Carma)
		s.Model.Slurm.PublishS, s.Model.Slurm.PublishEveryS = 0.3, 1
		s.Thresholds.MaxJobs = 2
		if c.name == "so do the slots" {
			s.Thresholds.MaxJobs = 1
		}
		r, err := Run(s, jobs(c.jobs...))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var got []string
		for _, j := range r.Jobs {
			got = append(got, fmt.Sprintf("%.6g-%.6g", j.StartS, j.EndS))
		}
		if g := strings.Join(got, " "); g != c.want || r.GivenBack != c.givenBack {
			t.Errorf("%s:\ngot  %s, %d returned to the queue\nwant %s, %d", c.name, g, r.GivenBack, c.want, c.givenBack)
		}
	}
}

// With LLN=YES jobs go to the node with the most free slots, and share a GPU only
// when no node has an idle one; else to the first that has room.
func TestLeastLoadedByHand(t *testing.T) {
	for _, lln := range []bool{true, false} {
		s := exact(1, policy.MAGM)
		s.Nodes, s.Model.Slurm.LeastLoaded, s.Thresholds.Settle = 70, lln, 0
		var lines []string
		for i := range 70 {
			lines = append(lines, fmt.Sprint(10*i, " 100000 1 1000 10"))
		}
		r, err := Run(s, jobs(append(lines, "1000 100 1 1000 100")...)) // one more than nodes
		if err != nil {
			t.Fatal(err)
		}
		company := 0
		for _, j := range r.Jobs[:70] {
			if j.ExecS > 100000.1 {
				company++
			}
		}
		if lln && company != 1 || !lln && company < 40 {
			t.Errorf("LLN %v: %d of 70 jobs had company", lln, company)
		}
	}
}

// One user's GPU has room that slurmctld offers to that user alone: jobs of others wait, and are
// sent nowhere, with or without a node that serves one user at a time.
func TestOtherUserByHand(t *testing.T) {
	s := exact(1, policy.MAGM)
	s.Thresholds.Settle = 0
	w := jobs("0 1000 1 10000 10", "1 100 1 10000 10", "1 100 1 10000 10")
	w.Trace[1].User, w.Trace[2].User = w.Trace[0].User+8, w.Trace[0].User+8
	if r, err := Run(s, w); err != nil || r.GivenBack != 0 || r.Jobs[1].StartS < 1000 || r.Jobs[2].StartS < 1000 {
		t.Errorf("returned to the queue %d times, %+v, %v", r.GivenBack, r.Jobs, err)
	}
	w.Trace[2].User = w.Trace[0].User
	if r, err := Run(s, w); err != nil || r.GivenBack != 0 || r.Jobs[1].StartS < 1000 || r.Jobs[2].StartS > 100 {
		t.Errorf("the user's own: returned to the queue %d times, %+v, %v", r.GivenBack, r.Jobs, err)
	}
	s = exact(1, policy.MAGM)
	s.Nodes, s.Model.Slurm.ExclusiveUser = 2, true
	w = jobs("0 100 1 10000 10", "1 100 1 10000 10", "1 100 1 10000 10")
	w.Trace[1].User = 1001
	if r, err := Run(s, w); err != nil || r.GivenBack != 0 || r.Jobs[1].StartS != 1 {
		t.Errorf("with ExclusiveUser: %+v, %v", r, err)
	}
}

// A job waits for two GPUs of the first node, which are kept for it, is sent to the
// second with another that gets one of those, and backs off: until the first node's
// are free and slurmctld knows it, and no longer. Without a hold it backs off to the end.
func TestHeldByHand(t *testing.T) {
	for _, c := range []struct{ holdAfterS, timeoutS, start float64 }{{10, 1800, 291}, {0, 1800, 1105}, {10, 100, 1105}} {
		s := exact(2, policy.MAGM)
		s.Nodes, s.PrologWaitS, s.HoldAfterS, s.HoldTimeoutS = 2, 5, c.holdAfterS, c.timeoutS
		s.Model.Slurm.PublishS, s.Model.Slurm.PublishEveryS = 0.3, 1
		s.Model.Slurm.BackOffS, s.Model.Slurm.RequeueS = [2]float64{1000, 1000}, 0
		r, err := Run(s, jobs("0 290 1 20000 10", "0 100 1 20000 10", "0 290 1 20000 10", "0 100 1 20000 10",
			"10 2000 1 30000 10", "11 10 2 21000 10"))
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Jobs[5].StartS; got != c.start {
			t.Errorf("holds after %g s, for %g s: it starts after %g s, want %g; returned %d times: %+v", c.holdAfterS,
				c.timeoutS, got, c.start, r.GivenBack, r.Jobs)
		}
	}
}

// slurmctld takes its time after a submission, and none after the end of a job.
func TestScheduleByHand(t *testing.T) {
	s := exact(1, policy.Exclusive)
	s.Model.Slurm.ScheduleS = 3
	r, err := Run(s, jobs("0 100 1 20000 10", "2 100 1 20000 10", "50 100 1 20000 10", "400 100 1 20000 10"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []float64{3, 103, 203, 403} {
		if got := r.Jobs[i].StartS; got != want {
			t.Errorf("job %d starts at %g, want %g", i, got, want)
		}
	}
}

// An underestimate that MPS holds a job to costs it its first attempt; the
// second runs alone, on a GPU that nobody else gets meanwhile.
func TestRecoveryByHand(t *testing.T) {
	for recovery, want := range map[Recovery]struct{ again, third float64 }{RecoverExclusive: {200, 300},
		RecoverLadder: {5, 10}} {
		s := exact(1, policy.MAGM)
		s.Thresholds.Settle, s.Estimator, s.Recovery = 0, GPUMemNet, recovery
		w := jobs("0 200 1 4000 1", "0 100 1 9000 1", "10 500 1 4000 1")
		w.Jobs[0].GPUMemNetMiB, w.Jobs[1].GPUMemNetMiB, w.Jobs[2].GPUMemNetMiB = 4000, 5000, 4000
		s.Model.GPU.Law = "none"
		r, err := Run(s, w)
		if err != nil {
			t.Fatal(err)
		}
		if r.OOM != 1 || r.Failed != 0 || r.Jobs[1].Attempts != 2 {
			t.Errorf("%s: %d OOM, %d failed, %+v", recovery, r.OOM, r.Failed, r.Jobs[1])
		}
		if again, third := r.Jobs[1].StartS, r.Jobs[2].StartS; again != want.again || third != want.third {
			t.Errorf("%s: the second attempt starts at %g, the third job at %g; want %+v", recovery, again, third, want)
		}
	}
}

// random makes a workload of small jobs.
func random(r *rand.Rand, n, gpus int) *workload.Workload {
	w := &workload.Workload{}
	at := 0.0
	for i := range n {
		peak := 1000 + r.Int64N(30000)
		w.Jobs = append(w.Jobs, workload.Job{
			Name: fmt.Sprint("j", i), GPUs: 1 + r.IntN(gpus), DurationS: 10 + 1000*r.Float64(), SMActPct: 1 + 98*r.Float64(),
			PeakMiB: peak, SteadyMiB: peak - r.Int64N(peak/2),
			HorusMiB: peak / 2, GPUMemNetMiB: peak + peak/4, FakeTensorMiB: peak - peak/8,
		})
		w.Trace = append(w.Trace, workload.Submission{ArrivalS: at, Job: int32(i), User: 1000 + uint32(r.IntN(2))})
		at += 200 * r.Float64()
	}
	return w
}

// watcher looks at every change of a GPU.
type watcher struct {
	scheduler
	m    *machine
	t    *testing.T
	name string
}

func (w watcher) happened(what happening, id int32) {
	if what == changed {
		g := &w.m.gpus[id]
		sum := w.m.set.Model.GPU.BaseMiB
		for _, r := range g.residents {
			sum += w.m.tasks[r].mem
		}
		if g.used > w.m.capacity || sum != g.used || g.util < 0 || g.util > 1 {
			w.t.Fatalf("%s: at %g GPU %d uses %d MiB of %d, its jobs %d, activity %g", w.name, w.m.now, id, g.used,
				w.m.capacity, sum, g.util)
		}
	}
	w.scheduler.happened(what, id)
	s, ok := w.scheduler.(*slurm)
	if !ok || what != changed {
		return
	}
	var leased int64
	for _, l := range s.leased(id).leases {
		leased += l.ReserveMiB
	}
	if leased > w.m.capacity {
		w.t.Fatalf("%s: at %g GPU %d has %d MiB promised of %d", w.name, w.m.now, id, leased, w.m.capacity)
	}
}

func setups() []Setup {
	var all []Setup
	for _, p := range policy.Names() {
		for _, e := range Estimators {
			for _, mode := range Modes {
				s := Default()
				s.Mode, s.Policy, s.Estimator = Mode(mode), choose.Policy(p), Estimator(e)
				if s.Mode != Slurm {
					s.Queue = FIFO
				}
				if s.Mode != Slurm && s.Estimator == History {
					continue
				}
				all = append(all, s)
				if s.Mode == Slurm {
					s.Recovery, s.Queue, s.Streams, s.Nodes = RecoverLadder, FIFO, true, 3
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// Whatever is configured: no GPU holds more than it has, nothing is promised
// twice, every job ends after it has run its time, energy is the integral of
// power, and the same seed gives the same result.
func TestProperties(t *testing.T) {
	for i, s := range setups() {
		r := rand.New(rand.NewPCG(7, uint64(i)))
		w := random(r, 25, 3)
		s.Seed, s.Record = uint64(i), true
		name := fmt.Sprintf("%s %s %s, setup %d", s.Mode, s.Policy, s.Estimator, i)
		m := newMachine(&s, w)
		if s.Mode == Slurm {
			m.sched = watcher{newSlurm(m, w), m, t, name}
		} else {
			m.sched = watcher{newPaper(m), m, t, name}
		}
		if err := m.play(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := m.result()
		again, err := Run(s, w)
		if err != nil || !reflect.DeepEqual(got, again) {
			t.Errorf("%s: a second run differs (%v)", name, err)
		}
		for k, j := range got.Jobs {
			alone := m.tasks[k].alone + m.tasks[k].startup
			if j.Failed || j.Attempts < 1 || j.StartS < j.ArrivalS || j.EndS-j.StartS < alone-1e-6 {
				t.Errorf("%s: job %d alone takes %g: %+v", name, k, alone, j)
			}
		}
		var curve float64
		for k, watts := range got.Curves.Watts {
			curve += watts * got.Curves.StepS
			if got.Curves.SMActPct[k] > 100.001 || got.Curves.MemMiB[k] > float64(s.GPUMemMiB)*1.00001 ||
				watts > 1.00001*s.Model.GPU.Watts(1)*float64(len(m.gpus)) {
				t.Fatalf("%s: interval %d: %g %%, %g MiB, %g W", name, k, got.Curves.SMActPct[k], got.Curves.MemMiB[k], watts)
			}
		}
		if math.Abs(curve-got.EnergyJ) > 1e-6*got.EnergyJ {
			t.Errorf("%s: energy %g J, integral of power %g J", name, got.EnergyJ, curve)
		}
		if b := BoundOf(s, w); got.EnergyJ < 0.97*b.EnergyJ {
			t.Errorf("%s: energy %g below the bound %g", name, got.EnergyJ, b.EnergyJ)
		}
	}
}

// With jobs on one GPU each, what GPUs do is what jobs need, however they share.
func TestWorkConserved(t *testing.T) {
	for seed := range uint64(20) {
		w := random(rand.New(rand.NewPCG(3, seed)), 40, 1)
		for _, law := range []string{"equal", "propu"} {
			s := Default()
			s.Estimator, s.Seed, s.Model.GPU.Law = Oracle, seed, law
			s.Model.Job.DurationJitterPct = 0
			r, err := Run(s, w)
			if err != nil {
				t.Fatal(err)
			}
			done := r.SMActPct / 100 * r.MakespanS * float64(s.GPUs)
			// Taking turns (two users here) halves both activity and progress.
			if want := w.GPUSeconds(); math.Abs(done-want) > 1e-6*want {
				t.Errorf("seed %d, law %s: GPUs did %g s at full activity, jobs need %g", seed, law, done, want)
			}
		}
	}
}

func TestIdealWithinBounds(t *testing.T) {
	w := random(rand.New(rand.NewPCG(5, 5)), 60, 2)
	s := Default()
	s.Model.Job.DurationJitterPct = 0
	best, err := Ideal(s, w)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := Run(s, w)
	if err != nil {
		t.Fatal(err)
	}
	if b := BoundOf(s, w); best.MakespanS < b.MakespanS || best.OOM != 0 || best.JCTS > ours.JCTS {
		t.Errorf("ideal %+v\nours %+v\nbound %+v", best, ours, b)
	}
}

func TestRunRefuses(t *testing.T) {
	one := jobs("0 10 1 1000 50")
	for want, f := range map[string]func(*Setup, *workload.Workload){
		"mode \"x\" is not one of slurm, paper-v1, paper-v2": func(s *Setup,
			_ *workload.Workload) {
			s.Mode = "x"
		},
		"mode paper-v1: the reference system knows one node": func(s *Setup, _ *workload.Workload) {
			s.Mode,
				s.Nodes = PaperV1, 2
		},
		"nodes 0: a cluster has 1 to 1048576 GPUs": func(s *Setup,
			_ *workload.Workload) {
			s.Nodes = 0
		},
		"smact-cap NaN: must be above 0; 100 switches it off": func(s *Setup,
			_ *workload.Workload) {
			s.Thresholds.SMActMaxPct = math.NaN()
		},
		"the trace has no submissions": func(_ *Setup,
			w *workload.Workload) {
			w.Trace = nil
		},
		"estimator horus: job j0 has no number of it; the job table needs": func(s *Setup,
			_ *workload.Workload) {
			s.Estimator = Horus
		},
		"job j0 requests 2 GPUs, but a node has 1": func(s *Setup,
			_ *workload.Workload) {
			s.GPUs = 1
			one.Jobs[0].GPUs = 2
		},
	} {
		s, w := Default(), *one
		f(&s, &w)
		if _, err := Run(s, &w); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		one.Jobs[0].GPUs = 1
	}
}
