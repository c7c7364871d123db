// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"time"

	"carma/db"
)

// forwardEvery is how often the outbox is looked at, and forwardDeadline how long
// Slurm's commands may take for all that is due.
const (
	forwardEvery    = 5 * time.Second
	forwardDeadline = 2 * time.Minute
)

// forward sends records to slurmdbd until ctx ends. It has a connection to the
// database of its own, and nothing waits for it.
func forward(ctx context.Context, path string, to db.Slurmdbd, log *slog.Logger) {
	r := records{path: path}
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
			log.Warn("records do not get to slurmdbd; they wait on the node", "error", err)
		} else if err == nil && failing {
			log.Info("slurmdbd answers again")
		}
		failing = err != nil
	}
}
