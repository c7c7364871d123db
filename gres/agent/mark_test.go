// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// book is a real ledger on which a job holds GPU a.
func book(t *testing.T, job uint32) *lease.Ledger {
	t.Helper()
	b, err := lease.Open(t.TempDir(), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	if err := b.PutReadings(t.Context(), []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40536}}}); err != nil {
		t.Fatal(err)
	}
	first := func([]gres.Reading, []gres.Lease, string) ([]string, gres.Daemon) { return []string{"a"}, "" }
	if _, err := b.Acquire(t.Context(), lease.Job{JobKey: jobenv.JobKey{JobID: job}}, gres.Request{GPUs: 1},
		first); err != nil {
		t.Fatal(err)
	}
	return b
}

// refusing is a ledger that takes no measurement while it refuses.
type refusing struct {
	*lease.Ledger
	refuses bool
}

func (r *refusing) Measure(ctx context.Context, readings []gres.Reading, usages []lease.Usage) error {
	if r.refuses {
		return errors.New("disk is full")
	}
	return r.Ledger.Measure(ctx, readings, usages)
}

// A mark that a job is idle does not outlive the write that was to end it: the ledger is
// told again until it has taken it, so that a job at work is not cancelled.
func TestIdleMarkAfterAFailedWrite(t *testing.T) {
	b := &refusing{Ledger: book(t, 7)}
	a := newAgent()
	a.Ledger, a.Owners = b, owners{1: {JobID: 7}}
	quiet := sample(gres.Process{PID: 1})
	busy := quiet
	busy.SMActPct = 60
	marked := func() bool {
		s, err := b.Snapshot(t.Context())
		if err != nil || len(s.Leases) != 1 {
			t.Fatalf("%+v, %v", s, err)
		}
		return s.Leases[0].Idle > 0
	}
	for _, look := range []struct {
		what            string
		sample          gres.Sample
		refuses, marked bool
	}{
		{"idle", quiet, false, true},
		{"at work, which the ledger does not take", busy, true, true},
		{"at work", busy, false, false},
		{"idle, which the ledger does not take", quiet, true, false},
		{"idle", quiet, false, true},
	} {
		a.Sample, b.refuses = func() []gres.Sample { return []gres.Sample{look.sample} }, look.refuses
		a.observe(t.Context())
		if got := marked(); got != look.marked {
			t.Fatalf("%s: marked idle: %v", look.what, got)
		}
	}
}
