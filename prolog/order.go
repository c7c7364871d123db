// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"errors"
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
	file   *os.File       // locked until the Prolog ends; nil: the Prolog has no place
	since  time.Time      // when GPUs were first left to others; zero: none are
	looks  int            // since then
	leased map[uint32]int // slots of the jobs that had GPUs at the last look
	inUse  int            // slots, by slurmctld at the first look; less than 0: not asked
	later  bool           // a job that may come first waits, or is to come
	prio   map[uint32]int64
}

const (
	placesDir = "waiting"
	// The Prologs of a pass of slurmctld mostly begin within so many looks (retryEvery).
	firstLooks = 2
	// An earlier job takes the GPUs that fit the job at its next look. A job that waits for other GPUs is
	// left behind.
	mostLeft = 2 * time.Second
	// Of so many other jobs slurmctld is asked for the priority.
	mostOthers = 8
)

// takePlace takes a place for a job's Prolog, which is about to wait for GPUs.
func (n *Node) takePlace(job uint32, slots int) *place {
	p := &place{job: job, slots: slots, dir: filepath.Join(n.RunDir, placesDir), prio: map[uint32]int64{}}
	err := os.MkdirAll(p.dir, 0o700)
	if err == nil {
		p.file, err = file.TryLock(filepath.Join(p.dir, strconv.FormatUint(uint64(job), 10)))
	}
	if err == nil && p.file != nil {
		err = p.file.Truncate(0) // of a killed Prolog
	}
	if err != nil {
		n.Log.Warn("take a place among the Prologs that wait", "job", job, "error", err)
	}
	p.wait()
	return p
}

// wait has the Prolog wait for GPUs: a later job leaves the last GPUs to the Prolog's job.
func (p *place) wait() { p.write('+') }

// rest has the Prolog wait no more, or yield to all others. The job's slots still count.
func (p *place) rest() {
	p.write('-')
	p.since, p.looks, p.later = time.Time{}, 0, false
}

// write writes the slots with a sign. Without the text other Prologs wait somewhat longer, for a job that is to come.
func (p *place) write(sign byte) {
	if p.file != nil {
		p.file.WriteAt(strconv.AppendInt([]byte{sign}, int64(p.slots), 10), 0)
	}
}

func (p *place) leave() {
	if p.file != nil {
		os.Remove(p.file.Name())
		p.file.Close()
	}
}

// others are the jobs of the other waiting Prologs, at most mostOthers, and the slots of all Prologs whose jobs had no
// GPUs at the last look. The file of a killed Prolog is removed.
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
		case f != nil:
			os.Remove(path)
			f.Close()
			continue
		}
		text, _ := os.ReadFile(path) // empty for a moment, or of a Prolog of an earlier version
		n, _ := strconv.Atoi(string(text))
		if n >= 0 {
			jobs = append(jobs, uint32(id))
		}
		if _, has := p.leased[uint32(id)]; !has {
			slots += max(n, -n)
		}
	}
	slices.Sort(jobs)
	return jobs[:min(len(jobs), mostOthers)], slots, nil
}

// leaves tells whether the Prolog leaves GPUs that it could take to others for now.
func (p *place) leaves(policy choose.Policy, in choose.Input, d choose.Decision) bool {
	if p.file == nil || len(d.UUIDs) == 0 || fitsAgain(policy, in, d) {
		p.since, p.looks, p.later = time.Time{}, 0, false
		return false
	}
	if p.since.IsZero() {
		p.since, p.inUse = time.Now(), -1
	}
	p.looks++
	p.leased = map[uint32]int{}
	for _, l := range in.Leases {
		if l.Job.JobID != p.job {
			p.leased[l.Job.JobID]++
		}
	}
	return (p.later || p.looks <= firstLooks) && time.Since(p.since) < mostLeft
}

// left tells whether the last look found GPUs left to others.
func (p *place) left() bool { return !p.since.IsZero() }

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

// look finds out whether another job may come first: a waiting job by priority, or without slurmctld's answer by id;
// or any job whose Prolog is to come.
func (p *place) look(ctx context.Context, node string, slurm Slurm) error {
	p.later = false
	jobs, waiting, err := p.others()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, p.since.Add(mostLeft))
	defer cancel()
	compared := slices.Clone(jobs)
	if len(jobs) > 0 {
		compared = append(compared, p.job)
	}
	for _, id := range compared {
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
	if p.later {
		return err
	}
	if p.inUse < 0 { // once: a busy node must not be made busier
		var failed error
		p.inUse, failed = slurm.SlotsInUse(ctx, node)
		err = errors.Join(err, failed)
	}
	// Each GPU of a job is a slot, in use until the job completes. A slot without a lease or a Prolog belongs to a job
	// whose Prolog is to come. The lease of a completing job hides one slot of these.
	known := waiting + p.slots
	for _, slots := range p.leased {
		known += slots
	}
	p.later = p.inUse > known
	return err
}
