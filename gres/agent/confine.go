// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// Confinement keeps jobs to their leased GPUs, where no Prolog has done so, or an agent comes after the
// job.
type Confinement struct {
	Guard  func() (confine.Guard, error) // the guard that confines jobs now
	Wanted bool                          // devices.confine is not "none"
	RunDir string
	Ledger Leases
	Jobs   Known
	Owners Owners
	Log    *slog.Logger

	// compare:
	confinedBy string // as last said
	reopened   bool   // GPUs were opened to jobs anew, since confinedBy was logged
	guards     latest[confine.Guard]
	reaped     uint32 // the last confined job asked about

	// keepShut:
	shutFails string // as last said
}

// guard looks for the guard that confines jobs now: slurmd, which may come later than
// the agent, makes the cgroups that a guard needs. guard logs each change.
func (c *Confinement) guard() confine.Guard {
	if c == nil {
		return nil
	}
	g, err := c.Guard()
	says := ""
	switch {
	case err != nil:
		says = err.Error()
	case g != nil:
		says = g.String()
	}
	if c.reopened && says == c.confinedBy {
		return g
	}
	c.confinedBy = says
	switch {
	case err != nil:
		c.Log.Error("no job can be confined as devices.confine says; jobs wait", "error", err)
	case g != nil:
		c.Log.Info("jobs are confined to their GPUs", "by", says)
	case c.Wanted:
		c.Log.Warn("jobs are not confined to their GPUs; carma-node doctor says why")
	}
	c.reopened = false
	return g
}

// keepShut looks after jobs that no Prolog has confined, by the newest guard that it
// is given.
func (c *Confinement) keepShut(ctx context.Context, guards latest[confine.Guard]) {
	stop := func() {}
	for {
		select {
		case <-ctx.Done():
			stop()
			return
		case g := <-guards:
			stop()
			once, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			stop = func() { cancel(); <-done }
			go func() {
				defer close(done)
				if g == nil {
					return
				}
				for once.Err() == nil { // root may have no inotify instance for a while
					err := confine.Watch(once, g, func() { c.shutUnconfined(once, g) })
					if err == nil {
						return
					}
					c.Log.Error("close GPUs to jobs that were started without a Prolog", "error", err)
					select {
					case <-once.Done():
					case <-time.After(time.Minute):
					}
				}
			}()
		}
	}
}

// reopen confines the jobs that an agent finds when it starts: also those that
// started before there was a guard.
func (c *Confinement) reopen(ctx context.Context, g confine.Guard, s lease.Snapshot) {
	if g != nil && !g.Exact() {
		// Device nodes made by the driver meanwhile are open to all.
		if err := g.Close(confine.Job{}); err != nil {
			c.Log.Error("set access lists", "error", err)
		}
	}
	if c == nil || c.reopened {
		return
	}
	c.reopened = true
	if c.guards != nil {
		defer c.guards.put(g)
	}
	if g == nil {
		return
	}
	own := owned(s)
	for job, gpus := range own {
		err := g.Open(job, gpus)
		if err == nil { // s may be older than the job's Epilog
			_, err = c.asLeased(ctx, g, job, gpus, true)
		}
		if err != nil {
			c.Log.Error("confine a job that was already running", "job", job.ID, "error", err)
		}
	}
}

// owned are the minors of the GPUs that jobs have leased.
func owned(s lease.Snapshot) map[confine.Job][]int {
	minors := map[string]int{}
	for _, r := range s.Readings {
		minors[r.UUID] = r.Minor
	}
	own := map[confine.Job][]int{}
	for _, l := range s.Leases {
		job := confine.Job{ID: l.Job.JobID, UID: l.UID}
		if minor, ok := minors[l.UUID]; ok && minor >= 0 {
			own[job] = append(own[job], minor)
		}
	}
	return own
}

// shut closes all GPUs to a job but those that it has leased.
func (c *Confinement) shut(ctx context.Context, g confine.Guard, job confine.Job) (leased bool, err error) {
	return c.asLeased(ctx, g, job, nil, false)
}

// asLeased opens to a job its leased GPUs and no other; open are the GPUs open to the job, if
// known. A Prolog may come in between: it leases first and opens then, so that the ledger
// afterwards names the GPUs that the Prolog opens. So may an Epilog, which closes first and
// releases then, and would not find GPUs opened after it has closed them.
func (c *Confinement) asLeased(ctx context.Context, g confine.Guard, job confine.Job, open []int,
	known bool) (leased bool, err error) {
	for ; ; known = true {
		s, err := c.Ledger.Snapshot(ctx)
		if err != nil {
			return false, err
		}
		var gpus []int
		for j, minors := range owned(s) {
			if j.ID == job.ID {
				job.UID, gpus = j.UID, minors
			}
		}
		switch {
		case known && slices.Equal(gpus, open):
			return len(gpus) > 0, nil
		case len(gpus) == 0 && len(open) > 0:
			err = g.Close(job)
		default:
			err = g.Open(job, gpus)
		}
		if err != nil {
			return false, err
		}
		open = gpus
	}
}

// shutUnconfined closes the GPUs to jobs that slurmd has started without a Prolog, as
// 22.05 does after a Prolog was killed. Jobs older than the guard go on; the guard takes
// a GPU from them when somebody leases the GPU.
func (c *Confinement) shutUnconfined(ctx context.Context, g confine.Guard) {
	late, err := c.unconfined(g)
	for _, job := range late {
		var leased bool
		if leased, err = c.shut(ctx, g, job); err != nil {
			break
		}
		if !leased {
			c.Log.Warn("a job was started without a Prolog; it can open no GPU", "job", jobenv.JobKey{JobID: job.ID})
		}
	}
	if says := fmt.Sprint(err); says != c.shutFails {
		c.shutFails = says
		if err != nil {
			c.Log.Error("close GPUs to jobs that were started without a Prolog", "error", err)
		}
	}
}

// unconfined are the jobs that are not confined and came after the guard.
func (c *Confinement) unconfined(g confine.Guard) ([]confine.Job, error) {
	jobs, err := g.Unconfined()
	if err != nil {
		return nil, err
	}
	first, late, err := confine.Early(c.RunDir, jobs)
	if first && len(jobs) > 0 {
		c.Log.Warn("jobs started before confinement can open any GPU that is not leased, until they end",
			"jobs", ids(jobs))
	}
	return late, err
}

func ids(jobs []confine.Job) []uint32 {
	var ids []uint32
	for _, j := range jobs {
		ids = append(ids, j.ID)
	}
	return ids
}

// confinedAtOnce bounds the questions to slurmctld at one look about jobs that are confined and
// not here: jobs that Prologs have returned to the queue are confined until they end, and users
// decide how many these are.
const confinedAtOnce = 20

// reapConfined forgets jobs that have ended without an Epilog. slurmctld is asked about
// the jobs by turns.
func (c *Confinement) reapConfined(ctx context.Context, g confine.Guard) {
	if g == nil {
		return
	}
	jobs, err := g.Jobs()
	if err != nil {
		c.Log.Error("find confined jobs that have ended", "error", err)
		return
	}
	// slurmctld may have taken its time since compare's look.
	s, err := c.Ledger.Snapshot(ctx)
	if err != nil {
		c.Log.Error("read ledger", "error", err)
		return
	}
	stepds, err := c.Owners.Stepds()
	if err != nil {
		c.Log.Error("find confined jobs that have ended", "error", err)
		return
	}
	// Jobs after the last one asked about come first, in the order of their ids, then those
	// before it.
	slices.SortFunc(jobs, func(x, y confine.Job) int { return cmp.Compare(x.ID-c.reaped-1, y.ID-c.reaped-1) })
	asked := 0
	for _, j := range jobs {
		if stepds[j.ID] || slices.ContainsFunc(s.Leases, func(l gres.Lease) bool { return l.Job.JobID == j.ID }) {
			continue
		}
		if asked == confinedAtOnce {
			break
		}
		asked++
		c.reaped = j.ID
		job, err := c.Jobs.Job(ctx, j.ID)
		if err != nil && !errors.Is(err, sctl.ErrNoJob) {
			continue
		}
		// A pending job may be started again without a Prolog.
		if err == nil && (job.State.HoldsNode() || job.State == jobstate.Pending) {
			continue
		}
		err = g.Forget(j)
		// The job may have been requeued, and be in its Prolog by now.
		_, errOpen := c.asLeased(ctx, g, j, nil, true)
		if errOpen != nil {
			err = errOpen
		}
		switch {
		case err == nil:
			c.Log.Warn("confinement of a lost job removed", "job", jobenv.JobKey{JobID: j.ID}, "state", job.State)
		case !errors.Is(err, syscall.EBUSY): // processes outlive their job: the job stays closed
			c.Log.Error("remove a job's confinement", "job", j.ID, "error", err)
		}
	}
}
