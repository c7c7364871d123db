// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/resident"
	"carma/slurmbridge/sctl"
)

// singles are single jobs to ask slurmctld about.
type singles struct {
	changed map[uint32]time.Duration // since when each is to be asked about
	present map[uint32]struct{}      // jobs with a cgroup
	come    map[uint32]struct{}      // jobs of present that nobody has asked about
	fresh   map[uint32]fresh         // jobs of changed that have not been met
	met     map[uint32]struct{}      // jobs in the last answer on all jobs, or asked about since
	asked   time.Duration
	took    time.Duration // how long the answers took together
	failed  bool          // slurmctld did not answer
}

// fresh is a job as the processes tell, before slurmctld has said a word.
type fresh struct {
	owner resident.Owner
	uuids []string // GPUs with a process
	since time.Time
}

// presence is a job's process on a GPU. Which process, does not matter.
type presence struct {
	owner resident.Owner
	uuid  string
}

// note takes in processes that have come to GPUs or left GPUs. A job that comes to a GPU may be the first sign that the
// job before has ended.
func (s *singles) note(now time.Duration, before, seen map[presence]struct{}, leases []gres.Lease) {
	if s.changed == nil {
		s.changed, s.fresh, s.met = map[uint32]time.Duration{}, map[uint32]fresh{}, map[uint32]struct{}{}
		s.come = map[uint32]struct{}{}
	}
	for p := range before {
		if _, there := seen[p]; !there {
			s.changed[p.owner.JobID] = now
		}
	}
	for p := range seen {
		if _, there := before[p]; there {
			continue
		}
		id := p.owner.JobID
		s.changed[id] = now
		// Anybody can claim the number of a job.
		if _, met := s.met[id]; !met && !p.owner.Claimed {
			f, known := s.fresh[id]
			if !known {
				f = fresh{owner: p.owner, since: time.Now()}
			}
			f.uuids = append(f.uuids, p.uuid)
			s.fresh[id] = f
		}
		for _, l := range leases {
			if l.UUID == p.uuid {
				s.changed[l.Job.JobID] = now
			}
		}
	}
}

// notePresent takes in cgroups that have come, and cgroups of jobs with a lease that have gone. A job may use
// no GPU, or use a GPU late. The first look asks for all jobs.
func (s *singles) notePresent(now time.Duration, ids []uint32, leases []gres.Lease) {
	present := map[uint32]struct{}{}
	for _, id := range ids {
		present[id] = struct{}{}
		if _, before := s.present[id]; !before && s.present != nil {
			s.come[id] = struct{}{}
		}
	}
	for _, l := range leases {
		_, before := s.present[l.Job.JobID]
		if _, there := present[l.Job.JobID]; before && !there {
			s.changed[l.Job.JobID] = now
		}
	}
	s.present = present
}

// due are the jobs that slurmctld is to be asked about now, new jobs on GPUs first. Where the last question had no
// answer, a new job waits about as long as the question took: a new job may be short.
func (s *singles) due(now time.Duration) []uint32 {
	since := now - s.asked
	fresh := len(s.fresh) > 0 && (!s.failed || since >= max(observeGap, 2*s.took))
	all := since >= max(observeGap, observeGapTook*s.took)
	if !fresh && !all {
		return nil
	}
	ids := slices.AppendSeq(slices.Collect(maps.Keys(s.fresh)), maps.Keys(s.changed))
	if all {
		ids = slices.AppendSeq(ids, maps.Keys(s.come))
	}
	return ids
}

// answered notes that slurmctld has answered about a job. An answer that comes soon after the change is not the last:
// slurmctld hears of a job's end a moment after the job's last process has gone.
func (s *singles) answered(id uint32, now time.Duration) {
	if now-s.changed[id] >= observeGap {
		delete(s.changed, id)
	}
	delete(s.fresh, id)
	delete(s.come, id)
	s.met[id] = struct{}{}
}

// answeredAll notes that slurmctld has named all jobs of the node: of others there is no more to hear.
func (s *singles) answeredAll(jobs []sctl.Job, now time.Duration) {
	s.met, s.come = map[uint32]struct{}{}, map[uint32]struct{}{}
	for _, j := range jobs {
		s.answered(j.ID, now)
	}
	maps.DeleteFunc(s.changed, func(id uint32, at time.Duration) bool {
		_, fresh := s.fresh[id]
		return !fresh && now-at >= observeGap
	})
}

// ended tells whether a job has ended after the processes were seen, and before slurmctld was asked. slurmctld's clock
// may be a second off, and the times are whole seconds.
func (f fresh) ended(j sctl.Job) bool {
	return j.State.HasEnded() && f.owner.Of(j.ID, j.UID) && j.End.After(f.since.Add(-3*time.Second))
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
