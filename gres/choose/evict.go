// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"cmp"
	"math"
	"slices"

	"carma/gres"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

// Leaving is whether a job leaves its GPUs for a preempting job.
type Leaving int

const (
	Stays  Leaving = iota
	Yields         // if preempted
	Leaves         // whatever is done
)

// Evict returns the GPUs on which the request fits when as few jobs as possible have gone
// of the jobs that it may preempt, the youngest first, and these jobs with the jobs that
// leave in any case; none if that is not enough. The activity of the leaving jobs is not
// measured apart, so GPUs whose other jobs keep a gate shut may need another look.
func Evict(p Policy, in Input, leaving func(*gres.Lease) Leaving) (uuids []string, jobs []jobenv.JobKey) {
	type gpu struct {
		uuid string
		jobs []jobenv.JobKey
		evictionCost
	}
	var all []gpu
	for i := range in.Readings {
		g := &in.Readings[i]
		held := g.HeldFor != 0 && g.HeldFor != in.Request.JobID
		small := g.TotalMiB < in.Request.ReserveMiB && !g.Whole(in.Request.ReserveMiB)
		if g.Unreadable != "" || g.Quarantined != "" || g.Foreign > 0 || held || g.MIG || small {
			continue
		}
		if jobs, cost, ok := evictions(p, g, &in, leaving); ok {
			all = append(all, gpu{g.UUID, jobs, cost})
		}
	}
	if len(all) < in.Request.GPUs {
		return nil, nil
	}
	slices.SortStableFunc(all, func(a, b gpu) int {
		return cmp.Or(cmp.Compare(a.evictionCost.jobs, b.evictionCost.jobs), cmp.Compare(a.age, b.age))
	})
	for _, g := range all[:in.Request.GPUs] {
		uuids = append(uuids, g.uuid)
		for _, j := range g.jobs {
			if !slices.Contains(jobs, j) {
				jobs = append(jobs, j)
			}
		}
	}
	return uuids, jobs
}

// evictions returns the jobs that have to leave a GPU, and how many are to be preempted,
// with the age of the youngest; ok is false if any of them stays.
func evictions(
	p Policy, g *gres.Reading, in *Input, leaving func(*gres.Lease) Leaving,
) (jobs []jobenv.JobKey, cost evictionCost, ok bool) {
	r, t := &in.Request, &in.Thresholds
	var buf [1]state
	one := *in
	one.Readings = []gres.Reading{*g}
	s := &statesOf(buf[:], &one)[0]
	alone := r.Exclusive || p == policy.Exclusive || r.GPUs > 1 // a daemon of several comes up on GPUs without jobs
	others := t.CrossUser && p != policy.Carma
	demand, known := activity(r.SMActPct, 0)
	busy := s.busy(t).code != 0 || g.MPSClients >= maxClients ||
		s.slows(in, newcomer{demand, s.joins(in)}, known).code != 0
	freeMiB := s.freeMiB()
	cost.age, ok = math.MaxInt64, true
	ends := func(l *gres.Lease) {
		how := leaving(l)
		ok = ok && how != Stays
		jobs = append(jobs, l.Job)
		if how != Leaves {
			cost.jobs++
			cost.age = min(cost.age, l.Age)
		}
		freeMiB += l.ReserveMiB
	}
	var stay []*gres.Lease
	for i := range in.Leases {
		switch l := &in.Leases[i]; {
		case l.UUID != g.UUID || l.Job.JobID == r.JobID:
		case alone || l.Exclusive || l.UID != r.UID && !others:
			ends(l)
		default:
			stay = append(stay, l)
		}
	}
	slices.SortStableFunc(stay, func(a, b *gres.Lease) int {
		return cmp.Or(cmp.Compare(leaving(b), leaving(a)), cmp.Compare(a.Age, b.Age))
	})
	need := r.ReserveMiB + t.MarginMiB
	for len(stay) > 0 && (len(stay) >= t.MaxJobs || freeMiB < need || busy && len(jobs) == 0 ||
		slowsBeside(in, g, stay)) {
		ends(stay[0])
		stay = stay[1:]
	}
	return jobs, cost, ok
}
