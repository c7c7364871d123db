// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"cmp"
	"math"
	"slices"
	"time"

	"carma/gres"
	"carma/slurmbridge/policy"
)

// StepMiB is the grain of published memory (package capacity). Memory in use changes all
// the time; an update of the node table for a few MiB would serve nobody.
const StepMiB = 256

// Soonest returns the GPUs likely to meet the request's needs first; nil: there are
// too few. How long jobs still run is not known, so Soonest counts the jobs that have
// to end before, and of GPUs with as many prefers those whose jobs have run longest.
// Jobs of the request's user may stay while they leave the memory and keep no gate
// shut; for a request on several GPUs only jobs of a daemon that serves all the GPUs,
// or no jobs. GPUs closed to everybody are left out.
func Soonest(p Policy, readings []gres.Reading, leases []gres.Lease, r gres.Request, t Thresholds) []string {
	var best []evictionCost
	for _, d := range daemonsFor(leases, r) {
		var all []evictionCost
		for i := range readings {
			g := &readings[i]
			closed := g.Unreadable != "" || g.Quarantined != "" || g.HeldFor != 0 || g.MIG || g.TotalMiB < r.ReserveMiB &&
				!g.Whole(r.ReserveMiB)
			if !closed && (d == "" || d.Serves(g.UUID)) {
				all = append(all, departures(p, g, leases, r, d, &t))
			}
		}
		if len(all) < r.GPUs {
			continue
		}
		slices.SortStableFunc(all, evictionCost.compare)
		if all = all[:r.GPUs]; best == nil || sum(all).compare(sum(best)) < 0 {
			best = all
		}
	}
	var uuids []string
	for i := range best {
		uuids = append(uuids, best[i].uuid)
	}
	return uuids
}

// daemonsFor returns the daemons that a request on several GPUs may join, and none
// for a new daemon.
func daemonsFor(leases []gres.Lease, r gres.Request) []gres.Daemon {
	daemons := []gres.Daemon{""}
	for i := range leases {
		if l := &leases[i]; r.GPUs > 1 && l.UID == r.UID && l.Daemon.Many() && !slices.Contains(daemons, l.Daemon) {
			daemons = append(daemons, l.Daemon)
		}
	}
	return daemons
}

// evictionCost is what has to happen on a GPU before it takes a request.
type evictionCost struct {
	uuid string
	jobs int           // jobs that have to end
	age  time.Duration // of the youngest of them
}

func (a evictionCost) compare(b evictionCost) int {
	return cmp.Or(cmp.Compare(a.jobs, b.jobs), cmp.Compare(b.age, a.age))
}

func sum(list []evictionCost) evictionCost {
	s := evictionCost{age: math.MaxInt64}
	for _, d := range list {
		s.jobs += d.jobs
		s.age = min(s.age, d.age)
	}
	return s
}

// departures takes the jobs off the GPU that may stay, the oldest first, until there
// is room for the request.
func departures(p Policy, g *gres.Reading, leases []gres.Lease, r gres.Request, daemon gres.Daemon,
	t *Thresholds) evictionCost {
	d := evictionCost{uuid: g.UUID, jobs: g.Foreign, age: math.MaxInt64}
	var buf [1]state
	in := Input{Readings: []gres.Reading{*g}, Leases: leases, Request: r, Thresholds: *t}
	s := &statesOf(buf[:], &in)[0]
	alone := r.Exclusive || p == policy.Exclusive
	busy := s.busy(t).code != 0 || g.MPSClients >= maxClients // until a job has gone, at least
	others := t.CrossUser && p != policy.Carma
	freeMiB := s.freeMiB()
	var stay []*gres.Lease
	ends := func(l *gres.Lease) {
		d.jobs++
		d.age = min(d.age, l.Age)
		freeMiB += l.ReserveMiB
	}
	for i := range leases {
		l := &leases[i]
		switch {
		case l.UUID != g.UUID:
		case alone || l.Exclusive || l.UID != r.UID && !others || r.GPUs > 1 && (daemon == "" || l.Daemon != daemon):
			ends(l)
		default:
			stay = append(stay, l)
		}
	}
	slices.SortStableFunc(stay, func(a, b *gres.Lease) int { return cmp.Compare(b.Age, a.Age) })
	need := r.ReserveMiB + t.MarginMiB + StepMiB
	for len(stay) > 0 && (len(stay) >= t.MaxJobs || freeMiB < need || busy && d.jobs == 0) {
		ends(stay[0])
		stay = stay[1:]
	}
	return d
}
