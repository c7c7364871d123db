// SPDX-License-Identifier: Apache-2.0

// Package unbook makes the pending jobs that CARMA has booked Slurm's own again, so that CARMA can be
// removed while they wait.
package unbook

import (
	"context"
	"errors"
	"fmt"
	"time"

	"carma/slurmbridge/sctl"
)

// Queue lists and changes pending jobs.
type Queue interface {
	Booked(context.Context) ([]sctl.Booked, error)
	Unbook(context.Context, sctl.Booked, sctl.Version) error
}

// Left is a job that still books memory, and why.
type Left struct {
	Job string
	Err error
}

// All changes the jobs that book memory, one after each pause, and returns how many book nothing now and
// which still do. Jobs changed by another call are not changed again.
func All(ctx context.Context, q Queue, v sctl.Version, pause time.Duration) (done int, left []Left, err error) {
	jobs, err := q.Booked(ctx)
	if err != nil {
		return 0, nil, err
	}
	failed := map[string]error{}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for _, j := range jobs {
		// A running task of the array refuses the change; the tasks that wait have taken it. So an
		// error counts only where the job books memory afterwards.
		if err := q.Unbook(ctx, j, v); err != nil {
			failed[j.Target.String()] = err
			if sctl.Unanswered(err) {
				return 0, nil, fmt.Errorf("%w; run it again when slurmctld answers", err)
			}
		}
		select {
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		case <-tick.C:
		}
	}
	still, err := q.Booked(ctx)
	if err != nil {
		return 0, nil, err
	}
	for _, j := range still {
		id := j.Target.String()
		if failed[id] == nil {
			failed[id] = errors.New("submitted meanwhile; run it again")
		}
		left = append(left, Left{id, failed[id]})
	}
	return max(len(jobs)-len(left), 0), left, nil
}
