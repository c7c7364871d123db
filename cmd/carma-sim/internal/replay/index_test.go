// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestIndexAgreesWithAScan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, nodes := range []int{1, 2, 3, 7, 64, 100} {
		x := newIndex(nodes, 2)
		offer := [2][]int64{make([]int64, nodes), make([]int64, nodes)}
		for n := range nodes {
			x.set(n, 0, 0)
			x.set(n, 1, 0)
		}
		for range 2000 {
			n, k, mib := r.IntN(nodes), r.IntN(2), r.Int64N(100)
			offer[k][n] = mib
			x.set(n, k, mib)
			from, need := r.IntN(nodes+1), r.Int64N(110)
			want := -1
			if i := slices.IndexFunc(offer[k][min(from, nodes):], func(v int64) bool { return v >= need }); i >= 0 {
				want = from + i
			}
			if got := x.first(from, k, need); got != want {
				t.Fatalf("%d nodes, from %d, %d MiB: got %d, want %d of %v", nodes, from, need, got, want, offer[k])
			}
		}
	}
}

func TestAgendaIsInOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	a := newAgenda(50)
	at := make([]float64, 50)
	for i := range at {
		at[i] = math.Inf(1)
	}
	for range 5000 {
		e := r.IntN(50)
		at[e] = float64(r.IntN(1000))
		if r.IntN(3) == 0 {
			at[e] = math.Inf(1)
		}
		a.plan(int32(e), at[e])
		want := slices.Index(at, slices.Min(at))
		got, when := a.next()
		if math.IsInf(at[want], 1) {
			want = -1
		}
		if int(got) != want {
			t.Fatalf("next is %d at %g, want %d", got, when, want)
		}
	}
}

// The window's mean, and when it will have fallen, against sums of small steps.
func TestTrail(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	const window, dt = 60.0, 0.25
	trail := trail{length: window}
	var past []float64
	value := 0.0
	for i := range 4000 {
		now := float64(i) * dt
		if r.IntN(40) == 0 {
			value = float64(r.IntN(5)) / 4
		}
		trail.set(now, value)
		n := min(len(past), int(window/dt))
		if n == 0 {
			past = append(past, value)
			continue
		}
		var sum float64
		for _, v := range past[len(past)-n:] {
			sum += v
		}
		if got, want := trail.mean(now, window), sum/float64(n); math.Abs(got-want) > 1e-9 {
			t.Fatalf("at %g: mean %g, want %g", now, got, want)
		}
		if at := trail.falls(now, window, 0.5); value < 0.5 && trail.mean(now, window) > 0.5 {
			if before := trail.mean(at-1e-3, window); math.Abs(trail.mean(at, window)-0.5) > 1e-9 || before <= 0.5 {
				t.Fatalf("at %g: falls at %g, where the mean is %g", now, at, trail.mean(at, window))
			}
		}
		past = append(past, value)
	}
}
