// SPDX-License-Identifier: Apache-2.0

package history

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

const full = 40536

// offBy is a job of a user that was estimated at 5000 MiB and took so much more.
func offBy(uid uint32, submit, mib int64) Run {
	return Run{UID: uid, Submit: submit, EstMiB: 5000, PeakMiB: 5000 + mib, Completed: true, Analytic: true, FullMiB: full}
}

// written is a snapshot with what a learner knows of errors.
func written(t *testing.T, l *Learner, before Snapshot, now int64) Snapshot {
	t.Helper()
	s, err := Parse(Make(nil, nil, l.Shifts(before, now)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s Snapshot) wants(t *testing.T, what string, want map[uint32]int64) {
	t.Helper()
	for uid, mib := range want {
		if got := s.For(uid).ShiftMiB(full); got != mib {
			t.Errorf("%s: user %d is shifted by %d MiB, want %d", what, uid, got, mib)
		}
	}
}

func TestShifts(t *testing.T) {
	l := NewLearner()
	for i := range int64(4) {
		l.Add(offBy(1, i, 300))
	}
	written(t, l, Snapshot{}, 100).wants(t, "four jobs", map[uint32]int64{1: 0, 2: 0})
	l.Add(offBy(1, 9, -4000)) // one that is far off moves nothing
	first := written(t, l, Snapshot{}, 100)
	first.wants(t, "five jobs", map[uint32]int64{1: 300, 2: 0})
	written(t, l, first, 200).wants(t, "without new jobs", map[uint32]int64{1: 300, 2: 0})
	for i := range int64(5) {
		l.Add(offBy(1, 100+i, -20))
	}
	written(t, l, first, 200).wants(t, "after new jobs", map[uint32]int64{1: 280, 2: 0})
	for i := range int64(5) {
		l.Add(offBy(1, 300+i, -3000))
	}
	written(t, l, first, 400).wants(t, "a lesser base", map[uint32]int64{1: 280, 2: 0}) // the middle of ten
	for i := range int64(9) {
		l.Add(offBy(1, 300+i, -3000))
	}
	written(t, l, first, 400).wants(t, "no further than", map[uint32]int64{1: -furthest, 2: 0})
}

// From three users on, what users' own runs say raises the estimates of others, by the least
// of the middles with one user left out.
func TestShiftsOfOthers(t *testing.T) {
	for _, c := range []struct {
		name string
		own  []int64
		want int64
	}{
		{"two users", []int64{300, 300}, 0},
		{"three users", []int64{300, 320, 310}, 300},
		{"four users", []int64{300, 340, 320, 310}, 310},
		{"six users", []int64{100, 200, 300, 400, 500, 600}, 300},
		{"never below", []int64{-300, -300, -300, -300}, 0},
		{"no further than", []int64{900, 900, 900}, furthestOfOthers},
	} {
		l := NewLearner()
		want := map[uint32]int64{9999: c.want}
		for i, mib := range c.own {
			for k := range int64(fewest) {
				l.Add(offBy(uint32(i), k, mib))
			}
			want[uint32(i)] = mib
		}
		written(t, l, Snapshot{}, 100).wants(t, c.name, want)
	}
}

// Eight jobs that took 20 MiB where 2334 were estimated lowered everybody's estimates by 1 GiB.
func TestNobodyMovesOthers(t *testing.T) {
	const attacker, victim, newcomer = 1001, 1002, 1003
	l := NewLearner()
	for i := range int64(8) {
		r := offBy(attacker, i, 0)
		r.EstMiB, r.PeakMiB = 2334, 20
		l.Add(r)
	}
	alone := written(t, l, Snapshot{}, 100)
	alone.wants(t, "a user alone", map[uint32]int64{victim: 0, newcomer: 0, attacker: -furthest})

	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var honest []int64
		for range 2 + rng.IntN(6) {
			honest = append(honest, rng.Int64N(800)-200)
		}
		slices.Sort(honest)
		most := min(max(honest[(len(honest)-1)/2], 0), furthestOfOthers)
		for _, lie := range []int64{-4000, -200, 0, 150, 600, 30000} {
			l := NewLearner()
			for i, mib := range append(honest[:len(honest):len(honest)], lie) {
				for k := range int64(fewest) {
					l.Add(offBy(uint32(i), k, mib))
				}
			}
			s := written(t, l, Snapshot{}, 100)
			if got := s.For(newcomer).ShiftMiB(full); got < 0 || got > most {
				t.Fatalf("%v and %d: others are shifted by %d MiB", honest, lie, got)
			}
			for i, mib := range honest {
				if got := s.For(uint32(i)).ShiftMiB(full); got != mib {
					t.Fatalf("%v and %d: user %d is shifted by %d MiB", honest, lie, i, got)
				}
			}
		}
	}
}

// The jobs of a user are judged by the base by which they were estimated, whatever others'
// runs make of it meanwhile.
func TestShiftsAreKept(t *testing.T) {
	l := NewLearner()
	l.Add(offBy(7, 1, 300))
	s := written(t, l, Snapshot{}, 100)
	for uid := range uint32(3) {
		for k := range int64(fewest) {
			l.Add(offBy(uid, 110+k, 200))
		}
	}
	s = written(t, l, s, 200)
	s.wants(t, "others", map[uint32]int64{0: 200, 7: 0, 8: 200})
	for k := range int64(4) {
		l.Add(offBy(7, 210+k, 300))
	}
	l.Add(offBy(8, 210, 100))
	s = written(t, l, s, 300)
	s.wants(t, "five jobs of one base", map[uint32]int64{7: 300, 8: 200})
	for k := range int64(4) {
		l.Add(offBy(8, 310+k, 100))
	}
	written(t, l, s, 400).wants(t, "on top of others'", map[uint32]int64{7: 300, 8: 300})
}

// A file of a version that let others lower the base lowers nobody's, and is built on.
func TestShiftOfBefore(t *testing.T) {
	old, err := Parse(Make(nil, nil, []Shift{{FullMiB: full, MiB: -1024, Jobs: 8, Since: 50}}))
	if err != nil {
		t.Fatal(err)
	}
	old.wants(t, "as it was", map[uint32]int64{1: 0, 2: 0})
	l := NewLearner()
	for k := range int64(fewest) {
		l.Add(offBy(1, 60+k, 1100)) // estimated by what was lowered
	}
	l.Add(offBy(2, 60, 1100))
	s := written(t, l, old, 100)
	s.wants(t, "built on", map[uint32]int64{1: 76, 2: 0, 3: 0})
	for k := range int64(fewest) {
		l.Add(offBy(2, 110+k, 90))
	}
	written(t, l, s, 200).wants(t, "anew", map[uint32]int64{1: 76, 2: 90, 3: 0})
}

// However many users and jobs there are, a snapshot takes them, those who have taught first.
func TestShiftsAreBounded(t *testing.T) {
	l := NewLearner()
	for uid := range uint32(2 * maxOwnShifts) {
		jobs := 1
		if uid%4096 == 5 {
			jobs = 30 * maxResiduals
		}
		for k := range jobs {
			l.Add(offBy(uid, int64(k), 30))
		}
	}
	text := Make(nil, nil, l.Shifts(Snapshot{}, 100))
	if n := binary.LittleEndian.Uint32(text[12:]); n > maxShifts || n < maxOwnShifts {
		t.Errorf("%d shifts", n)
	}
	if n := len(l.errors[whose{full, 5}]); n > 2*maxResiduals {
		t.Errorf("%d errors of one user are kept", n)
	}
	s, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s.wants(t, "who has taught", map[uint32]int64{5: 30, 4096 + 5: 30, 6: 0})
}
