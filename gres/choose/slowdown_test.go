// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"carma/db/figure"
	"carma/gres"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

// doing is a lease of user 1000 on a whose job is expected to keep pct of the SMs active.
func doing(job uint32, pct float64) gres.Lease {
	l := held("a", 1000)
	l.Job, l.SMActPct = jobenv.JobKey{JobID: job}, pct
	return l
}

func TestSlowdown(t *testing.T) {
	lease := func(l gres.Lease, f func(*gres.Lease)) gres.Lease { f(&l); return l }
	strict := lease(doing(1, 20), func(l *gres.Lease) { l.MaxSlowdown = 1.1 })
	others := lease(doing(1, 20), func(l *gres.Lease) { l.UID = 2000 })
	quiet := with(gpu("a"), func(r *gres.Reading) { r.SMActPct = math.NaN() })
	active := func(pct float64) gres.Reading {
		return with(gpu("a"), func(r *gres.Reading) { r.SMActPct = pct })
	}
	for _, c := range []struct {
		name    string
		reading gres.Reading
		leases  []gres.Lease
		pct     float64 // of the newcomer
		site    float64
		own     float64
		want    string // empty: it is taken
	}{
		{"no bound", quiet, []gres.Lease{doing(1, 90)}, 90, 0, 0, ""},
		{"within", quiet, []gres.Lease{doing(1, 60)}, 60, 1.5, 0, ""},
		{"beyond, of the resident", quiet, []gres.Lease{doing(7, 80)}, 80, 1.5, 0,
			"job 7's expected slowdown 1.67 above 1.50"},
		{"a third", quiet, []gres.Lease{doing(1, 60), doing(2, 50)}, 60, 1.5, 0,
			"job 1's expected slowdown 1.85 above 1.50"},
		{"the newcomer's own wish", quiet, []gres.Lease{doing(1, 60)}, 60, 1.5, 1.3,
			"this job's expected slowdown 1.43 above 1.30"},
		{"a wish is only stricter", quiet, []gres.Lease{doing(1, 80)}, 80, 1.5, 3,
			"job 1's expected slowdown 1.67 above 1.50"},
		{"a resident's wish", quiet, []gres.Lease{strict}, 20, 0, 0, "job 1's expected slowdown 1.11 above 1.10"},
		{"nothing is known of the newcomer", quiet, []gres.Lease{doing(1, 60)}, 0, 1.5, 0,
			"job 1's expected slowdown 1.60 above 1.50; SM activity of this job is not known, 100 % counted"},
		{"the reading is beyond all", active(100.4), []gres.Lease{doing(1, 100)}, 60, 1.5, 0,
			"job 1's expected slowdown 1.60 above 1.50"},
		{"nothing is known of it, and there is room", quiet, []gres.Lease{doing(1, 40)}, 0, 1.5, 0, ""},
		{"nothing is known of the resident", quiet, []gres.Lease{doing(1, 0)}, 60, 1.5, 0,
			"job 1's expected slowdown 1.60 above 1.50"},
		{"it was measured alone", quiet, []gres.Lease{lease(doing(1, 0), func(l *gres.Lease) { l.AlonePct = 30 })}, 60, 1.5,
			0, ""},
		{"measured to do more than expected", quiet, []gres.Lease{lease(doing(1, 10), func(l *gres.Lease) {
			l.AlonePct = 90
		})}, 60, 1.5, 0, "job 1's expected slowdown 1.56 above 1.50"},
		{"measured to do less than expected", quiet, []gres.Lease{lease(doing(1, 90), func(l *gres.Lease) {
			l.AlonePct = 10
		})}, 60, 1.5, 0, "job 1's expected slowdown 1.56 above 1.50"},
		{"the GPU does more than its jobs are expected to", active(90), []gres.Lease{doing(1, 10)}, 60, 1.5, 0,
			"job 1's expected slowdown 1.56 above 1.50"},
		{"less", active(5), []gres.Lease{doing(1, 60)}, 60, 1.5, 0, ""},
		{"a source that overstates", with(active(90), func(r *gres.Reading) { r.Source = figure.SourceUtilisation }),
			[]gres.Lease{doing(1, 10)}, 60, 1.5, 0, ""},
		{"bandwidth of the residents", quiet, []gres.Lease{
			lease(doing(1, 20), func(l *gres.Lease) { l.AloneDRAMPct = 90 }),
			lease(doing(2, 20), func(l *gres.Lease) { l.AloneDRAMPct = 90 })}, 10, 1.5, 0,
			"job 1's expected slowdown 1.82 above 1.50"},
		{"taking turns doubles the time", quiet, []gres.Lease{others}, 5, 1.9, 0,
			"job 1's expected slowdown 2.00 above 1.90"},
	} {
		t.Run(c.name, func(t *testing.T) {
			th := defaults
			th.SMActMaxPct, th.MaxSlowdown = 100, c.site
			r := shared(1, 1000)
			r.SMActPct, r.MaxSlowdown = c.pct, c.own
			d := GPUs(policy.MAGM, Input{Readings: []gres.Reading{c.reading}, Leases: c.leases, Request: r, Thresholds: th})
			got := ""
			if d.UUIDs == nil {
				got = d.Refusals[0].Reason.String()
				if !d.Uncounted() {
					t.Error("slurmctld's counts do not tell that")
				}
			}
			if got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// What slurmctld is told: a GPU on which only a job that does little would fit is closed,
// and one whose user has set no bound is open under no bound.
func TestPlaceableBySlowdown(t *testing.T) {
	th := defaults
	th.SMActMaxPct, th.MaxSlowdown = 100, 1.5
	for _, pct := range []float64{0, 40, 95} {
		mib, why := Placeable(gpu("a"), []gres.Lease{doing(1, pct)}, th)
		if got := fmt.Sprint(mib, " ", why); got != "37488 " {
			t.Errorf("%g: %s", pct, got)
		}
	}
	mib, why := Placeable(gpu("a"), []gres.Lease{doing(1, 70), doing(2, 60)}, th)
	if mib != 0 || !strings.HasPrefix(why.String(), "job 1's expected slowdown") {
		t.Error(mib, why)
	}
	th.MaxSlowdown = 0
	if mib, why = Placeable(gpu("a"), []gres.Lease{doing(1, 70), doing(2, 60)}, th); mib == 0 {
		t.Error(why)
	}
}

// A job that preempts has as many go as it takes to keep the bounds.
func TestEvictBySlowdown(t *testing.T) {
	th := defaults
	th.SMActMaxPct, th.MaxSlowdown = 100, 1.5
	r := shared(1, 1000)
	r.JobID, r.SMActPct = 9, 60
	in := Input{Readings: []gres.Reading{gpu("a")}, Leases: []gres.Lease{doing(1, 40), doing(2, 60)}, Request: r,
		Thresholds: th}
	in.Leases[0].Age *= 2
	_, jobs := Evict(policy.MAGM, in, func(*gres.Lease) Leaving { return Yields })
	if len(jobs) != 1 || jobs[0].JobID != 2 {
		t.Error(jobs)
	}
}

// Whatever jobs come, none is slowed beyond the bound, by the law, and an idle GPU takes
// each.
func TestSlowdownHolds(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	shares := 0
	for range 300 {
		th := defaults
		th.SMActMaxPct, th.MaxSlowdown = 100, 1.05+r.Float64()
		readings := []gres.Reading{gpu("a"), gpu("b")}
		var leases []gres.Lease
		for job := range uint32(8) {
			req := shared(1, 1000)
			req.JobID, req.SMActPct, req.UID = job+1, float64(r.IntN(101)), 1000+uint32(r.IntN(2))
			if r.IntN(3) == 0 {
				req.MaxSlowdown = 1.01 + r.Float64()
			}
			d := GPUs(policy.LUG, Input{Readings: readings, Leases: leases, Request: req, Thresholds: th})
			if d.UUIDs == nil {
				if len(leases) == 0 {
					t.Fatal("refused on an idle node", d.Refusals)
				}
				continue
			}
			leases = append(leases, gres.Lease{Job: jobenv.JobKey{JobID: req.JobID}, UUID: d.UUIDs[0], UID: req.UID,
				ReserveMiB: 1000, SMActPct: req.SMActPct, MaxSlowdown: req.MaxSlowdown, Seen: true, Daemon: d.Daemon})
		}
		for i := range readings {
			for _, x := range Slowdowns(nil, &readings[i], leases) {
				if bound := BoundOf(th.MaxSlowdown, x.Lease.MaxSlowdown); x.Times > bound+1e-9 {
					t.Fatalf("job %d: %g above %g in %+v", x.Lease.Job.JobID, x.Times, bound, leases)
				}
				if x.Times > 1 {
					shares++
				}
			}
		}
	}
	if shares < 100 {
		t.Errorf("%d jobs share", shares)
	}
}

// A choice under a bound takes no more memory than one without.
func BenchmarkSlowdown(b *testing.B) {
	th := defaults
	th.SMActMaxPct, th.MaxSlowdown = 100, 1.5
	in := Input{Thresholds: th, Request: shared(1, 1000)}
	in.Request.SMActPct = 40
	for i := range 8 {
		in.Readings = append(in.Readings, gpu(fmt.Sprint("GPU-", i)))
		for range 2 {
			l := held(fmt.Sprint("GPU-", i), 1000)
			l.SMActPct = 30
			in.Leases = append(in.Leases, l)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		GPUs(policy.MAGM, in)
	}
}
