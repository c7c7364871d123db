// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// However jobs come, go and are requeued, the queue is in the order in which they
// were submitted, those of the recovery partition first, and a block knows what
// its jobs need least.
func TestQueueOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	q := newQueue(2000, 4)
	waiter := func(task int32) waiter {
		return waiter{task: task, gpus: task&3 + 1, tested: true, need: rng.Int64N(1000)}
	}
	next, recovered := int32(0), []int32(nil)
	var started []int32
	for step := range 20000 {
		switch n := rng.IntN(10); {
		case n < 5:
			q.add(waiter(next), false)
			next++
		case n < 6 && len(started) > 0:
			i := rng.IntN(len(started))
			q.add(waiter(started[i]), false)
			started = slices.Delete(started, i, i+1)
		case n < 7 && step < 1000:
			q.add(waiter(-int32(step)-1), true)
			recovered = append(recovered, -int32(step)-1)
		default:
			b := q.front[1+rng.IntN(len(q.front)-1)]
			if len(b.list) == 0 {
				continue
			}
			i := rng.IntN(len(b.list))
			started = append(started, b.list[i].task)
			b.list = slices.Delete(b.list, i, i+1)
			q.size--
			q.fill()
			q.shrink()
		}
		if step%100 != 0 {
			continue
		}
		var tasks []int32
		for e := range q.looked {
			tasks = append(tasks, e.task)
		}
		if len(tasks) != q.size || !slices.Equal(tasks[:len(recovered)], recovered) {
			t.Fatalf("step %d: %d of %d jobs, %v", step, len(tasks), q.size, tasks[:len(recovered)])
		}
		for _, e := range q.rest[q.next:] {
			tasks = append(tasks, e.task)
		}
		if !slices.IsSorted(tasks[len(recovered):]) || len(tasks)-len(recovered)+len(started) != int(next) {
			t.Fatalf("step %d: %d jobs, %d started, of %d; %v", step, len(tasks), len(started), next, tasks)
		}
		for _, b := range q.front {
			for _, e := range b.list {
				if b.least[e.gpus-1] > e.need && !b.fresh {
					t.Fatalf("step %d: job %d needs less than %v", step, e.task, b.least)
				}
			}
		}
	}
	if len(q.front) < 4 || q.size < q.depth || q.next == len(q.rest) {
		t.Errorf("%d blocks, %d jobs in front: too few to show anything", len(q.front), q.size)
	}
}
