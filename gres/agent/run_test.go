// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"carma/db"
	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// hung takes ten minutes for everything, or until the test ends: an MPS control daemon and
// a slurmctld that do not answer.
type hung struct {
	MPS
	ReturnedJobs
	EndedJobs
	Cluster
	until     chan struct{}
	asked     atomic.Int32
	published atomic.Int32
	told      chan time.Duration // the age of what is published first
}

func (h *hung) hang() error {
	h.asked.Add(1)
	select {
	case <-h.until:
	case <-time.After(10 * time.Minute):
	}
	return context.DeadlineExceeded
}

func (h *hung) Keep(context.Context, gres.Daemon, func(int64) (int64, error)) error { return h.hang() }
func (h *hung) Tenant(gres.Daemon) (int64, bool)                                    { return gres.Nobody, false }
func (h *hung) Restricted() error                                                   { return nil }
func (h *hung) ClearEnded(context.Context) error                                    { return nil }
func (h *hung) Sets() ([]gres.Daemon, error)                                        { return nil, nil }
func (h *hung) End(context.Context, gres.Daemon, func() (bool, error)) error        { return nil }
func (h *hung) ServerFault(gres.Daemon, int64) (bool, int64, error)                 { return false, 0, h.hang() }
func (h *hung) BoundLogs() error                                                    { return nil }

func (h *hung) Job(context.Context, uint32) (sctl.Job, error) { return sctl.Job{}, h.hang() }
func (h *hung) Describe(context.Context, []uint32) (map[uint32]sctl.Description, error) {
	return nil, h.hang()
}
func (h *hung) Nodes(context.Context, []string) ([]schedule.Node, error) {
	return nil, h.hang()
}

func (h *hung) PublishIf(_ context.Context, s lease.Snapshot) error {
	if h.published.Add(1) == 1 && h.told != nil {
		h.told <- s.Readings[0].Age
	}
	return nil
}
func (h *hung) CompareIf(context.Context, lease.Snapshot, time.Duration, int) (string, bool, error) {
	return "", false, h.hang()
}
func (h *hung) SetWords(context.Context, map[string]string) error     { return h.hang() }
func (h *hung) NodeNames(context.Context, []string) ([]string, error) { return nil, h.hang() }

// slowDisk are the records on a disk without an answer.
type slowDisk struct {
	records
	until *hung
}

func (d *slowDisk) AddSamples(context.Context, []db.Sample, []db.Meter) error { return d.until.hang() }

// MPS daemons, a disk and a slurmctld that do not answer delay no reading of the GPUs and no
// publication, and none of them the others.
func TestNothingWaitsForWhatHangs(t *testing.T) {
	b := book(t, 7)
	if err := b.AddPendingRestart(t.Context(), 9, 0); err != nil {
		t.Fatal(err)
	}
	h := &hung{until: make(chan struct{})}
	var looks atomic.Int32
	a := newAgent()
	a.Node, a.RunDir, a.Ledger, a.Owners = "n1", t.TempDir(), b, owners{1: {JobID: 7}}
	a.Jobs, a.Publisher, a.Records = h, h, &slowDisk{until: h}
	wire(a)
	a.Steward = &Steward{Node: "n1", Config: &a.Config, Log: a.Log, Cluster: h, Jobs: h, Own: h}
	a.Daemons = &Daemons{MPS: h, Leases: b, Faults: b, Owners: a.Owners, Log: a.Log}
	a.Config.NVML.Interval = config.Duration(10 * time.Millisecond)
	a.Config.Capacity.Compare = config.Duration(10 * time.Millisecond)
	a.Sample = func() []gres.Sample {
		looks.Add(1)
		return []gres.Sample{sample(gres.Process{PID: 1})}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	// One question each about MPS, the counts, the job that is requeued, the steward, and the samples of ten looks.
	for start := time.Now(); looks.Load() < 5*sampleOf || h.published.Load() < 20 ||
		h.asked.Load() < 5; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("%d looks, %d publications, %d questions", looks.Load(), h.published.Load(), h.asked.Load())
		}
	}
	cancel()
	close(h.until)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An agent that starts tells nobody what was read before it was stopped.
func TestNothingIsToldBeforeTheFirstLook(t *testing.T) {
	b := book(t, 7)
	old := []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40536}, Age: time.Hour}}
	if err := b.PutReadings(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	h := &hung{until: make(chan struct{}), told: make(chan time.Duration, 1)}
	a := newAgent()
	a.Node, a.RunDir, a.Ledger, a.Owners = "n1", t.TempDir(), b, owners{}
	a.Jobs, a.Publisher = h, h
	wire(a)
	a.Steward = &Steward{Node: "n1", Config: &a.Config, Log: a.Log, Cluster: h, Jobs: h, Own: h}
	a.Sample = func() []gres.Sample {
		time.Sleep(300 * time.Millisecond)
		return []gres.Sample{sample()}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	if age := <-h.told; age > time.Minute {
		t.Errorf("readings of %s ago are published", age)
	}
	cancel()
	close(h.until)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
