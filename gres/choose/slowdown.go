// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"math"

	"carma/gres"
	"carma/gres/interference"
)

// A bound on slowdown is kept by the law of package interference (docs/adr/0019). The law
// needs the activity that each job has when alone: the greater of the figure from its user
// or earlier runs and the figure measured while the job was alone on its GPU. A job of
// which nothing is known counts as one that keeps all SMs active. The activity of the GPU
// now corrects these figures upwards.

// BoundOf returns the bound on the slowdown of a job: the lower of the site's and its
// user's; 0: none.
func BoundOf(site, own float64) float64 {
	if site > 0 && own > 0 {
		return min(site, own)
	}
	return max(site, own)
}

// activity returns the SM activity of a job when alone as the law takes it, 0 to 1, and
// whether the activity is known.
func activity(expectedPct, alonePct float64) (share float64, known bool) {
	pct := max(expectedPct, alonePct)
	if !(pct > 0) {
		return 1, false
	}
	return min(pct/100, 1), true
}

// leastDemand is the demand of a newcomer that uses the GPU little: where such a job does not
// fit, slurmctld is told that no job fits. Jobs with less demand wait for another GPU; with a
// lower value, more jobs are returned to the queue (docs/bench/slowdown.md).
const leastDemand = 0.35

// Slowdown is what the law says of a lease.
type Slowdown struct {
	Lease *gres.Lease // nil: a newcomer
	Times float64     // as long as alone its work takes
}

// Slowdowns appends to list what the law says of the leases on a GPU.
func Slowdowns(list []Slowdown, r *gres.Reading, leases []gres.Lease) []Slowdown {
	var buf [maxShared]interference.Client
	return slowdowns(list, buf[:0], r, leases, nil)
}

// newcomer is a job not on the GPU yet.
type newcomer struct {
	demand float64
	joins  gres.Daemon // none: the job takes turns with the jobs there
}

// maxShared is for how many jobs on a GPU a look needs no memory of the heap: the
// clients of an MPS server, and a newcomer.
const maxShared = 49

// slowdowns is the same beside a newcomer, which comes last; c is scratch.
func slowdowns(list []Slowdown, c []interference.Client, r *gres.Reading, leases []gres.Lease,
	n *newcomer) []Slowdown {
	first, server := len(list), int32(0)
	for i := range leases { // those of a daemon together, and last the daemon that the newcomer joins
		d := leases[i].Daemon
		switch {
		case leases[i].UUID != r.UUID || n != nil && d != "" && d == n.joins:
		case d == "":
			list, c = append(list, Slowdown{Lease: &leases[i]}), append(c, clientOf(&leases[i], 0))
		case !listed(list[first:], d):
			server++
			list, c = members(list, c, r, leases[i:], d, server)
		}
	}
	server++
	if n != nil && n.joins != "" {
		list, c = members(list, c, r, leases, n.joins, server)
	}
	correct(c, r)
	if n != nil {
		if n.joins == "" {
			server = 0
		}
		list, c = append(list, Slowdown{}), append(c, interference.Client{Demand: n.demand, Server: server})
	}
	interference.ShareEqual(c)
	for i := range c {
		list[first+i].Times = 1 / c[i].Rate
	}
	return list
}

// members appends the leases of a daemon on a GPU.
func members(list []Slowdown, c []interference.Client, r *gres.Reading, leases []gres.Lease, d gres.Daemon,
	server int32) ([]Slowdown, []interference.Client) {
	for i := range leases {
		if l := &leases[i]; l.UUID == r.UUID && l.Daemon == d {
			list, c = append(list, Slowdown{Lease: l}), append(c, clientOf(l, server))
		}
	}
	return list, c
}

func clientOf(l *gres.Lease, server int32) interference.Client {
	u, _ := activity(l.SMActPct, l.AlonePct)
	return interference.Client{Demand: u, DRAM: min(l.AloneDRAMPct/100, 1), Server: server}
}

func listed(list []Slowdown, d gres.Daemon) bool {
	for i := range list {
		if list[i].Lease.Daemon == d {
			return true
		}
	}
	return false
}

// correct raises the activity that the jobs of a GPU have when alone until the law gives the
// activity measured on the GPU. A lower measured activity says nothing: a job may be reading
// its data, or be slowed by more than the law knows.
func correct(c []interference.Client, r *gres.Reading) {
	measured := min(r.SMActPct/100, 1)
	if !(measured > 0) || r.Source.Coarse() {
		return
	}
	util := interference.ShareEqual(c)
	if !(measured > util) || util == 0 {
		return
	}
	power := math.Log1p(-measured) / math.Log1p(-util)
	for i := range c {
		c[i].Demand = 1 - math.Pow(1-c[i].Demand, power)
	}
}

// joins is the daemon through which a newcomer shares the GPU; none: the newcomer takes turns.
func (s *state) joins(in *Input) gres.Daemon {
	if in.Thresholds.Streams || s.taken {
		return ""
	}
	return s.daemon
}

// slows returns whom a newcomer with the activity demand would slow beyond a bound.
func (s *state) slows(in *Input, n newcomer, known bool) Reason {
	site, own := in.Thresholds.MaxSlowdown, in.Request.MaxSlowdown
	if site == 0 && own == 0 && !s.bounded {
		return Reason{}
	}
	var list [maxShared]Slowdown
	var buf [maxShared]interference.Client
	for _, x := range slowdowns(list[:0], buf[:0], s.r, in.Leases, &n) {
		bound, job := BoundOf(site, own), uint32(0)
		if x.Lease != nil {
			bound, job = BoundOf(site, x.Lease.MaxSlowdown), x.Lease.Job.JobID
		}
		if bound > 0 && x.Times > bound {
			return Reason{code: slowed, job: job, known: known, a: x.Times, b: bound}
		}
	}
	return Reason{}
}

// slowsBeside tells whether the request would slow somebody beyond a bound beside the jobs
// staying on a GPU. The activity of the staying jobs is not known apart from the leaving
// jobs' activity.
func slowsBeside(in *Input, r *gres.Reading, stay []*gres.Lease) bool {
	one, reading := *in, *r
	reading.SMActPct = math.NaN()
	one.Readings, one.Leases = []gres.Reading{reading}, nil
	for _, l := range stay {
		one.Leases = append(one.Leases, *l)
	}
	var buf [1]state
	s := &statesOf(buf[:], &one)[0]
	demand, known := activity(in.Request.SMActPct, 0)
	return s.slows(&one, newcomer{demand, s.joins(&one)}, known).code != 0
}
