// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
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
// endsAskedAtOnce what it asks slurmctld.
const (
	endedAtOnce     = 50
	endsAskedAtOnce = 3
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
	asked, rarest := 0, c.Config.Capacity.Compare.D()
	for _, e := range ended {
		var j sctl.Job
		var words sctl.Words
		if e.Age < askNoMore {
			if asked == endsAskedAtOnce || again[e.JobKey] > now || c.silentUntil > now {
				continue
			}
			asked++
			again[e.JobKey] = now + min(rarest, max(time.Second, e.Age/4))
			j, err = c.Jobs.Job(ctx, e.JobID)
			known := err == nil || errors.Is(err, sctl.ErrNoJob)
			if !known {
				c.silence = min(rarest, max(time.Second, 2*c.silence))
				c.silentUntil = now + c.silence
				c.Log.Warn("query how a job ended", "job", e.JobKey, "error", err)
				continue
			}
			c.silence = 0
			if j.State == jobstate.Completing && e.Age < forgottenAfter {
				continue
			}
			if j.State != "" { // a record without a name is better than none
				words, _ = c.Jobs.Words(ctx, e.JobID)
			}
		}
		// REQUEUED is the record's last word only until the job's own: a waiting job may be cancelled there.
		waits := j.State == jobstate.Pending && uint32(max(j.Restarts, 0)) == e.Restart+1
		if _, complete := c.waiting[e.JobKey]; waits && complete {
			continue
		}
		c.setEnd(ctx, e, j, words, waits)
	}
}

// setEnd completes the record of an attempt; j is zero if slurmctld does not know the job
// any more. Of a job waiting for its next attempt there will be more to say.
func (c *Ends) setEnd(ctx context.Context, e lease.Ended, j sctl.Job, words sctl.Words, waits bool) {
	end := db.End{JobID: e.JobID, Restart: e.Restart, Node: c.Node, Forward: c.Config.Accounting.Forward == "slurmdbd"}
	if j.State != "" {
		end.ArrayJobID, end.ArrayTask, end.State = j.ArrayJobID, j.Task(), finalState(j, e.Restart)
		end.Name, end.Account = words.Name, words.Account
		if c.Config.Observes() {
			end.Advice, _ = admincomment.AdviceIn(words.AdminComment)
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
