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
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// slurmctld is asked for the node's jobs every observeEvery. The answer carries the jobs of the whole cluster: where
// slurmctld takes long, the node asks more rarely, and spends at most a part of its time (1/observeEveryTook) on
// questions for all. In between, slurmctld is asked about single jobs whose cgroups have come to the node, or have
// gone from jobs with a lease, and whose processes have come to GPUs or left GPUs: after observeGap, and for
// 1/observeGapTook of the time at most. About a new job with a process on a GPU slurmctld is asked at once: where
// slurmctld takes long, a short job would have ended before. All nodes together have slurmctld make half an answer at
// a time (1/observeAllTook). No node waits for longer than observeRarest, and after a question without an answer a node
// asks again soon.
const (
	observeEvery     = 10 * time.Second
	observeGap       = 2 * time.Second
	observeEveryTook = 100
	observeAllTook   = 2
	observeRarest    = 30 * time.Minute
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
	Cluster string                                // empty: Named tells
	Named   func(context.Context) (string, error) // the cluster's name, by slurmctld
	Ledger  Observed
	Jobs    Known
	Found   Finds
	Nodes   func(context.Context) (int, error) // of the cluster, each with an agent perhaps
	Records LostRecords
	Record  Recorder
	User    func(uid uint32) string // name
	Present func() []uint32         // jobs with a cgroup here, as far as cgroups tell
	Log     *slog.Logger

	asked   time.Duration // when slurmctld was asked for the jobs of the node
	took    time.Duration // how long the answer took
	failed  bool          // there was none
	nodes   int           // 0: not known
	more    bool          // jobs are left for the next time
	single  singles
	seen    map[presence]struct{}
	indices map[jobenv.JobKey][]int
	fails   string // as last said
}

// Recorder makes the record of an attempt that has ended; failed: on its own, by slurmctld's word.
type Recorder func(ctx context.Context, held lease.Held, exit jobenv.Exit, failed bool) db.Attempt

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
	o.single.note(now, o.seen, seen, v.snapshot.Leases)
	o.single.notePresent(now, o.Present(), v.snapshot.Leases)
	o.seen = seen
	switch {
	case o.due(now):
		o.tell(o.askAll(ctx, now, gpus))
	default:
		if ids := o.single.due(now); len(ids) > 0 {
			o.tell(o.askSingles(ctx, now, ids, gpus))
		}
	}
}

// due tells whether slurmctld is to be asked for the node's jobs.
func (o *Observer) due(now time.Duration) bool {
	since := now - o.asked
	pause := min(time.Duration(max(observeEveryTook, observeAllTook*o.nodes))*o.took, observeRarest)
	if o.failed {
		pause = 2 * o.took
	}
	return o.asked == 0 || since >= max(observeEvery, pause) ||
		o.more && since >= max(observeGap, observeGapTook*o.took)
}

// askAll asks slurmctld for the jobs of the node, and brings the ledger up to date.
func (o *Observer) askAll(ctx context.Context, now time.Duration, gpus []gres.GPU) error {
	o.asked, o.more = now, false
	jobs, err := o.Found.OnNode(ctx, o.Node)
	o.took, o.failed = lease.Now()-o.asked, err != nil
	if err != nil {
		return err
	}
	if o.nodes == 0 { // until slurmctld tells, the node asks as on a cluster of its own
		if o.nodes, err = o.Nodes(ctx); err != nil {
			o.Log.Warn("query how many nodes ask slurmctld", "error", err)
		}
	}
	if o.Cluster == "" {
		if o.Cluster, err = o.Named(ctx); err != nil {
			o.Log.Warn("query the cluster's name; records have none until slurmctld answers", "error", err)
		}
	}
	o.single.answeredAll(jobs, now)
	return o.reconcile(ctx, gpus, jobs, func(uint32) bool { return true })
}

// askSingles asks slurmctld about single jobs, and brings the ledger up to date.
func (o *Observer) askSingles(ctx context.Context, now time.Duration, ids []uint32, gpus []gres.GPU) error {
	s := &o.single
	s.asked = now
	var jobs []sctl.Job
	var failed, unwritten error
	about := map[uint32]bool{}
	for _, id := range ids {
		if about[id] {
			continue
		} else if len(about) == observedAtOnce {
			break
		}
		j, err := o.Jobs.Job(ctx, id)
		if err != nil && !errors.Is(err, sctl.ErrNoJob) {
			failed = err
			break
		}
		if err == nil && j.On(o.Node) {
			jobs = append(jobs, j)
		} else if f, is := s.fresh[id]; is && err == nil && f.ended(j) {
			unwritten = errors.Join(unwritten, o.beginAndEnd(ctx, f, j, gpus))
		}
		about[id] = true
		s.answered(id, now)
	}
	err := o.reconcile(ctx, gpus, jobs, func(id uint32) bool { return about[id] })
	s.took, s.failed = lease.Now()-now, failed != nil
	return errors.Join(failed, unwritten, err)
}

// beginAndEnd writes the record of a job that was too short for any figure.
func (o *Observer) beginAndEnd(ctx context.Context, f fresh, j sctl.Job, gpus []gres.GPU) error {
	b := observe.Begin{Job: observe.Job{JobKey: keyOfJob(j), UID: j.UID}}
	for _, uuid := range f.uuids {
		b.Claims = append(b.Claims, observe.Claim{UUID: uuid})
	}
	if err := o.begin(ctx, b, j, gpus); err != nil {
		return err
	}
	return o.endAs(ctx, b.Job.JobKey, j)
}

func (o *Observer) tell(err error) {
	if says := reason(err); says != o.fails {
		o.fails = says
		if err != nil {
			o.Log.Warn("query the jobs of this node; jobs begin and end in the records when slurmctld answers", "error", err)
		}
	}
}

// reconcile compares the ledger with jobs that hold the node now: all jobs that slurmctld was asked about.
func (o *Observer) reconcile(ctx context.Context, gpus []gres.GPU, jobs []sctl.Job, asked func(uint32) bool) error {
	s, err := o.Ledger.Snapshot(ctx)
	if err != nil {
		return err
	}
	var leases, others []gres.Lease
	for _, l := range s.Leases {
		if asked(l.Job.JobID) {
			leases = append(leases, l)
		} else {
			others = append(others, l)
		}
	}
	of := map[jobenv.JobKey]sctl.Job{}
	var here []observe.Job
	for _, j := range jobs {
		of[keyOfJob(j)] = j
		here = append(here, o.onNode(j))
	}
	maps.DeleteFunc(o.indices, func(key jobenv.JobKey, _ []int) bool { _, ok := of[key]; return !ok && asked(key.JobID) })
	err = o.findGPUs(ctx, here, of, leases)
	begin, end := observe.Plan(gpus, here, leases)
	o.endAll(ctx, end)
	err = errors.Join(err, o.endBefore(ctx, begin, others))
	for _, b := range begin {
		if _, known := o.indices[b.Job.JobKey]; known || leased(leases, b.Job.JobKey) {
			err = errors.Join(err, o.begin(ctx, b, of[b.Job.JobKey], gpus))
		}
	}
	return err
}

// endBefore ends jobs that had a GPU which slurmctld has given to another job. others are leases of jobs that slurmctld
// was not asked about now. Where slurmctld answers, the job before is no neighbour in the record of the next. The
// questions are bounded: where GPUs are not confined, a user's many jobs can have processes on one GPU.
func (o *Observer) endBefore(ctx context.Context, begin []observe.Begin, others []gres.Lease) error {
	asked := map[jobenv.JobKey]bool{}
	for _, l := range others {
		if asked[l.Job] || !given(begin, l.UUID) {
			continue
		}
		if len(asked) == observedAtOnce {
			o.more = true
			break
		}
		asked[l.Job] = true
		j, err := o.Jobs.Job(ctx, l.Job.JobID)
		if err != nil && !errors.Is(err, sctl.ErrNoJob) {
			return err
		}
		var here []observe.Job
		if err == nil && j.On(o.Node) {
			here = append(here, o.onNode(j))
		}
		if _, end := observe.Plan(nil, here, []gres.Lease{l}); len(end) == 0 {
			continue
		}
		if err := o.endAs(ctx, l.Job, j); err != nil {
			return err
		}
	}
	return nil
}

// given tells whether a job that begins has all of a GPU.
func given(begin []observe.Begin, uuid string) bool {
	return slices.ContainsFunc(begin, func(b observe.Begin) bool {
		return slices.Contains(b.Claims, observe.Claim{UUID: uuid, Whole: true})
	})
}

// onNode is a job that slurmctld has on the node, and where the job has processes.
func (o *Observer) onNode(j sctl.Job) observe.Job {
	return observe.Job{JobKey: keyOfJob(j), UID: j.UID, Ending: j.State == jobstate.Completing, On: on(j, o.seen)}
}

// keyOfJob is the present attempt of a job.
func keyOfJob(j sctl.Job) jobenv.JobKey {
	return jobenv.JobKey{JobID: j.ID, Restart: uint32(max(j.Restarts, 0))}
}

func leased(leases []gres.Lease, key jobenv.JobKey) bool {
	return slices.ContainsFunc(leases, func(l gres.Lease) bool { return l.Job == key })
}

// findGPUs asks once for the GPUs of each job that the ledger does not have.
func (o *Observer) findGPUs(ctx context.Context, here []observe.Job, of map[jobenv.JobKey]sctl.Job,
	leases []gres.Lease) (err error) {
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

// end asks slurmctld how an attempt has ended, writes its record and ends its leases.
func (o *Observer) end(ctx context.Context, key jobenv.JobKey) error {
	j, err := o.Jobs.Job(ctx, key.JobID)
	if err != nil && !errors.Is(err, sctl.ErrNoJob) {
		o.Log.Warn("query how a job ended", "job", key, "error", err)
	}
	return o.endAs(ctx, key, j)
}

// endAs writes the record of an attempt and ends its leases; j is zero where slurmctld does not know the job or did not
// answer.
func (o *Observer) endAs(ctx context.Context, key jobenv.JobKey, j sctl.Job) error {
	held, ok, err := o.Ledger.Find(ctx, key)
	if err != nil || !ok || held.Restart != key.Restart {
		return err
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
