// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"slices"
	"strings"

	"carma/gres"
	"carma/slurmbridge/policy"
)

// A process is the client of a single MPS daemon, so a job on several GPUs shares
// them through MPS only if the same daemon serves them all (docs/adr/0007). Such
// a daemon comes up with the first job on GPUs that have no daemon in use; later
// jobs of its user whose GPUs are all among its GPUs join the daemon.

// company is a set of GPUs that a job on several can be given together.
type company struct {
	daemon gres.Daemon // in use on some of them; none: a new one
	users  bool        // jobs of other users are there: all jobs take turns
}

// has tells whether the GPU is of the company.
func (c company) has(s *state) bool {
	switch {
	case c.users:
		return s.daemon == "" || s.taken
	case s.daemon == "":
		return c.daemon == "" || c.daemon.Serves(s.r.UUID)
	}
	return s.daemon == c.daemon && !s.taken
}

// companies calls f with each company of GPUs, in the order of the policy, until f
// returns false.
func companies(p Policy, states []state, f func(company) bool) {
	if !fills(p) && !f(company{}) {
		return
	}
	for i := range states {
		d := states[i].daemon
		first := func(s state) bool { return s.daemon == d }
		if d.Many() && !states[i].taken && slices.IndexFunc(states, first) == i && !f(company{daemon: d}) {
			return
		}
	}
	if fills(p) && !f(company{}) {
		return
	}
	if p != policy.Carma {
		f(company{users: true})
	}
}

// shareable leaves, of the GPUs that fit, only those of the first company that
// has k of them; false: none has.
func shareable(p Policy, states []state, k int) (found bool) {
	companies(p, states, func(c company) bool {
		n := 0
		for i := range states {
			if states[i].fits && c.has(&states[i]) {
				n++
			}
		}
		if found = n >= k; found {
			for i := range states {
				states[i].fits = states[i].fits && c.has(&states[i])
			}
		}
		return !found
	})
	return found
}

// daemonOf returns the daemon through which the request shares its chosen GPUs: a
// daemon of its user that serves them all already, else a new daemon for just
// them; none if the job is alone, if the GPUs are MIG instances, and where another
// user's daemon is in use: its server would let the job wait.
func daemonOf(states []state, in *Input, chosen []string) gres.Daemon {
	if in.Request.Exclusive || in.Thresholds.Streams {
		return ""
	}
	var d gres.Daemon
	for i := range states {
		s := &states[i]
		if !slices.Contains(chosen, s.r.UUID) {
			continue
		}
		if s.taken || s.r.MIG {
			return ""
		}
		if s.daemon != "" {
			d = s.daemon
		}
	}
	if d == "" {
		d = inUse(in, chosen)
	}
	if d == "" && in.Thresholds.NodeDaemon {
		d = newDaemon(states, nil)
		if slices.ContainsFunc(in.Leases, func(l gres.Lease) bool { return l.Daemon == d && l.UID != in.Request.UID }) {
			d = ""
		}
	}
	if d == "" {
		d = newDaemon(states, chosen)
	}
	return d
}

// inUse returns a daemon of the user that serves the GPUs, on which nobody else
// is, and others beside them, so that a later job on several can join.
func inUse(in *Input, chosen []string) gres.Daemon {
	for i := range in.Leases {
		l := &in.Leases[i]
		if l.UID == in.Request.UID && l.Daemon.Many() && !slices.ContainsFunc(chosen,
			func(uuid string) bool { return !l.Daemon.Serves(uuid) }) {
			return l.Daemon
		}
	}
	return ""
}

// newDaemon names the daemon of the GPUs, in the order of the devices; of all of
// them if chosen is nil.
func newDaemon(states []state, chosen []string) gres.Daemon {
	if len(chosen) == 1 {
		return gres.Daemon(chosen[0])
	}
	var b strings.Builder
	for i := range states {
		if uuid := states[i].r.UUID; chosen == nil && !states[i].r.MIG || slices.Contains(chosen, uuid) {
			if b.Len() > 0 {
				b.WriteByte(',')
			}
			b.WriteString(uuid)
		}
	}
	return gres.Daemon(b.String())
}

// ShareableSets returns, as indices into readings, the sets of GPUs that a job of
// some user on several GPUs can be given together.
func ShareableSets(p Policy, readings []gres.Reading, leases []gres.Lease, t Thresholds) [][]int {
	var buf [maxGPUs]state
	in := Input{Readings: readings, Leases: leases, Thresholds: t}
	states := statesOf(buf[:], &in)
	for i := range states {
		states[i].taken = false // whoever asks may be the user of the daemon
	}
	all := make([]int, len(states))
	for i := range all {
		all[i] = i
	}
	if t.Streams || t.CrossUser && p != policy.Carma {
		return [][]int{all} // a user without jobs here takes turns with anybody
	}
	var lists [][]int
	companies(p, states, func(c company) bool {
		if !c.users {
			lists = append(lists, slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !c.has(&states[i]) }))
		}
		return true
	})
	return lists
}
