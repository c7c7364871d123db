// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/resident"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// byPID says that process 100+N is of job N.
type byPID struct{ Owners }

func (byPID) Owner(pid int) resident.Owner { return resident.Owner{JobID: uint32(pid - 100)} }

// slowed plays seconds on one GPU, a look a second, and returns what the ledger would know.
type slowed struct {
	a      *Agent
	now    time.Duration
	leases []gres.Lease
	lawS   map[uint32]float64
}

func newSlowed(bound float64, log *bytes.Buffer, leases ...gres.Lease) *slowed {
	c := config.Default()
	c.SMAct.Window = config.Duration(10 * time.Second)
	return &slowed{a: &Agent{Config: c, Thresholds: choose.Thresholds{MaxSlowdown: bound},
		Log: slog.New(slog.NewTextHandler(log, nil))}, now: time.Hour, leases: leases, lawS: map[uint32]float64{}}
}

func (p *slowed) play(seconds int, smact, dram float64, source figure.Source, present ...uint32) {
	for range seconds {
		p.now += time.Second
		s := gres.Sample{GPU: gres.GPU{UUID: "GPU-a"}, SMActPct: figure.Measured(smact), DRAMPct: figure.Measured(dram),
			Source: source, EnergyJ: figure.Unknown, PowerWatts: figure.Unknown}
		for _, job := range present {
			s.Processes = append(s.Processes, gres.Process{PID: int(100 + job)})
		}
		for _, u := range p.a.account(s, p.leases, byPID{}, p.now) {
			p.lawS[u.Job.JobID] += u.LawS
			for i := range p.leases {
				l := &p.leases[i]
				if l.Job != u.Job {
					continue
				}
				if u.AlonePct > 0 {
					l.AlonePct, l.AloneDRAMPct = u.AlonePct, u.AloneDRAMPct
				}
				if u.Slowed != 0 {
					l.Slowed = max(u.Slowed, 0)
				}
			}
		}
	}
}

func leaseOf(job uint32, pct float64) gres.Lease {
	return gres.Lease{Job: jobenv.JobKey{JobID: job}, UUID: "GPU-a", SMActPct: pct, Age: time.Minute, Seen: true,
		Daemon: "GPU-a"}
}

// What a job does alone is measured while it has the GPU to itself and uses it.
func TestAloneIsMeasured(t *testing.T) {
	var log bytes.Buffer
	near := func(got, want float64) bool { return math.Abs(got-want) < 1 }
	p := newSlowed(0, &log, leaseOf(1, 0))
	p.play(30, 0, 0, figure.SourceGPM, 1) // it reads its data
	p.play(9, 60, 20, figure.SourceGPM, 1)
	if l := p.leases[0]; l.AlonePct != 0 {
		t.Errorf("after 9 s of a window of 10: %+v", l)
	}
	p.play(5, 60, 20, figure.SourceGPM, 1)
	if l := p.leases[0]; !near(l.AlonePct, 60) || !near(l.AloneDRAMPct, 20) {
		t.Errorf("%+v", l)
	}
	p.leases = append(p.leases, leaseOf(2, 0))
	p.play(60, 90, 80, figure.SourceGPM, 1, 2)
	if a, b := p.leases[0], p.leases[1]; !near(a.AlonePct, 60) || b.AlonePct != 0 {
		t.Errorf("while they share: %+v, %+v", a, b)
	}
	coarse := newSlowed(0, &log, leaseOf(1, 0))
	coarse.play(60, 90, math.NaN(), figure.SourceUtilisation, 1)
	foreign := newSlowed(0, &log, leaseOf(1, 0))
	foreign.play(60, 90, 50, figure.SourceGPM, 1, 7)
	if coarse.leases[0].AlonePct != 0 || foreign.leases[0].AlonePct != 0 {
		t.Errorf("coarse %+v, beside a process of no job %+v", coarse.leases[0], foreign.leases[0])
	}
}

// The time that a job takes alone by the law is what its expected slowdown is reckoned from.
func TestLawIsAccounted(t *testing.T) {
	var log bytes.Buffer
	p := newSlowed(0, &log, leaseOf(1, 50), leaseOf(2, 50))
	p.play(1, 75, 0, figure.SourceGPM, 1, 2)
	p.lawS = map[uint32]float64{}
	p.play(100, 75, 0, figure.SourceGPM, 1, 2)
	if got := 100 / p.lawS[1]; math.Abs(got-1/0.75) > 0.01 {
		t.Errorf("expected slowdown %.2f", got)
	}
	p.leases = p.leases[:1]
	p.play(2, 50, 0, figure.SourceGPM, 1)
	p.lawS = map[uint32]float64{}
	p.play(100, 50, 0, figure.SourceGPM, 1)
	if math.Abs(p.lawS[1]-100) > 0.01 {
		t.Errorf("alone: %.1f of 100 s", p.lawS[1])
	}
}

// A job that is slowed beyond its bound for long is said so, once, and no longer when that
// ends; a short time is not said.
func TestSlowedIsSaid(t *testing.T) {
	const line = "a job is slowed beyond its bound"
	var log bytes.Buffer
	p := newSlowed(1.5, &log, leaseOf(1, 60), leaseOf(2, 60))
	p.play(50, 60, 0, figure.SourceGPM, 1, 2) // 1.2 / 0.6
	p.play(60, 84, 0, figure.SourceGPM, 1, 2) // as the law has it, 1.43: 1.65 over all 100 s
	if n := strings.Count(log.String(), line); n != 2 || p.leases[0].Slowed < 1.6 || p.leases[1].Slowed == 0 {
		t.Errorf("%d lines, %+v:\n%s", n, p.leases[0], &log)
	}
	if want := "slowdown=1.67 bound=1.5 by=\"SM activity\""; !strings.Contains(log.String(), "slowdown=1.6") ||
		!strings.Contains(log.String(), `bound=1.5 by="SM activity"`) {
		t.Errorf("want about %s:\n%s", want, &log)
	}
	p.play(100, 60, 0, figure.SourceGPM, 1, 2)
	if n := strings.Count(log.String(), line); n != 2 {
		t.Errorf("said again: %d lines", n)
	}
	p.play(200, 84, 0, figure.SourceGPM, 1, 2)
	if p.leases[0].Slowed != 0 {
		t.Errorf("it is over: %+v", p.leases[0])
	}
	log.Reset()
	p = newSlowed(1.5, &log, leaseOf(1, 60), leaseOf(2, 60))
	p.play(20, 40, 0, figure.SourceGPM, 1, 2) // 3.0, for a fifth of the time
	p.play(90, 118, 0, figure.SourceGPM, 1, 2)
	if log.Len() > 0 || p.leases[0].Slowed != 0 {
		t.Errorf("a short time: %s", &log)
	}
	p = newSlowed(1.5, &log, leaseOf(1, 60), leaseOf(2, 60))
	p.play(150, 0, 0, figure.SourceGPM, 1, 2)
	if log.Len() > 0 || p.leases[0].Slowed != 0 {
		t.Errorf("jobs that do nothing together: %s", &log)
	}
	p = newSlowed(0, &log, leaseOf(1, 60), leaseOf(2, 60))
	p.leases[1].MaxSlowdown = 1.2
	p.play(150, 84, 0, figure.SourceGPM, 1, 2)
	if strings.Count(log.String(), line) != 1 || p.leases[1].Slowed == 0 || p.leases[0].Slowed != 0 {
		t.Errorf("a user's own bound: %+v\n%s", p.leases, &log)
	}
}
