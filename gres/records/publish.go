// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/db"
	"carma/slurmbridge/slurmconf"
)

// slurmConfig is slurmctld, asked for what slurm.conf says.
type slurmConfig interface {
	ShowConfig(ctx context.Context) (string, error)
}

// PrivateData changes with slurm.conf: slurmctld is asked rarely, and soon
// again if nobody has answered.
const (
	askReadersEvery = 10 * time.Minute
	askReadersAgain = time.Minute
	askDeadline     = 10 * time.Second
	publishEvery    = time.Second
)

// nobodyElse holds until slurmctld has said who may read what.
var nobodyElse = db.Readers{Private: true, NoGPUs: true}

// Publish keeps the users' copies of the records until ctx ends. Nothing waits for Publish.
func Publish(ctx context.Context, path string, slurm slurmConfig, log *slog.Logger) {
	p := &db.Publisher{Path: path}
	defer p.Close()
	readers, asked := nobodyElse, time.Time{}
	pause := time.Duration(0)
	failing := false
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if now := time.Now(); now.Sub(asked) >= pause {
			asked, pause = now, askReadersEvery+rand.N(askReadersEvery/5) // agents start together
			if r, err := askReaders(ctx, slurm); err != nil {
				pause = askReadersAgain
				log.Warn("query PrivateData; access to records stays as it is until slurmctld answers", "error", err)
			} else {
				readers = r
			}
		}
		err := p.Publish(ctx, readers)
		if err != nil && !failing && ctx.Err() == nil {
			log.Warn("users read old records", "error", err)
		} else if err == nil && failing {
			log.Info("users read current records again")
		}
		failing = err != nil
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func askReaders(ctx context.Context, slurm slurmConfig) (db.Readers, error) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	defer cancel()
	text, err := slurm.ShowConfig(ctx)
	if err != nil {
		return nobodyElse, err
	}
	return readersOf(slurmconf.Running(text)), nil
}

// readersOf returns who may read records under PrivateData (slurm.conf(5)): a record
// tells of a job (jobs), of its user and account (users, accounts), and of what both
// used (usage). The samples tell of the node (nodes).
func readersOf(running map[string]string) db.Readers {
	flags, known := running["privatedata"]
	if !known {
		return nobodyElse
	}
	var r db.Readers
	for flag := range strings.SplitSeq(strings.ToLower(flags), ",") {
		r.Private = r.Private || slices.Contains([]string{"jobs", "users", "accounts", "usage"}, flag)
		r.NoGPUs = r.NoGPUs || flag == "nodes"
	}
	// SlurmUser = slurm(64030)
	_, id, _ := strings.Cut(running["slurmuser"], "(")
	if uid, err := strconv.ParseUint(strings.TrimSuffix(id, ")"), 10, 32); err == nil {
		r.Operator = uint32(uid)
	}
	return r
}
