// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// retryEvery is the pause between two looks at the ledger while no GPU fits. A driver that does
// not answer is asked again, by a process of its own, every resampleEvery.
const (
	retryEvery    = 100 * time.Millisecond
	resampleEvery = time.Second
)

// errUncounted means that no GPU fits, for what slurmctld does not know of.
var errUncounted = fmt.Errorf("%w: not visible in slurmctld's counts", lease.ErrNoFit)

// acquire tries until GPUs fit or wait is over, and no longer than most while jobs go
// that this one preempts.
func (n *Node) acquire(ctx context.Context, l *launch, ledger Ledger, slurm Slurm, wait,
	most time.Duration) ([]lease.Granted, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(wait, most)+n.Config.Hooks.Deadline.D())
	defer cancel()
	job, r, decide := l.job, l.request, n.chooser(l.Hook)
	if err := l.about.keepIn(&job); err != nil {
		return nil, err
	}
	var last choose.Decision
	pick := func(readings []gres.Reading, leases []gres.Lease, given string) ([]string, gres.Daemon) {
		n.closeStale(readings)
		last = decide(choose.Input{Readings: readings, Leases: leases, Request: r, Thresholds: n.Thresholds, Last: given})
		return last.UUIDs, last.Daemon
	}
	until, latest := time.Now().Add(wait), time.Now().Add(most)
	var sampled time.Time // in vain
	for {
		if time.Since(sampled) >= resampleEvery {
			if err := n.refresh(ctx, ledger); err != nil {
				if sampled.IsZero() {
					n.Log.Warn("read GPUs; using the last readings", "job", job.JobKey, "error", err)
				}
				sampled = time.Now()
			}
		}
		lease.FailPoint("prolog.refreshed")
		granted, err := ledger.Acquire(ctx, job, r, pick)
		lease.FailPoint("lease.committed")
		switch {
		case err == nil:
			return granted, nil
		case !errors.Is(err, lease.ErrNoFit):
			n.Log.Error("lease GPUs", "job", job.JobKey, "error", err)
			return nil, err
		}
		if gone := n.preempt(ctx, l, ledger, slurm, latest); gone.After(until) {
			until = gone
			if until.After(latest) {
				until = latest
			}
		}
		if ctx.Err() != nil || !time.Now().Before(until) {
			n.logRefusals(job.JobKey, r, last)
			if last.Uncounted() {
				err = errUncounted
			}
			return nil, err
		}
		time.Sleep(retryEvery)
	}
}

// refresh replaces readings that are too old to decide on, as when the agent
// does not run.
func (n *Node) refresh(ctx context.Context, ledger Readings) error {
	age, ok, err := ledger.Oldest(ctx)
	if err != nil || ok && age <= n.staleAfter() {
		return err
	}
	readings, err := n.Sample(ctx)
	if err != nil {
		return err
	}
	return ledger.PutReadings(ctx, readings)
}

func (n *Node) staleAfter() time.Duration {
	return max(3*n.Config.NVML.Interval.D(), 3*time.Second)
}

// closeStale closes GPUs whose readings are so old that they tell nothing of what runs there now:
// those of an agent that has died, with a driver that does not answer. The mean of the SM
// activity is over smact.window.
func (n *Node) closeStale(readings []gres.Reading) {
	tooOld := max(n.Config.SMAct.Window.D(), n.staleAfter())
	for i := range readings {
		if r := &readings[i]; r.Age > tooOld && r.Unreadable == "" {
			r.Unreadable = fmt.Sprintf("it was last read %s ago", r.Age.Round(time.Second))
		}
	}
}

func (n *Node) logRefusals(key jobenv.JobKey, r gres.Request, d choose.Decision) {
	n.Log.Warn("no GPU fits", "job", key, "gpus", r.GPUs, "reserve_mib", r.ReserveMiB, "exclusive", r.Exclusive)
	for _, refusal := range d.Refusals {
		n.Log.Warn("passed over", "job", key, "gpu", refusal.UUID, "reason", refusal.Reason.String())
	}
}
