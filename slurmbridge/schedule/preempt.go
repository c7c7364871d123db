// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"slices"
	"strings"
	"time"
)

// Preemption says which jobs may preempt which, as slurmctld has it
// (slurm.conf(5), preempt.html). The zero value: nobody.
type Preemption struct {
	ByPartition bool // PreemptType=preempt/partition_prio
	ByQOS       bool // preempt/qos
	Exempt      time.Duration
	KillWait    time.Duration
	Rules       map[string]PreemptRule   // by partition, or QOS
	ExemptIn    map[string]time.Duration // by QOS: its exempt time
	QOSOf       map[string]string        // by partition: a QOS that its jobs have beside their own
}

// PreemptRule is what is set for one partition or QOS.
type PreemptRule struct {
	Tier     int      // of a partition
	Preempts []string // of a QOS
	Mode     string   // REQUEUE, CANCEL, OFF, SUSPEND, GANG: for its jobs when they are preempted
	Grace    time.Duration
}

// Preemptible is what preemption looks at in a job.
type Preemptible struct {
	Partition string
	QOS       string
	Start     time.Time

	Reservation string
}

// Eviction is how a job is to be preempted.
type Eviction struct {
	Cancel bool // and not requeued
	Grace  time.Duration
}

// May tells whether a job may preempt another now, and how. A mode that leaves the
// job's memory on its GPUs (SUSPEND, GANG) frees none.
//
// May is stricter than slurmctld where slurmctld needs less: the longest of the
// exempt times counts (acct_policy_get_preemptable_time takes the first that is
// set).
func (p Preemption) May(preemptor, victim Preemptible, now time.Time) (e Eviction, ok bool) {
	if preemptor.Reservation != victim.Reservation {
		return e, false // what it would free is for others
	}
	exempt := max(p.Exempt, p.ExemptIn[victim.QOS], p.ExemptIn[p.QOSOf[victim.Partition]])
	if exempt > 0 && (victim.Start.IsZero() || now.Sub(victim.Start) < exempt) {
		return e, false
	}
	var a, b PreemptRule
	switch {
	case p.ByPartition:
		a, b = p.Rules[preemptor.Partition], p.Rules[victim.Partition]
		ok = a.Tier > b.Tier && b.Tier > 0
	case p.ByQOS:
		a, b = p.Rules[preemptor.QOS], p.Rules[victim.QOS]
		ok = slices.Contains(a.Preempts, victim.QOS) && preemptor.QOS != victim.QOS
	}
	if !ok || strings.Contains(a.Mode, ByPriority) || b.Mode != "REQUEUE" && b.Mode != "CANCEL" {
		return e, false
	}
	return Eviction{Cancel: b.Mode == "CANCEL", Grace: b.Grace}, true
}

// endTakes is how long the end of a job takes beyond KillWait: for its Epilog, and until
// slurmctld hears of it.
const endTakes = 30 * time.Second

// Hangs tells whether a job that has been completing since then does not go: a
// process cannot be killed, or an Epilog hangs. The job keeps its GPUs.
func (p Preemption) Hangs(completes, now time.Time) bool {
	return now.Sub(completes) > p.KillWait+endTakes
}

// Preempts tells whether a job may preempt any other.
func (p Preemption) Preempts(j Preemptible) bool {
	if p.ByQOS {
		return len(p.Rules[j.QOS].Preempts) > 0
	}
	tier := p.Rules[j.Partition].Tier
	for _, r := range p.Rules {
		if p.ByPartition && r.Tier < tier {
			return true
		}
	}
	return false
}

// ByPriority is a PreemptMode with which a job preempts only jobs of lower priority
// (24.05 and later).
const ByPriority = "PRIORITY"
