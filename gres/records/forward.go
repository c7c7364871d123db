// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"carma/db"
	"carma/slurmbridge/sctl"
)

// forwardEvery is the time between two looks at the outbox, and forwardDeadline
// is how long Slurm's commands may take for all records that are due.
const (
	forwardEvery    = 5 * time.Second
	forwardDeadline = 2 * time.Minute
)

// Slurmdbd is slurmdbd as the database sends records to it.
type Slurmdbd struct {
	sctl.Accounting
	Log *slog.Logger
}

// Comments asks sacct.
func (s Slurmdbd) Comments(ctx context.Context, cluster string, jobs []uint32) (map[uint32]db.Comment, error) {
	f := sctl.AccountedFilter{Jobs: jobs}
	if cluster != "" {
		f.Clusters = []string{cluster}
	}
	comments := map[uint32]db.Comment{}
	err := s.Accounted(ctx, f, func(j sctl.Accounted) {
		comments[j.JobID] = db.Comment{ArrayJobID: j.ArrayJobID, Text: j.Comment,
			Unended: !j.Ended}
	})
	if err != nil {
		return nil, err
	}
	return comments, nil
}

// SetComment asks sacctmgr.
func (s Slurmdbd) SetComment(ctx context.Context, cluster string, job uint32, comment string) error {
	err := s.Accounting.SetComment(ctx, cluster, job, comment)
	if errors.Is(err, sctl.ErrComment) || errors.Is(err, sctl.ErrLong) {
		s.Log.Warn("the record of a job is not forwarded to slurmdbd; it stays on the node", "job", job, "error", err)
		return fmt.Errorf("%w: %w", db.ErrRefused, err)
	}
	return err
}

// Forward sends records to slurmdbd until ctx ends. Forward has a connection to
// the database of its own, and nothing waits for Forward.
func Forward(ctx context.Context, path string, to db.Slurmdbd, log *slog.Logger) {
	r := Records{Path: path}
	failing := false
	tick := time.NewTicker(forwardEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := r.open()
		if err == nil {
			ctx, cancel := context.WithTimeout(ctx, forwardDeadline)
			_, err = r.db.Forward(ctx, to, time.Now())
			cancel()
		}
		if err != nil && !failing {
			log.Warn("records are not forwarded to slurmdbd; they wait on the node", "error", err)
		} else if err == nil && failing {
			log.Info("records are forwarded to slurmdbd again")
		}
		failing = err != nil
	}
}
