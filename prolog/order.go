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
// No start of a job lowers a count in the node's Extra. A free GPU satisfies the constraints of all waiting jobs
// of its size, slurmctld starts as many in one pass as GRES carma allows, and their Prologs race. The last GPUs go
// to the job that slurmctld would start first: of the highest priority, then of the lowest id. On a busy node the
// Prolog of that job may begin a second later than another. slurmctld counts the slots of both.
type place struct {
	job    uint32
	slots  int // of the job on the node
	dir    string
	file   *os.File // locked while the Prolog waits; nil: the Prolog has no place
	looks  int      // in a row, at GPUs after which a second such job finds none
	leased int      // slots of the jobs that had GPUs at the last look
	order  order    // as far as known then
	prio   map[uint32]int64
}

// order is the place of a Prolog among those of the jobs that slurmctld has started.
type order int

const (
	unknown order = iota
	next
	later // than another, which waits or is to come
)

const (
	placesDir = "waiting"
	// Where slurmctld does not answer: Prologs of jobs that one pass starts begin within so many looks (retryEvery).
	firstLooks = 2
	// An earlier job takes the GPUs that fit the job at its next look. A job that waits for other GPUs is
	// left behind.
	mostLooks = 10
	// So many others are asked about, for so long.
	mostOthers    = 8
	orderDeadline = time.Second
)

// takePlace takes a place for a job with a booking; a job that yields only sees the places of others.
func (n *Node) takePlace(job uint32, slots int, books bool) *place {
	p := &place{job: job, slots: slots, dir: filepath.Join(n.RunDir, placesDir), prio: map[uint32]int64{}}
	err := os.MkdirAll(p.dir, 0o700)
	if err == nil && books {
		p.file, err = file.TryLock(filepath.Join(p.dir, strconv.FormatUint(uint64(job), 10)))
	}
	if err == nil && p.file != nil {
		_, err = p.file.WriteAt([]byte(strconv.Itoa(slots)), 0)
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

// others are the jobs of the other waiting Prologs, the first few, and the slots of all of them. The file of a killed
// Prolog is removed.
func (p *place) others() (jobs []uint32, slots int, err error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		id, err := strconv.ParseUint(e.Name(), 10, 32)
		if err != nil || uint32(id) == p.job {
			continue
		}
		path := filepath.Join(p.dir, e.Name())
		switch f, err := file.TryLock(path); {
		case err != nil:
			return nil, 0, err
		case f == nil:
			jobs = append(jobs, uint32(id))
			text, _ := os.ReadFile(path) // empty for a moment, or of a Prolog of an earlier version
			n, _ := strconv.Atoi(string(text))
			slots += n
		default:
			os.Remove(path)
			f.Close()
		}
	}
	slices.Sort(jobs)
	return jobs[:min(len(jobs), mostOthers)], slots, nil
}

// leaves tells whether the Prolog leaves GPUs that it could take to others for now.
func (p *place) leaves(policy choose.Policy, in choose.Input, d choose.Decision) bool {
	if p.file == nil || len(d.UUIDs) == 0 || fitsAgain(policy, in, d) {
		p.looks, p.order = 0, unknown
		return false
	}
	p.looks++
	p.leased = 0
	for _, l := range in.Leases {
		if l.Job.JobID != p.job {
			p.leased++
		}
	}
	switch p.order {
	case next:
		return false
	case later:
		return p.looks <= mostLooks
	}
	return p.looks <= firstLooks
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

// look finds out whether an earlier job waits, or may be about to. Without slurmctld's answer the ids alone decide.
func (p *place) look(ctx context.Context, node string, slurm Slurm) error {
	p.order = unknown
	jobs, waiting, err := p.others()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, orderDeadline)
	defer cancel()
	// Each GPU of a job is a slot. A slot of nobody's is of a job whose Prolog is to come, or whose end slurmctld has
	// not heard of yet.
	used, err := slurm.SlotsInUse(ctx, node)
	if err == nil {
		switch known := p.leased + waiting + p.slots; {
		case used > known:
			p.order = later
		case used == known:
			p.order = next
		}
	}
	if len(jobs) == 0 {
		return err
	}
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
	if slices.ContainsFunc(jobs, func(id uint32) bool {
		if err != nil {
			return id < p.job
		}
		return cmp.Or(cmp.Compare(p.prio[p.job], p.prio[id]), cmp.Compare(id, p.job)) < 0
	}) {
		p.order = later
	}
	return err
}
