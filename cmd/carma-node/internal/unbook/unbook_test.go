// SPDX-License-Identifier: Apache-2.0

package unbook

import (
	"context"
	"errors"
	"slices"
	"testing"

	"carma/slurmbridge/sctl"
)

// queue is one whose jobs are named by their request.
type queue struct {
	jobs    []sctl.Booked
	refuses map[string]error
	takes   bool // what it refuses it does nevertheless, as of an array
	calls   int
}

func (q *queue) Booked(context.Context) ([]sctl.Booked, error) { return slices.Clone(q.jobs), nil }

func (q *queue) Unbook(_ context.Context, b sctl.Booked, _ sctl.Version) error {
	q.calls++
	err := q.refuses[b.Gres]
	if err == nil || q.takes {
		q.jobs = slices.DeleteFunc(q.jobs, func(j sctl.Booked) bool { return j.Gres == b.Gres })
	}
	return err
}

func TestAll(t *testing.T) {
	jobs := func(names ...string) (list []sctl.Booked) {
		for i, name := range names {
			list = append(list, sctl.Booked{Target: sctl.Job{ID: uint32(i + 1)}.Target(), Gres: name})
		}
		return list
	}
	refused := errors.New("Access/permission denied")
	for _, c := range []struct {
		name       string
		q          queue
		done, left int
		fails      bool
	}{
		{"none", queue{}, 0, 0, false},
		{"three", queue{jobs: jobs("a", "b", "c")}, 3, 0, false},
		{"one refused", queue{jobs: jobs("a", "b", "c"), refuses: map[string]error{"b": refused}}, 2, 1, false},
		{"a running task refuses", queue{jobs: jobs("a"), refuses: map[string]error{"a": refused}, takes: true}, 1, 0, false},
		{"no answer", queue{jobs: jobs("a"), refuses: map[string]error{"a": context.DeadlineExceeded}}, 0, 0, true},
	} {
		done, left, err := All(context.Background(), &c.q, sctl.Version{}, 1)
		if done != c.done || len(left) != c.left || (err != nil) != c.fails {
			t.Errorf("%s: %d done, left %v, %v", c.name, done, left, err)
		}
		if len(left) > 0 && !errors.Is(left[0].Err, refused) {
			t.Errorf("%s: %v", c.name, left)
		}
	}
	q := queue{jobs: jobs("a", "b")}
	if All(context.Background(), &q, sctl.Version{}, 1); q.calls != 2 {
		t.Errorf("%d calls", q.calls)
	}
	if All(context.Background(), &q, sctl.Version{}, 1); q.calls != 2 {
		t.Error("a second call changes jobs again")
	}
}
