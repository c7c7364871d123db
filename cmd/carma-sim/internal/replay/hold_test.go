// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math/rand/v2"
	"testing"
)

// holder looks at whom GPUs are kept for.
type holder struct {
	*slurm
	t         *testing.T
	one, both int // looks at which a user had a hold of the steward's, or one of either kind
}

func (h *holder) happened(what happening, id int32) {
	h.slurm.happened(what, id)
	stewards, requeued := map[uint32]int{}, map[uint32]int{}
	type place struct {
		node int32
		user uint32
	}
	jobs, gpus := map[place]int{}, map[place]int{}
	for task, hold := range h.holds {
		user := h.m.tasks[task].user
		if hold.steward {
			stewards[user]++
		} else {
			requeued[user]++
		}
		jobs[place{hold.node, user}]++
		gpus[place{hold.node, user}] += len(hold.gpus)
	}
	for user, n := range stewards {
		if h.one++; n > 1 {
			h.t.Fatalf("the steward has GPUs kept for %d jobs of user %d", n, user)
		}
	}
	for user, n := range requeued {
		if stewards[user] > 0 {
			h.both++
		}
		if n > 1 {
			h.t.Fatalf("GPUs are kept for %d requeued jobs of user %d", n, user)
		}
	}
	for p, n := range jobs {
		if n > 1 && 2*gpus[p] > h.set.GPUs {
			h.t.Fatalf("%d of %d GPUs of node %d are kept for user %d", gpus[p], h.set.GPUs, p.node, p.user)
		}
	}
}

// However many jobs of a user wait, GPUs are kept for one at a time at the steward's word and for one that is requeued,
// and on a node for both on half of its GPUs.
func TestHoldsOfOneUser(t *testing.T) {
	one, both := 0, 0
	for seed := range uint64(40) {
		s := Default()
		s.Seed, s.Nodes, s.GPUs, s.HoldAfterS, s.Recovery, s.Estimator = seed, 3, 4, 10, RecoverExclusive, Horus
		w := random(rand.New(rand.NewPCG(8, seed)), 60, 4)
		for i := range w.Trace {
			w.Trace[i].ArrivalS /= 20
		}
		m := newMachine(&s, w)
		h := &holder{slurm: newSlurm(m, w), t: t}
		m.sched = h
		if err := m.play(); err != nil {
			t.Fatal(err)
		}
		one, both = one+h.one, both+h.both
	}
	if one == 0 || both == 0 {
		t.Errorf("a hold of the steward's seen %d times, one of either kind %d times", one, both)
	}
}
