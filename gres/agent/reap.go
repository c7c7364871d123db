// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"carma/gres/confine"
	"carma/gres/lease"
	"carma/gres/output"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/sctl"
)

// reapAge is how old a lease must be before its job is looked for: a job has no
// slurmstepd while its Prolog runs.
const reapAge = 30 * time.Second

// reap releases the leases of jobs that have ended without an Epilog, or run elsewhere,
// as after slurmd was killed. slurmctld has the last word.
func (a *Agent) reap(ctx context.Context, g confine.Guard, s lease.Snapshot) {
	var stepds map[uint32]bool
	looked := map[jobenv.JobKey]bool{} // a job may have several GPUs
	for _, j := range s.Leases {
		if j.Age < reapAge || looked[j.Job] {
			continue
		}
		looked[j.Job] = true
		if stepds == nil {
			var err error
			if stepds, err = a.Owners.Stepds(); err != nil {
				a.Log.Error("find leases without a job", "error", err)
				return
			}
		}
		if stepds[j.Job.JobID] {
			continue
		}
		job, err := a.Jobs.Job(ctx, j.Job.JobID)
		if err != nil && !errors.Is(err, sctl.ErrNoJob) {
			a.Log.Warn("find leases without a job", "job", j.Job, "error", err)
			continue
		}
		if err == nil && a.isHere(job, j.Job) {
			continue
		}
		a.dropTaskFile(j.Job) // first, as the Epilog: the file is none of a later attempt then
		ended, err := a.endLost(ctx, j.Job)
		if err != nil {
			a.Log.Error("release", "job", j.Job, "error", err)
		}
		if ended {
			a.Log.Warn("lease without a job released", "job", j.Job, "state", job.State, "nodes", job.NodeList, "restarts",
				job.Restarts)
		}
		if ended && g != nil { // else its Epilog has closed them
			if _, err := a.Confinement.shut(ctx, g, confine.Job{ID: j.Job.JobID, UID: j.UID}); err != nil {
				a.Log.Error("close GPUs to a job that has lost its lease", "job", j.Job, "error", err)
			}
		}
	}
}

// dropTaskFile removes the file that the attempt's Prolog left for its tasks
// (prolog/task.go). A later attempt may have a file of its own by now, or put it there
// meanwhile: then the later file comes back.
func (a *Agent) dropTaskFile(job jobenv.JobKey) {
	path := filepath.Join(a.RunDir, "jobs", jobenv.JobKey{JobID: job.JobID}.String()+".json")
	aside := path + ".ended"
	if !isOf(path, job) || os.Rename(path, aside) != nil {
		return
	}
	if !isOf(aside, job) {
		if err := os.Link(aside, path); err != nil && !errors.Is(err, fs.ErrExist) { // a newer file is there
			return
		}
	}
	os.Remove(aside)
}

// isOf tells whether a task file is of an attempt, or of an earlier attempt, or cannot be
// read.
func isOf(path string, job jobenv.JobKey) bool {
	var of struct {
		Restart uint32 `json:"restart"`
	}
	text, err := os.ReadFile(path)
	return err == nil && (json.Unmarshal(text, &of) != nil || of.Restart <= job.Restart)
}

// isHere tells whether an attempt of a job is on this node by what slurmctld says of
// the job. slurmctld may count the next attempt already while one completes.
func (a *Agent) isHere(j sctl.Job, attempt jobenv.JobKey) bool {
	if !j.State.HoldsNode() || j.NodeList != "" && !hostlist.Contains(j.NodeList, a.Node) {
		return false
	}
	return j.State == jobstate.Completing || uint32(j.Restarts) <= attempt.Restart
}

// endLost ends the lease of an attempt without an Epilog, and writes its record. ended is false
// if an Epilog, or the job's next Prolog here, came in between.
func (a *Agent) endLost(ctx context.Context, key jobenv.JobKey) (ended bool, err error) {
	held, ok, err := a.Ledger.Find(ctx, key)
	if err != nil {
		return false, err
	}
	if !ok || held.Restart != key.Restart {
		return false, nil
	}
	if a.Records != nil {
		if err := a.Records.PutLost(ctx, a.Lost(held)); err != nil {
			a.Log.Error("write record", "job", key, "error", err)
		}
	}
	if err := a.Ledger.Release(ctx, key); err != nil {
		return false, err
	}
	if err := output.Drop(a.RunDir, key); err != nil { // else a later job of the id is judged by what this one wrote
		a.Log.Warn("clean up", "job", key, "error", err)
	}
	return true, nil
}
