// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"carma/db"
	"carma/gres"
	"carma/gres/lease"
	"carma/gres/observe"
	"carma/gres/resident"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// slurmctld is asked for the node's jobs every observeEvery, and after observeGap already where processes of
// jobs have come to GPUs or left GPUs. The answer carries the jobs of the whole cluster: where slurmctld takes
// long, the node asks more rarely, and spends at most a part of its time (1/observeEveryTook,
// 1/observeGapTook) on such questions.
const (
	observeEvery     = 10 * time.Second
	observeGap       = 2 * time.Second
	observeEveryTook = 100
	observeGapTook   = 20
)

// observedAtOnce bounds a look's questions to slurmctld about single jobs.
const observedAtOnce = 20

// lateStart is how long a job may have run before the agent has seen the job, without a note in the record.
const lateStart = 30 * time.Second

// Observer keeps the ledger and the records where no hook does (mode = "observe"): the jobs are those that slurmctld
// has on the node, and those with processes on GPUs. The Observer changes nothing in Slurm.
type Observer struct {
	Node    string
	Cluster string
	Ledger  Observed
	Jobs    Known
	Found   Finds
	Records LostRecords
	Record  Recorder
	User    func(uid uint32) string // name
	Log     *slog.Logger

	asked   time.Duration // when slurmctld was asked for the jobs of the node
	took    time.Duration // how long the answer took
	seen    map[presence]struct{}
	more    bool // jobs are left for the next time
	indices map[jobenv.JobKey][]int
	fails   string // as last said
}

// Recorder makes the record of an attempt that has ended; failed: on its own, by slurmctld's word.
type Recorder func(ctx context.Context, held lease.Held, exit jobenv.Exit, failed bool) db.Attempt

// presence is a job's process on a GPU. Which process, does not matter.
type presence struct {
	owner resident.Owner
	uuid  string
}

// first ends the leases of jobs that have ended while no agent ran, before the first look charges such jobs for GPUs.
func (o *Observer) first(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, observeEvery)
	defer cancel()
	s, err := o.Ledger.Snapshot(ctx)
	if err != nil || len(s.Leases) == 0 {
		return // a ledger that cannot be read gets a line at each look
	}
	jobs, err := o.Found.OnNode(ctx, o.Node)
	if err != nil {
		o.tell(err)
		return
	}
	var here []observe.Job
	for _, j := range jobs {
		here = append(here, observe.Job{JobKey: keyOfJob(j), UID: j.UID})
	}
	_, end := observe.Plan(nil, here, s.Leases)
	o.endAll(ctx, end)
}

// look brings the ledger up to date, if slurmctld is to be asked now.
func (o *Observer) look(ctx context.Context, v view) {
	seen := map[presence]struct{}{}
	var gpus []gres.GPU
	for _, s := range v.samples {
		gpus = append(gpus, s.GPU)
		for _, p := range s.Processes {
			if owner := v.owners.Owner(p.PID); owner.JobID != 0 {
				seen[presence{owner, s.UUID}] = struct{}{}
			}
		}
	}
	now := lease.Now()
	if !o.due(now, seen) {
		return
	}
	// Once more after a change: slurmctld hears of a job's end a moment after the job's last process has gone.
	changed := o.asked > 0 && !maps.Equal(seen, o.seen)
	o.asked, o.seen, o.more = now, seen, changed
	err := o.reconcile(ctx, gpus, seen)
	o.tell(err)
}

// due tells whether slurmctld is to be asked for the node's jobs.
func (o *Observer) due(now time.Duration, seen map[presence]struct{}) bool {
	switch since := now - o.asked; {
	case o.asked == 0:
		return true
	case since < max(observeGap, observeGapTook*o.took):
		return false
	case since >= max(observeEvery, observeEveryTook*o.took):
		return true
	}
	return o.more || !maps.Equal(seen, o.seen)
}

func (o *Observer) tell(err error) {
	if says := fmt.Sprint(err); says != o.fails {
		o.fails = says
		if err != nil {
			o.Log.Warn("query the jobs of this node; jobs begin and end in the records when slurmctld answers", "error", err)
		}
	}
}

func (o *Observer) reconcile(ctx context.Context, gpus []gres.GPU, seen map[presence]struct{}) error {
	jobs, err := o.Found.OnNode(ctx, o.Node)
	o.took = lease.Now() - o.asked
	if err != nil {
		return err
	}
	s, err := o.Ledger.Snapshot(ctx)
	if err != nil {
		return err
	}
	of := map[jobenv.JobKey]sctl.Job{}
	var here []observe.Job
	for _, j := range jobs {
		of[keyOfJob(j)] = j
		here = append(here, observe.Job{JobKey: keyOfJob(j), UID: j.UID, Ending: j.State == jobstate.Completing,
			On: on(j, seen)})
	}
	err = o.findGPUs(ctx, here, of, s.Leases)
	begin, end := observe.Plan(gpus, here, s.Leases)
	o.endAll(ctx, end)
	for _, b := range begin {
		if _, known := o.indices[b.Job.JobKey]; known || leased(s.Leases, b.Job.JobKey) {
			err = errors.Join(err, o.begin(ctx, b, of[b.Job.JobKey], gpus))
		}
	}
	return err
}

// keyOfJob is the present attempt of a job.
func keyOfJob(j sctl.Job) jobenv.JobKey {
	return jobenv.JobKey{JobID: j.ID, Restart: uint32(max(j.Restarts, 0))}
}

// on are the GPUs with a process of the job.
func on(j sctl.Job, seen map[presence]struct{}) (uuids []string) {
	for p := range seen {
		if p.owner.Of(j.ID, j.UID) && !slices.Contains(uuids, p.uuid) {
			uuids = append(uuids, p.uuid)
		}
	}
	return uuids
}

func leased(leases []gres.Lease, key jobenv.JobKey) bool {
	return slices.ContainsFunc(leases, func(l gres.Lease) bool { return l.Job == key })
}

// findGPUs asks once for the GPUs of each job that the ledger does not have, and forgets jobs that have gone.
func (o *Observer) findGPUs(ctx context.Context, here []observe.Job, of map[jobenv.JobKey]sctl.Job,
	leases []gres.Lease) (err error) {
	maps.DeleteFunc(o.indices, func(key jobenv.JobKey, _ []int) bool { _, ok := of[key]; return !ok })
	if o.indices == nil {
		o.indices = map[jobenv.JobKey][]int{}
	}
	asked := 0
	for i := range here {
		j := &here[i]
		known := false
		if j.Indices, known = o.indices[j.JobKey]; known || j.Ending || leased(leases, j.JobKey) {
			continue
		}
		if asked++; asked > observedAtOnce {
			o.more = true
			return err
		}
		list, askErr := o.Found.GPUs(ctx, of[j.JobKey], o.Node)
		if askErr != nil {
			err = errors.Join(err, askErr)
			continue
		}
		o.indices[j.JobKey], j.Indices = list, list
	}
	return err
}

// begin gives the ledger GPUs of a job. The job's own texts come with the end of the job (Ends).
func (o *Observer) begin(ctx context.Context, b observe.Begin, j sctl.Job, gpus []gres.GPU) error {
	a := db.Attempt{Cluster: o.Cluster, JobID: j.ID, Restart: b.Job.Restart, Node: o.Node, User: o.User(j.UID), UID: j.UID,
		Partition: j.Partition, Mode: jobenv.ModeExclusive, Method: "none", Submit: j.Submitted,
		Start: j.Start}
	if a.Start.IsZero() {
		a.Start = time.Now()
	}
	var claims []lease.Claim
	for _, c := range b.Claims {
		claims = append(claims, lease.Claim(c))
		for _, g := range gpus {
			if g.UUID == c.UUID {
				a.FullMiB = max(a.FullMiB, g.TotalMiB)
			}
		}
	}
	about, err := json.Marshal(a)
	if err == nil {
		err = o.Ledger.Observe(ctx, lease.Job{JobKey: b.Job.JobKey, UID: j.UID, About: about}, claims)
	}
	if err != nil {
		return err
	}
	o.Log.Info("job seen on this node", "job", b.Job.JobKey, "uid", j.UID, "gpus", len(claims))
	return nil
}

// endAll writes the records of jobs that have ended.
func (o *Observer) endAll(ctx context.Context, end []jobenv.JobKey) {
	if len(end) > observedAtOnce {
		end, o.more = end[:observedAtOnce], true
	}
	for _, key := range end {
		if err := o.end(ctx, key); err != nil {
			o.Log.Error("end a job in the ledger", "job", key, "error", err)
		}
	}
}

// end writes the record of an attempt and ends its leases.
func (o *Observer) end(ctx context.Context, key jobenv.JobKey) error {
	held, ok, err := o.Ledger.Find(ctx, key)
	if err != nil || !ok || held.Restart != key.Restart {
		return err
	}
	j, err := o.Jobs.Job(ctx, key.JobID)
	if err != nil && !errors.Is(err, sctl.ErrNoJob) {
		o.Log.Warn("query how a job ended", "job", key, "error", err)
	}
	if err := o.Records.PutLost(ctx, o.record(ctx, held, j, time.Now())); err != nil {
		o.Log.Error("write record", "job", key, "error", err)
	}
	if err := o.Ledger.Release(ctx, key); err != nil {
		return err
	}
	o.Log.Info("job has ended on this node", "job", key, "state", cmp.Or(string(j.State), "not known"))
	return nil
}

// record is the record of an attempt; j is zero where slurmctld does not know the job, or did not answer.
func (o *Observer) record(ctx context.Context, held lease.Held, j sctl.Job, now time.Time) db.Attempt {
	state := ""
	known := j.State != "" && j.UID == held.UID
	if known {
		state = finalState(j, held.Restart)
	}
	var exit jobenv.Exit
	if known = known && keyOfJob(j) == held.JobKey; known {
		exit = jobenv.Exit{Code: j.ExitCode, Signal: j.ExitSignal}
		if j.State == jobstate.Completing { // Ends has the last word
			state = jobstate.Completed
			if exit.Failed() {
				state = jobstate.Failed
			}
		}
	}
	a := o.Record(ctx, held, exit, state == jobstate.Failed || state == jobstate.OutOfMemory)
	if a.State != jobstate.OutOfMemory {
		a.State = cmp.Or(state, a.State)
	}
	var began db.Attempt
	if json.Unmarshal(held.About, &began) == nil && !began.Start.IsZero() {
		a.Start = began.Start
	}
	a.End = now
	ended := !j.State.HoldsNode() || j.State == jobstate.Completing
	if known && ended && j.End.Before(now) && j.End.After(a.Start) {
		a.End = j.End
	}
	if unseen := now.Add(-held.Age).Sub(a.Start); unseen > lateStart && a.OOMNote == "" {
		a.OOMNote = fmt.Sprintf("its figures begin %s after its start, when the agent first saw the job",
			unseen.Round(time.Second))
	}
	return a
}
