// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"carma/db/file"
	"carma/gres"
	"carma/gres/choose"
)

// place is the place of a Prolog among the Prologs of the node that wait for GPUs.
//
// No start of a job lowers a count in the node's Extra. One GPU that comes free satisfies the constraints of all
// waiting jobs of its size, slurmctld starts as many in one pass as GRES carma allows, and their Prologs race. The
// last GPUs go to the job that slurmctld would start first: of the highest priority, then of the lowest id.
type place struct {
	job   uint32
	dir   string
	file  *os.File // locked while the Prolog waits; nil: the Prolog has no place
	looks int      // in a row, at GPUs after which a second such job finds none
	later bool     // than another Prolog that waits
	prio  map[uint32]int64
}

const (
	placesDir = "waiting"
	// Prologs of jobs that one pass starts begin within so many looks (retryEvery).
	firstLooks = 2
	// An earlier job takes the GPUs that fit it at its next look. A job that waits for other GPUs is left
	// behind.
	mostLooks = 10
	// So many others are asked about, for so long.
	mostOthers    = 8
	orderDeadline = time.Second
)

// takePlace takes a place for a job with a booking; a job that yields only sees the places of others.
func (n *Node) takePlace(job uint32, books bool) *place {
	p := &place{job: job, dir: filepath.Join(n.RunDir, placesDir), prio: map[uint32]int64{}}
	err := os.MkdirAll(p.dir, 0o700)
	if err == nil && books {
		p.file, err = file.TryLock(filepath.Join(p.dir, strconv.FormatUint(uint64(job), 10)))
	}
	if err != nil {
		n.Log.Warn("take a place among the Prologs that wait", "job", job, "error", err)
	}
	return p
}

func (p *place) leave() {
	if p.file != nil {
		os.Remove(p.file.Name())
		p.file.Close()
	}
}

// others are the jobs of the other Prologs that wait. What a Prolog left behind that was killed goes.
func (p *place) others() (jobs []uint32, err error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil || uint32(id) == p.job {
			continue
		}
		path := filepath.Join(p.dir, e.Name())
		switch f, err := file.TryLock(path); {
		case err != nil:
			return nil, err
		case f == nil:
			jobs = append(jobs, uint32(id))
		default:
			os.Remove(path)
			f.Close()
		}
	}
	slices.Sort(jobs)
	return jobs[:min(len(jobs), mostOthers)], nil
}

// leaves tells whether the Prolog leaves GPUs that it could take to others for now.
func (p *place) leaves(policy choose.Policy, in choose.Input, d choose.Decision) bool {
	if p.file == nil || len(d.UUIDs) == 0 || fitsAgain(policy, in, d) {
		p.looks = 0
		return false
	}
	p.looks++
	return p.looks <= firstLooks || p.later && p.looks <= mostLooks
}

// left tells whether the last look found GPUs left to others.
func (p *place) left() bool { return p.looks > 0 }

// fitsAgain tells whether a second such job would find GPUs, too.
func fitsAgain(policy choose.Policy, in choose.Input, d choose.Decision) bool {
	r := in.Request
	in.Leases = slices.Clone(in.Leases)
	for _, uuid := range d.UUIDs {
		in.Leases = append(in.Leases, gres.Lease{UUID: uuid, UID: r.UID, ReserveMiB: r.ReserveMiB, Exclusive: r.Exclusive,
			SMActPct: r.SMActPct, MaxSlowdown: r.MaxSlowdown, Daemon: d.Daemon})
	}
	in.Request.JobID = 0
	return len(choose.GPUs(policy, in).UUIDs) > 0
}

// look finds out whether an earlier job waits. Without slurmctld's answer the ids alone decide.
func (p *place) look(ctx context.Context, slurm Jobs) error {
	p.later = false
	jobs, err := p.others()
	if err != nil || len(jobs) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, orderDeadline)
	defer cancel()
	for _, id := range append(slices.Clone(jobs), p.job) {
		if _, known := p.prio[id]; known {
			continue
		}
		j, failed := slurm.Job(ctx, id)
		if failed != nil {
			err = fmt.Errorf("query the priority of job %d: %w", id, failed)
			break
		}
		p.prio[id] = j.Priority
	}
	p.later = slices.ContainsFunc(jobs, func(id uint32) bool {
		if err != nil {
			return id < p.job
		}
		return cmp.Or(cmp.Compare(p.prio[p.job], p.prio[id]), cmp.Compare(id, p.job)) < 0
	})
	return err
}
