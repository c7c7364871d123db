// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"carma/gres"
	"carma/slurmbridge/policy"
)

// pick returns the best fitting GPU not chosen yet: near to the chosen GPUs, then
// without other users, then by policy, then in order.
func pick(p Policy, states []state, after int, chosen near) int {
	best := -1
	for n := range states {
		i := n
		if p == policy.RoundRobin {
			i = (after + 1 + n) % len(states)
		}
		if states[i].fits && (best < 0 || better(p, &states[i], &states[best], chosen)) {
			best = i
		}
	}
	return best
}

// fills tells whether the policy takes GPUs in use before idle GPUs, and likewise GPUs with a daemon of
// several.
func fills(p Policy) bool { return p == policy.MUG || p == policy.BestFit }

// better tells whether a comes before b, which stands before it in order.
func better(p Policy, a, b *state, chosen near) bool {
	if x, y := chosen.to(a), chosen.to(b); x != y {
		return x > y
	}
	if a.otherUsers != b.otherUsers {
		return !a.otherUsers
	}
	switch p {
	case policy.MAGM:
		return a.freeMiB() > b.freeMiB()
	case policy.BestFit:
		return a.freeMiB() < b.freeMiB()
	case policy.LUG, policy.Carma:
		return a.load() < b.load()
	case policy.MUG:
		return a.load() > b.load() || a.load() == b.load() && a.jobs > b.jobs
	}
	return false // Exclusive, FirstFit, RoundRobin: the order itself
}

// near holds the position of the GPUs chosen already: the links of a job on
// several GPUs carry its gradients.
type near struct {
	gpus []gres.GPU
	numa int
}

func chosenOf(states []state, uuids []string) near {
	c := near{numa: -1}
	for _, uuid := range uuids {
		for i := range states {
			if r := states[i].r; r.UUID == uuid {
				c.gpus = append(c.gpus, r.GPU)
				c.numa = r.NUMA
			}
		}
	}
	return c
}

// to counts NVLinks to the chosen GPUs, and, with less weight, a common NUMA node. A link
// counts for both ends, though NVML may report one end only: the other GPU was not open yet,
// or did not answer.
func (c near) to(s *state) int {
	n := 0
	for _, g := range c.gpus {
		if (s.r.NVLink>>uint(g.Index)|g.NVLink>>uint(s.r.Index))&1 != 0 {
			n += 2
		}
	}
	if s.r.NUMA >= 0 && s.r.NUMA == c.numa {
		n++
	}
	return n
}

func lastIndex(states []state, uuid string) int {
	for i := range states {
		if uuid != "" && states[i].r.UUID == uuid {
			return i
		}
	}
	return len(states) - 1
}
