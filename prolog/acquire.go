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
	"carma/slurmbridge/config"
)

// retryEvery is the pause between two looks at the ledger while no GPU fits. A silent driver is
// asked again, by a process of its own, every resampleEvery.
const (
	retryEvery    = 100 * time.Millisecond
	resampleEvery = time.Second
)

// errUncounted means that no GPU fits, for what no node's Extra tells.
var errUncounted = fmt.Errorf("%w: not visible in the node's Extra", lease.ErrNoFit)

// acquire tries until GPUs fit or wait is over, and no longer than most while
// preempted jobs end.
func (l *launch) acquire(ctx context.Context, wait, most time.Duration) ([]lease.Granted, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(wait, most)+l.node.Config.Hooks.Deadline.D())
	defer cancel()
	job, r, policy := l.job, l.request, l.node.policy(l.Hook)
	if err := l.about.keepIn(&job); err != nil {
		return nil, err
	}
	var last choose.Decision
	yields := l.yields()
	place := l.place
	if yields {
		place.rest()
	} else {
		place.wait()
	}
	defer place.rest()
	pick := func(readings []gres.Reading, leases []gres.Lease, given string) ([]string, gres.Daemon) {
		closeStale(readings, l.node.Config)
		in := choose.Input{Readings: readings, Leases: leases, Request: r, Thresholds: l.node.Thresholds, Last: given}
		last = choose.GPUs(policy, in)
		if yields && !l.yielding.nobody {
			l.yielding.last = len(last.UUIDs) > 0 && !fitsAgain(policy, in, last)
		}
		if yields && l.yielding.leaves(last) {
			return nil, ""
		}
		if !yields && place.leaves(policy, in, last) {
			return nil, ""
		}
		return last.UUIDs, last.Daemon
	}
	until, latest := time.Now().Add(wait), time.Now().Add(most)
	var sampled time.Time // in vain
	for {
		if time.Since(sampled) >= resampleEvery {
			if err := l.node.refresh(ctx, l.ledger); err != nil {
				if sampled.IsZero() {
					l.node.Log.Warn("read GPUs; using the last readings", "job", job.JobKey, "error", err)
				}
				sampled = time.Now()
			}
		}
		lease.FailPoint("prolog.refreshed")
		granted, err := l.ledger.Acquire(ctx, job, r, pick)
		lease.FailPoint("lease.committed")
		switch {
		case err == nil:
			return granted, nil
		case !errors.Is(err, lease.ErrNoFit):
			l.node.Log.Error("lease GPUs", "job", job.JobKey, "error", err)
			return nil, err
		}
		if place.left() { // no longer than mostLeft, whatever the wait for GPUs is
			if err := place.look(ctx, l.node.Name, l.slurm); err != nil {
				l.node.Log.Warn("look who else waits for the last GPUs", "job", job.JobKey, "error", err)
			}
			time.Sleep(retryEvery)
			continue
		}
		if gone := l.preempt(ctx, latest); gone.After(until) {
			until = gone
			if until.After(latest) {
				until = latest
			}
		}
		if yields {
			if l.look(ctx, place) {
				continue
			}
			if end := l.yielding.until(); !l.stays || end.After(until) {
				until = end
			}
			if until.After(latest) {
				until = latest
			}
			if end := l.yielding.looked.Add(confirmAfter + 2*retryEvery); l.yielding.clear && end.After(until) {
				until = end // a moment more, to be sure
			}
		}
		if ctx.Err() != nil || !time.Now().Before(until) {
			l.logRefusals(last)
			if last.Uncounted() {
				err = errUncounted
			}
			return nil, err
		}
		time.Sleep(retryEvery)
	}
}

// refresh replaces readings too old to decide on, as when the agent does not run.
func (n *Node) refresh(ctx context.Context, ledger Readings) error {
	age, ok, err := ledger.Oldest(ctx)
	if err != nil || ok && age <= choose.ReadAgainAfter(n.Config) {
		return err
	}
	readings, err := n.Sample(ctx)
	if err != nil {
		return err
	}
	return ledger.PutReadings(ctx, readings)
}

// closeStale closes GPUs whose readings tell nothing of the jobs there now.
func closeStale(readings []gres.Reading, c config.Config) {
	choose.CloseStale(readings, choose.StaleAfter(c))
}

// RereadStale replaces readings that tell nothing any more, for an Epilog that publishes: without an
// agent nobody has read the GPUs since the last Prolog, and they would count as closed.
func (n *Node) RereadStale(ctx context.Context, ledger Readings) {
	age, ok, err := ledger.Oldest(ctx)
	if err == nil && ok && age > choose.StaleAfter(n.Config) {
		err = n.refresh(ctx, ledger)
	}
	if err != nil {
		n.Log.Warn("read GPUs; using the last readings", "error", err)
	}
}

// refusalsEvery is how often the log says of a job that waits in its Prolog why no GPU fits: such a job looks again and
// again, and a user may have one wait on each slot of a node.
const refusalsEvery = time.Minute

func (l *launch) logRefusals(d choose.Decision) {
	if !l.refused.IsZero() && time.Since(l.refused) < refusalsEvery {
		return
	}
	l.refused = time.Now()
	r := l.request
	l.node.Log.Warn("no GPU fits", "job", l.JobKey, "gpus", r.GPUs, "reserve_mib", r.ReserveMiB, "exclusive", r.Exclusive)
	for _, refusal := range d.Refusals {
		l.node.Log.Warn("passed over", "job", l.JobKey, "gpu", refusal.UUID, "reason", refusal.Reason.String())
	}
}
