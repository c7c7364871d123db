// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"carma/db"
	"carma/gres/lease"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// forgottenAfter is slurmctld's MinJobAge by default: later slurmctld knows no more. Records
// whose job nobody has been asked about for askNoMore get no answer: slurmctld was away, jobs
// ended faster than questions are put, or no record could be written.
const (
	forgottenAfter = 5 * time.Minute
	askNoMore      = time.Hour
)

// endedAtOnce bounds what one tick does about jobs that have ended, and
// endsAskedAtOnce what it asks slurmctld about single jobs.
const (
	endedAtOnce     = 200
	endsAskedAtOnce = 3
)

// Where more than manyDue jobs are due for a question, and one of these for behindAfter, all are asked about
// at once. The answer is about all jobs of the cluster, and many nodes may be behind: a node spends about
// 1/manyTook of its time on such questions, but asks twice before slurmctld forgets a job.
const (
	manyDue     = 30
	behindAfter = 15 * time.Second
	manyTook    = 50
)

// Ends puts the end of attempts into their records.
type Ends struct {
	Node    string
	Config  *config.Config
	Ledger  Finished
	Jobs    EndedJobs
	Records Completing
	Log     *slog.Logger

	askAt       map[jobenv.JobKey]time.Duration // when slurmctld is asked again how an attempt ended
	waiting     map[jobenv.JobKey]struct{}      // recorded attempts, whose jobs wait for the next
	silence     time.Duration                   // how long slurmctld is not asked, for want of an answer
	silentUntil time.Duration
	manyAt      time.Duration // when slurmctld may be asked about many jobs at once
}

// complete puts slurmctld's word on the end of jobs into their records. The Epilog's environment
// does not tell a cancelled or timed-out job from a job that ended well. The agent is woken
// before slurmctld has heard of the end, so the first question often comes too early, and soon
// slurmctld forgets the job. So the next one comes a second later, and then ever more rarely, at
// most whenever counts are compared: a job whose processes hang completes for long, and other
// jobs come before it. The same holds for a slurmctld that does not answer.
func (c *Ends) complete(ctx context.Context, now time.Duration) {
	ended, err := c.Ledger.Ended(ctx, endedAtOnce+len(c.askAt))
	if err != nil {
		c.Log.Error("read ledger", "error", err)
		return
	}
	again := map[jobenv.JobKey]time.Duration{}
	for _, e := range ended {
		if at, asked := c.askAt[e.JobKey]; asked {
			again[e.JobKey] = at
		}
	}
	c.askAt = again
	slices.SortStableFunc(ended, func(x, y lease.Ended) int { return cmp.Compare(again[x.JobKey], again[y.JobKey]) })
	for _, e := range ended {
		if e.Age >= askNoMore {
			c.setEnd(ctx, e, sctl.Description{}, false)
		}
	}
	if c.silentUntil > now {
		return
	}
	for _, together := range c.questions(ended, now) {
		if !c.ask(ctx, together, now) {
			return
		}
	}
}

// questions are the attempts that slurmctld is asked about now, by question: single jobs, for slurmctld keeps jobs by
// their ids, or, once a job has been due for too long, all jobs that are due.
func (c *Ends) questions(ended []lease.Ended, now time.Duration) (list [][]lease.Ended) {
	var due []lease.Ended
	behind := false
	for _, e := range ended {
		if at := c.askAt[e.JobKey]; e.Age < askNoMore && at <= now {
			due = append(due, e)
			behind = behind || min(e.Age, now-at) >= behindAfter
		}
	}
	if behind && len(due) > manyDue && c.manyAt <= now {
		return [][]lease.Ended{due}
	}
	return slices.Collect(slices.Chunk(due[:min(len(due), endsAskedAtOnce)], 1))
}

// ask asks slurmctld about jobs with one question, and completes the records of those that have ended; false: there was
// no answer.
func (c *Ends) ask(ctx context.Context, together []lease.Ended, now time.Duration) bool {
	start, rarest := time.Now(), c.Config.Capacity.Compare.D()
	ids := make([]uint32, len(together))
	for i, e := range together {
		ids[i] = e.JobID
		c.askAt[e.JobKey] = now + min(rarest, max(time.Second, e.Age/4))
	}
	jobs, err := c.Jobs.Describe(ctx, ids)
	if len(ids) > 1 {
		c.manyAt = now + min(max(behindAfter, manyTook*time.Since(start)), forgottenAfter/2)
	}
	if err != nil {
		c.Log.Warn("query how jobs ended", "jobs", len(ids), "first", together[0].JobKey, "error", err)
	}
	if err != nil && len(jobs) == 0 {
		c.silence = min(rarest, max(time.Second, 2*c.silence))
		c.silentUntil = now + c.silence
		return false
	}
	c.silence = 0
	for _, e := range together {
		j, known := jobs[e.JobID]
		if !known && err != nil || j.State == jobstate.Completing && e.Age < forgottenAfter {
			continue
		}
		// REQUEUED is the record's last word only until the job's own: a waiting job may be cancelled there.
		waits := j.State == jobstate.Pending && uint32(max(j.Restarts, 0)) == e.Restart+1
		if _, complete := c.waiting[e.JobKey]; !waits || !complete {
			c.setEnd(ctx, e, j, waits)
		}
	}
	return true
}

// setEnd completes the record of an attempt; j is zero if slurmctld does not know the job
// any more. Of a job waiting for its next attempt there will be more to say.
func (c *Ends) setEnd(ctx context.Context, e lease.Ended, j sctl.Description, waits bool) {
	end := db.End{JobID: e.JobID, Restart: e.Restart, Node: c.Node, Forward: c.Config.Accounting.Forward == "slurmdbd"}
	_, end.Again = c.waiting[e.JobKey]
	if j.State != "" {
		end.ArrayJobID, end.ArrayTask, end.State = j.ArrayJobID, j.Task(), finalState(j.Job, e.Restart)
		end.Name, end.Account, end.UID = j.Name, j.Account, j.UID
		if c.Config.Observes() {
			end.Advice, _ = admincomment.AdviceIn(j.AdminComment)
		}
		end.Never = end.State != jobstate.Requeued && uint32(max(j.Restarts, 0)) > e.Restart
	}
	var err error
	if end.Figures, err = c.Ledger.FiguresOf(ctx, e.JobKey); err == nil {
		err = c.Records.SetEnd(ctx, end)
	}
	if err != nil {
		c.Log.Error("complete a record", "job", e.JobKey, "error", err)
		if e.Age < askNoMore {
			return // a later tick tries again
		}
	}
	if waits {
		if c.waiting == nil {
			c.waiting = map[jobenv.JobKey]struct{}{}
		}
		c.waiting[e.JobKey] = struct{}{}
		return
	}
	delete(c.waiting, e.JobKey)
	if err := c.Ledger.DropEnded(ctx, e.JobKey); err != nil {
		c.Log.Error("complete a record", "error", err)
	}
}

// finalState is how an attempt ended, by what slurmctld says of its job afterwards; empty:
// the job runs on without this node (scontrol update NumNodes), and the Epilog's word
// stays.
func finalState(j sctl.Job, restart uint32) string {
	switch {
	case uint32(max(j.Restarts, 0)) == restart+1 && j.State == jobstate.Cancelled && j.NodeList == "":
		return string(j.State) // never started again
	case uint32(max(j.Restarts, 0)) > restart: // the present state is a later attempt's
		return jobstate.Requeued
	case j.State.HoldsNode() && uint32(j.Restarts) == restart:
		return ""
	case j.State.HoldsNode(), j.State == jobstate.Pending:
		return jobstate.Requeued
	}
	return string(j.State)
}
