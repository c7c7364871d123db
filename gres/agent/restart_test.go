// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"math"
	"path/filepath"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// stored is a database of records.
type stored struct {
	records
	db *db.DB
}

func (s *stored) Meters(ctx context.Context) ([]db.Meter, error) { return s.db.Meters(ctx) }
func (s *stored) AddSamples(ctx context.Context, samples []db.Sample, meters []db.Meter) error {
	return s.db.AddSamples(ctx, samples, meters)
}
func (s *stored) Series(ctx context.Context, uuid string, from, to time.Time) ([]db.Sample, error) {
	return s.db.Series(ctx, uuid, from, to)
}

// stopping is a ledger during whose look the agent is told to end.
type stopping struct {
	*lease.Ledger
	looks int // until then
	stop  context.CancelFunc
}

func (s *stopping) EndedSince(ctx context.Context, since time.Duration) ([]lease.Ended, error) {
	ended, err := s.Ledger.EndedSince(ctx, since)
	if s.looks--; s.looks == 0 {
		s.stop()
	}
	return ended, err
}

// Agents that are ended as by SIGTERM, in the middle of a sample and of a look, and start again at once: job and
// samples lose no energy, and samples lose no time but the time between two agents.
func TestNothingIsLostAtRestarts(t *testing.T) {
	const agents, looks = 6, 4
	book := book(t, 7)
	records, err := db.Open(filepath.Join(t.TempDir(), "carma.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer records.Close()
	var counter float64       // from 0, the reading in the ledger
	var without time.Duration // an agent
	var ended time.Time
	var looked []time.Time
	began := time.Now()
	for range agents {
		h := &hung{until: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ledger := &stopping{Ledger: book, looks: looks, stop: cancel}
		a := newAgent()
		a.Node, a.RunDir, a.Ledger, a.Owners = "n1", t.TempDir(), ledger, owners{1: {JobID: 7}}
		a.Jobs, a.Publisher, a.Records = h, h, &stored{db: records}
		wire(a)
		a.Returned.Ledger, a.Offers.Ledger, a.Ends.Ledger = book, book, book
		a.Config.NVML.Interval = config.Duration(100 * time.Millisecond)
		a.Sample = func() []gres.Sample {
			looked = append(looked, time.Now())
			counter += 100
			if !ended.IsZero() {
				without, ended = without+time.Since(ended), time.Time{}
			}
			s := sample(gres.Process{PID: 1, UsedMiB: 10})
			s.EnergyJ, s.SMActPct = figure.Measured(counter), 50
			return []gres.Sample{s}
		}
		context.AfterFunc(ctx, func() { close(h.until) })
		if err := a.Run(ctx); err != nil {
			t.Fatal(err)
		}
		ended = time.Now()
	}
	held, ok, err := book.Find(t.Context(), jobenv.JobKey{JobID: 7})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	samples, err := records.Series(t.Context(), "a", began.Add(-time.Minute), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	joules, unowned, seconds, pct := 0.0, 0.0, 0.0, 0.0
	for _, s := range samples {
		unowned += float64(s.UnownedJ)
		joules, seconds, pct = joules+float64(s.EnergyJ), seconds+s.SMActS, pct+float64(s.SMActPct)*s.SMActS
	}
	if job := float64(held.GPUs[0].EnergyJ); math.Abs(joules-counter) > 1 || math.Abs(job+unowned-counter) > 1 {
		t.Errorf("of %.0f J samples have %.0f J, the job %.0f J and nobody %.0f J: %+v", counter, joules, job, unowned,
			samples)
	}
	// From look to look: no sample is of an agent's start, nor of the test's own work.
	least := looked[len(looked)-1].Sub(looked[0]) - without
	if seconds < least.Seconds()-0.01 || math.Abs(pct/seconds-50) > 0.01 {
		t.Errorf("samples are of %.2f s of at least %s, and %.1f %%", seconds, least, pct/seconds)
	}
}
