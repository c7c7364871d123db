// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/slurmbridge/jobstate"
)

// job is all attempts of one job, on all its nodes.
type job struct {
	*db.Attempt          // the last attempt on its first node: names, state, mode, method, reserve
	Nodes       []string // of the last attempt
	Attempts    int
	WaitS       figure.Measured // before all attempts
	RunS        float64         // of all attempts
	PeakMiB     int64           // highest of all attempts
	FailedMiB   int64           // the highest booking of an attempt that ran out of memory
	Requeued    string          // partition where the job was requeued
	Recovered   bool            // was requeued and ended well
	UsefulS     figure.Measured // time that its work takes alone, without attempts that it lost by sharing
	figures     *db.Total       // sums over attempts and nodes
	several     struct {        // what Attempt and figures are of, unless one attempt is all
		db.Attempt
		figures           db.Total
		smactS            float64 // GPU seconds of the last attempt that its SM activity is of
		energyOf          bool    // an attempt is in the sum of that name
		aloneOf, usefulOf bool    // the same
		noLaw             bool    // of an attempt it is not known what the law of interference expects
	}
}

// merge makes one job of its attempts, which stand in order of restart and node:
// figures of the last attempt where one replaces the other, sums where they add
// up. The job is made of the attempts, which may not be used for another before
// the job has been looked at.
func (j *job) merge(attempts []db.Attempt) {
	if len(attempts) == 1 { // as most are: nothing to put together, nothing to copy
		j.one(&attempts[0])
		return
	}
	first, last := &attempts[0], &attempts[len(attempts)-1]
	head := last
	for i := range attempts {
		if attempts[i].Restart == last.Restart {
			head = &attempts[i]
			break
		}
	}
	s := &j.several
	others, uuids := s.Neighbours[:0], s.figures.UUIDs[:0]
	s.Attempt, s.figures = *head, db.Total{UUIDs: uuids, AloneS: figure.Unknown, EnergyJ: figure.Unknown,
		IdleJ: figure.Unknown, EnergyHow: figure.QualityNone}
	s.noLaw, s.energyOf, s.aloneOf, s.usefulOf = false, false, false, false
	j.reset(&s.Attempt, &s.figures)
	j.Method, j.EstMiB, j.OOM, j.OOMNote, j.Submit = first.Method, 0, "", "", first.Submit
	j.Neighbours = others
	var before time.Time // end of the attempt before
	for i := range attempts {
		a := &attempts[i]
		if i == 0 || a.Restart != attempts[i-1].Restart {
			s.smactS = 0
			j.Attempts++
			j.RunS += ranS(a)
			j.waited(a, before)
			before = a.End
		}
		j.add(a, i == 0)
		if a.Restart == last.Restart {
			j.Nodes = append(j.Nodes, a.Node)
			j.figures.UUIDs = append(j.figures.UUIDs, a.Total.UUIDs...)
			j.End = maxTime(j.End, a.End)
		}
	}
	j.Start = first.Start
	if s.noLaw {
		s.figures.LawS = 0
	}
	j.finish()
}

// one makes a job of a single attempt.
func (j *job) one(a *db.Attempt) {
	j.reset(a, &a.Total)
	if a.OOM != "" {
		j.FailedMiB = a.ReserveMiB
	}
	j.Attempts, j.RunS, j.PeakMiB, j.Requeued = 1, ranS(a), a.Total.PeakMiB, a.RequeuedTo
	j.Nodes = append(j.Nodes, a.Node)
	if a.RequeuedTo == "" {
		j.UsefulS = a.Total.AloneS
	}
	j.waited(a, time.Time{})
	j.finish()
}

func (j *job) reset(a *db.Attempt, figures *db.Total) {
	j.Attempt, j.figures = a, figures
	j.Nodes, j.Attempts, j.WaitS, j.RunS, j.PeakMiB, j.Requeued = j.Nodes[:0], 0, figure.Unknown, 0, 0, ""
	j.UsefulS, j.FailedMiB = figure.Unknown, 0
}

func (j *job) finish() {
	j.Recovered = j.Requeued != "" && j.State == jobstate.Completed
	slices.Sort(j.Neighbours)
	j.Neighbours = slices.Compact(j.Neighbours)
}

// ranS is how long an attempt ran; the clock may have been set back meanwhile.
func ranS(a *db.Attempt) float64 { return max(a.End.Sub(a.Start).Seconds(), 0) }

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// add adds the figures of an attempt.
func (j *job) add(a *db.Attempt, isFirst bool) {
	t, f := &a.Total, j.figures
	if a.EstMiB > 0 {
		j.EstMiB = a.EstMiB
	}
	if t.PeakMiB > j.PeakMiB {
		j.PeakMiB, f.PeakHow = t.PeakMiB, t.PeakHow
	}
	f.MeanMiB = max(f.MeanMiB, t.MeanMiB)
	if isFirst {
		f.Model, f.SMActPct, f.SMActMax, f.SMActHow = t.Model, t.SMActPct, t.SMActMax, t.SMActHow
		f.PeakHow = t.PeakHow
		j.several.smactS = t.LeaseS
	} else {
		j.addSMAct(t)
	}
	j.addEnergy(t)
	f.LeaseS, f.HeldS, f.SharedS = f.LeaseS+t.LeaseS, f.HeldS+t.HeldS, f.SharedS+t.SharedS
	f.LawS += t.LawS
	j.several.noLaw = j.several.noLaw || t.LawS == 0 && t.LeaseS > 0
	j.addAlone(a)
	if a.OOM != "" {
		j.OOM, j.FailedMiB = a.OOM, max(j.FailedMiB, a.ReserveMiB)
	}
	if a.OOMNote != "" {
		j.OOMNote = a.OOMNote
	}
	if a.RequeuedTo != "" {
		j.Requeued = a.RequeuedTo
	}
	j.Neighbours = append(j.Neighbours, a.Neighbours...)
}

// addSMAct takes the mean over the nodes of an attempt, by the time held there.
func (j *job) addSMAct(t *db.Total) {
	f, s := j.figures, &j.several.smactS
	switch {
	case !t.SMActPct.Known():
		return
	case *s == 0 || !f.SMActPct.Known():
		f.SMActPct, f.SMActMax, f.SMActHow, *s = t.SMActPct, t.SMActMax, t.SMActHow, t.LeaseS
		return
	}
	f.SMActPct = (f.SMActPct*figure.Measured(*s) +
		t.SMActPct*figure.Measured(t.LeaseS)) / figure.Measured(*s+t.LeaseS)
	f.SMActMax, f.SMActHow = max(f.SMActMax, t.SMActMax), f.SMActHow.And(t.SMActHow)
	*s += t.LeaseS
}

// addEnergy adds the energy of an attempt on a node: as of addAlone, the sum is known where all of it is.
func (j *job) addEnergy(t *db.Total) {
	f, begun := j.figures, &j.several.energyOf
	switch {
	case t.LeaseS == 0 && !t.EnergyJ.Known():
	case !*begun:
		f.EnergyJ, f.IdleJ, f.EnergyHow, *begun = t.EnergyJ, t.IdleJ, t.EnergyHow, true
	default:
		f.EnergyJ, f.IdleJ, f.EnergyHow = f.EnergyJ+t.EnergyJ, f.IdleJ+t.IdleJ, f.EnergyHow.And(t.EnergyHow)
	}
}

// addAlone adds how long the work of an attempt takes alone: the sum is known where that of
// every attempt is that held a GPU. Work that is done again because of others is useful once.
func (j *job) addAlone(a *db.Attempt) {
	t := &a.Total
	if t.LeaseS == 0 && !t.AloneS.Known() {
		return
	}
	to := func(sum *figure.Measured, begun *bool) {
		if !*begun {
			*sum, *begun = 0, true
		}
		*sum += t.AloneS // with one unknown the sum is unknown
	}
	to(&j.figures.AloneS, &j.several.aloneOf)
	if a.RequeuedTo == "" {
		to(&j.UsefulS, &j.several.usefulOf)
	}
}

// waited adds the time from submission, or from the end of the attempt before.
func (j *job) waited(a *db.Attempt, before time.Time) {
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
	j.WaitS += figure.Measured(max(a.Start.Sub(from).Seconds(), 0))
}

// id is the job's number as its user knows it: 12, or 10_2 of an array.
func (j *job) id() string {
	if j.ArrayJobID != 0 {
		return fmt.Sprintf("%d_%s", j.ArrayJobID, j.ArrayTask)
	}
	return strconv.FormatUint(uint64(j.JobID), 10)
}

// savedS is the GPU time that the job would have kept for itself alone, less what
// it kept: known where it is known how long the work takes alone.
func (j *job) savedS() figure.Measured { return j.UsefulS - figure.Measured(j.figures.HeldS) }

// expectedSlowdown is how many times as long as alone the job took by the law of
// interference, while it held its GPUs.
func (j *job) expectedSlowdown() figure.Measured { return times(j.figures.LeaseS, j.figures.LawS) }

// slowdown is the same by the SM activity that was measured: known where it is known what
// all that shared do alone.
func (j *job) slowdown() figure.Measured {
	if !j.figures.AloneS.Known() {
		return figure.Unknown
	}
	return times(j.figures.LeaseS, float64(j.figures.AloneS))
}

func times(leaseS, aloneS float64) figure.Measured {
	if !(aloneS > 0) || leaseS == 0 {
		return figure.Unknown
	}
	return figure.Measured(math.Round(100*max(leaseS/aloneS, 1)) / 100)
}

// memErrPct is how far the estimate was off the peak.
func (j *job) memErrPct() figure.Measured {
	if j.EstMiB == 0 || j.PeakMiB == 0 {
		return figure.Unknown
	}
	return 100 * figure.Measured(j.EstMiB-j.PeakMiB) / figure.Measured(j.PeakMiB)
}

// oomText names the consequence of an OOM.
func (j *job) oomText() string {
	switch {
	case j.Requeued != "":
		return "requeued to " + j.Requeued
	case j.OOM != "":
		return "yes"
	}
	return ""
}

// clone is a copy that stays when its pieces are used again.
func (j *job) clone() *job {
	c := *j
	c.several.Attempt, c.several.figures = *j.Attempt, *j.figures
	c.Attempt, c.figures = &c.several.Attempt, &c.several.figures
	c.Nodes, c.figures.UUIDs = slices.Clone(j.Nodes), slices.Clone(j.figures.UUIDs)
	c.Neighbours = slices.Clone(j.Neighbours)
	return &c
}
