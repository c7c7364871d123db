// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"time"

	"carma/db"
	"carma/gres"
)

// job is all attempts of one job, on all its nodes. docs/json.md describes the
// JSON.
type job struct {
	JobID      uint32        `json:"job_id"`
	User       string        `json:"user"`
	State      string        `json:"state"`
	EstMiB     *int64        `json:"est_mib"`
	ReserveMiB int64         `json:"reserve_mib"`
	PeakMiB    *int64        `json:"peak_mib"`
	GPUs       []string      `json:"gpus"`
	Neighbours []uint32      `json:"neighbours"`
	OOM        bool          `json:"oom"`
	RequeuedTo *string       `json:"requeued_to"`
	WaitS      gres.Measured `json:"wait_s"`
	RunS       float64       `json:"run_s"`
	EnergyJ    gres.Measured `json:"energy_j"`
	Mode       string        `json:"mode"`
	Method     string        `json:"method"`
	SMActPct   gres.Measured `json:"smact_pct"`
	Attempts   int           `json:"attempts"`
	Note       string        `json:"note,omitempty"`
}

// merge makes one job of its attempts: figures of the last attempt where one
// replaces the other, sums where they add up.
func merge(attempts []db.Attempt) []job {
	slices.SortStableFunc(attempts, func(a, b db.Attempt) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Restart, b.Restart), cmp.Compare(a.Node, b.Node))
	})
	jobs := []job{}
	for len(attempts) > 0 {
		n := 1
		for n < len(attempts) && attempts[n].JobID == attempts[0].JobID && attempts[n].Cluster == attempts[0].Cluster {
			n++
		}
		jobs = append(jobs, one(attempts[:n]))
		attempts = attempts[n:]
	}
	return jobs
}

// one merges the attempts of one job, in order.
func one(attempts []db.Attempt) job {
	first, last := attempts[0], attempts[len(attempts)-1]
	j := job{
		JobID: last.JobID, User: last.User, State: last.State, ReserveMiB: last.ReserveMiB,
		Mode: last.Mode, Method: first.Method, GPUs: []string{}, Neighbours: []uint32{},
		WaitS: gres.Unknown, SMActPct: gres.Unknown, EnergyJ: gres.Unknown,
	}
	var before time.Time // end of the attempt before
	for i, a := range attempts {
		newRestart := i == 0 || a.Restart != attempts[i-1].Restart
		if newRestart {
			j.Attempts++
			j.RunS += a.End.Sub(a.Start).Seconds()
			waited(&j, a, before)
			before = a.End
		}
		if a.EstMiB > 0 {
			j.EstMiB = &attempts[i].EstMiB
		}
		if p := a.PeakMiB(); p > 0 && (j.PeakMiB == nil || p > *j.PeakMiB) {
			j.PeakMiB = &p
		}
		if e := a.EnergyJ(); e.Known() {
			if !j.EnergyJ.Known() {
				j.EnergyJ = 0
			}
			j.EnergyJ += e
		}
		if smact, _ := a.SMAct(); smact.Known() {
			j.SMActPct = smact
		}
		j.OOM = j.OOM || a.OOM != ""
		if a.RequeuedTo != "" {
			j.RequeuedTo = &attempts[i].RequeuedTo
		}
		if a.OOMNote != "" {
			j.Note = a.OOMNote
		}
		j.Neighbours = append(j.Neighbours, a.Neighbours...)
		if a.Restart == last.Restart {
			for _, g := range a.GPUs {
				j.GPUs = append(j.GPUs, g.UUID)
			}
		}
	}
	slices.Sort(j.Neighbours)
	j.Neighbours = slices.Compact(j.Neighbours)
	return j
}

// waited adds the time from submission, or from the end of the attempt before.
func waited(j *job, a db.Attempt, before time.Time) {
	from := before
	if from.IsZero() {
		from = a.Submit
	}
	if from.IsZero() {
		return
	}
	if !j.WaitS.Known() {
		j.WaitS = 0
	}
	// Submission is known to the second only.
	j.WaitS += gres.Measured(max(a.Start.Sub(from).Seconds(), 0))
}
