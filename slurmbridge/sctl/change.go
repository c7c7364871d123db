// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Target is the object of a command: a job, a task of an array, or a component of a
// heterogeneous job. A Target is made of slurmctld's numbers (Job), never of text,
// and here alone.
type Target struct{ text string }

// String is the target as scontrol and scancel take it.
func (t Target) String() string { return t.text }

// Target is the job alone. The raw id of a member of an array equals the array's
// id and would mean the whole array; several tasks under one id are no target.
func (j Job) Target() Target {
	if j.Unsplit {
		return Target{}
	}
	if j.ArrayJobID != 0 {
		return target(j.ArrayJobID, "_", j.ArrayTask)
	}
	return Target{strconv.FormatUint(uint64(j.ID), 10)}
}

// waitingTasks is all tasks of an array waiting under one id (Unsplit).
func (j Job) waitingTasks() Target {
	if !j.Unsplit {
		return Target{}
	}
	return Target{strconv.FormatUint(uint64(j.ArrayJobID), 10)}
}

// Leader is the target by which a heterogeneous job is requeued: slurmctld takes
// the leader's id alone, for all components. For other jobs Leader is the job.
func (j Job) Leader() Target {
	if j.HetJobID != 0 {
		return Target{strconv.FormatUint(uint64(j.HetJobID), 10)}
	}
	return j.Target()
}

// Component is the target by which one component of a heterogeneous job alone is
// changed. For other jobs Component is the job.
func (j Job) Component() Target {
	if j.HetJobID != 0 {
		return target(j.HetJobID, "+", j.HetOffset)
	}
	return j.Target()
}

func target(id uint32, sign string, part uint32) Target {
	return Target{strconv.FormatUint(uint64(id), 10) + sign + strconv.FormatUint(uint64(part), 10)}
}

// ErrBatchOnly means that the job cannot be requeued because it is no batch job.
var ErrBatchOnly = errors.New("not a batch job")

// RequeueHold requeues a job, held. The error is ErrBatchOnly for a
// job of srun or salloc.
func (c Client) RequeueHold(ctx context.Context, t Target) error {
	return batchOnly(c.act(ctx, t, "scontrol", "requeuehold"))
}

// RequeueIncomplete puts a running job back into the queue; a job that has ended, or is
// in the queue already, stays unchanged (job_mgr.c, _job_requeue_op with JOB_RUNNING).
// The error is ErrBatchOnly for a job of srun or salloc.
func (c Client) RequeueIncomplete(ctx context.Context, t Target) error {
	return batchOnly(c.act(ctx, t, "scontrol", "requeue", "incomplete"))
}

func batchOnly(err error) error {
	if err != nil && strings.Contains(err.Error(), "Only batch jobs") { // ESLURM_BATCH_ONLY
		return ErrBatchOnly
	}
	return err
}

// ErrCron means that slurmctld changes the job for nobody, as it is a job of scrontab.
var ErrCron = errors.New("a job of scrontab, which runs again at its next time")

// CheckCron returns ErrCron for a job of scrontab: slurmctld refuses all changes of the job, release too
// (job_mgr.c, _update_job, 22.05 to 25.11), but not requeuehold, which would leave the job held for ever.
// CheckCron tries a change that changes nothing, of a job that may be requeued; slurmctld looks for scrontab
// before it looks whether the job has ended, in which case it refuses the change, too. Any other answer, or
// none, is an error: nothing is known then. Of a heterogeneous job a single component is asked about, for the
// others may be --no-requeue.
func (c Client) CheckCron(ctx context.Context, t Target) error {
	err := c.update(ctx, t, "Requeue=1")
	switch {
	case err == nil || notCron().MatchString(err.Error()):
		return nil
	case strings.Contains(err.Error(), "Cannot modify scrontab jobs"): // ESLURM_CANNOT_MODIFY_CRON_JOB
		return ErrCron
	}
	return err
}

// notCron are the refusals that come after slurmctld has looked for scrontab, 22.05 to 26.05, and the
// refusal for a job that has gone.
var notCron = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`Job has already finished|Job/step already completing or completed|` +
		`the DB index is being set|Invalid job id specified`)
})

// Unanswered tells whether an error says only that slurmctld's answer is missing: the request may have
// been carried out, or may be later.
func Unanswered(err error) bool {
	if err == nil {
		return false
	}
	var ended *exec.ExitError
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.As(err, &ended) && !ended.Exited() || noAnswer().MatchString(err.Error())
}

// noAnswer are Slurm's and the system's words for a missing answer (src/common/slurm_errno.c, 22.05 to
// 26.05). A restarting slurmctld, or a slurmctld not in charge, has many.
var noAnswer = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)Unable to contact slurm controller|Socket timed out|Zero Bytes were|` +
		`Communication (connection|shutdown) failure|Message (send|receive) failure|Unexpected message received|` +
		`Unexpected missing socket|Protocol authentication error|Insane message length|standby mode|` +
		`Rate limit exceeded|Received (zero length message|message length)|Failed to send entire message|` +
		`Header lengths are longer|Connection (reset|refused|timed out|aborted)|Broken pipe|` +
		`No route to host|Network is unreachable|Transport endpoint`)
})

// Release lets a held job start.
func (c Client) Release(ctx context.Context, t Target) error {
	return c.act(ctx, t, "scontrol", "release")
}

// Cancel ends a job.
func (c Client) Cancel(ctx context.Context, t Target) error { return c.act(ctx, t, "scancel") }

// Notify writes a line to the terminal of a job of srun or salloc, and into the
// stderr of a batch script.
func (c Client) Notify(ctx context.Context, job uint32, text string) error {
	_, err := c.run(ctx, "scontrol", "notify", strconv.FormatUint(uint64(job), 10), text)
	return err
}

// SetStart lets a pending job start at a time and not before.
func (c Client) SetStart(ctx context.Context, t Target, at time.Time) error {
	return c.update(ctx, t, "StartTime="+slurmTime(at))
}

// Change is what an update of a pending or completing job sets; fields that are
// empty here stay unchanged.
type Change struct {
	Partition    string
	TresPerNode  string
	Extra        string // CARMA's own part of a job's --extra; job_modify joins its user's (package extra)
	AdminComment string
	StartIn      time.Duration // not before; of use only for a job pending now or later
}

// Update changes a job in one RPC.
func (c Client) Update(ctx context.Context, t Target, change Change) error {
	var args []string
	for _, f := range []struct{ name, value string }{{"Partition", change.Partition}, {"Gres", change.TresPerNode}} {
		if f.value == "" {
			continue
		}
		if !plainList(f.value) {
			return fmt.Errorf("update job %s: %s=%.50q has characters that such a name cannot have; nothing is changed", t,
				f.name, f.value)
		}
		args = append(args, f.name+"="+f.value)
	}
	if change.Extra != "" {
		if !plainConstraint(change.Extra) {
			return fmt.Errorf("update job %s: Extra=%.50q has characters that CARMA's has not; nothing is changed", t,
				change.Extra)
		}
		args = append(args, "Extra="+change.Extra)
	}
	if change.AdminComment != "" {
		if strings.ContainsFunc(change.AdminComment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return fmt.Errorf("update job %s: AdminComment has control characters; nothing is changed", t)
		}
		args = append(args, "AdminComment="+change.AdminComment)
	}
	if change.StartIn > 0 {
		args = append(args, fmt.Sprintf("StartTime=now+%.0f", change.StartIn.Seconds()))
	}
	return c.update(ctx, t, args...)
}

// plainList tells whether s is made of characters that stand in lists of GRES and
// partitions. A user's own request comes back to slurmctld through here.
func plainList(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r|0x20 < 'a' || r|0x20 > 'z') && !strings.ContainsRune("_.-+/:=,@", r)
	}) < 0
}

// plainConstraint tells whether s is made of the characters of extra.Ask and extra.AskAll.
func plainConstraint(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && !strings.ContainsRune(">=|", r)
	}) < 0
}

func (c Client) update(ctx context.Context, t Target, args ...string) error {
	if t == (Target{}) {
		return errors.New("update: no job")
	}
	_, err := c.run(ctx, "scontrol", append([]string{"update", "JobId=" + t.text}, args...)...)
	return err
}

// act calls a command whose last argument is the target.
func (c Client) act(ctx context.Context, t Target, command string, args ...string) error {
	if t == (Target{}) {
		return fmt.Errorf("%s: no job", strings.Join(append([]string{command}, args...), " "))
	}
	_, err := c.run(ctx, command, append(args, t.text)...)
	return err
}
