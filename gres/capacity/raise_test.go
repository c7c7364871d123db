// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"errors"
	"slices"
	"testing"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// How many updates in a row a node makes that raise its counts, and how many more after it has made
// none for a minute; what it tells when it has used its part.
func TestBounded(t *testing.T) {
	const some, none = "gpu:8,carmau0:1024,carmau1:512", "gpu:8,carmau0:2,carmau1:512"
	for _, c := range []struct {
		name       string
		nodes      int
		last       string
		counts     []int64
		most, more int
		then       []int64
	}{
		{"an open count on 1,000 nodes", 1000, some, []int64{2048, 512}, 5, 3, []int64{1024, 512}},
		{"a count of which there was nothing", 1000, none, []int64{1024, 512}, 10, 3, []int64{2, 512}},
		{"all GPUs of the node", 1000, none, []int64{3, 512}, 10, 3, []int64{2, 512}},
		{"5,000 nodes", 5000, none, []int64{1024, 512}, 10, 2, []int64{2, 512}},
		{"5,000 nodes, an open count", 5000, some, []int64{2048, 512}, 5, 2, []int64{1024, 512}},
		{"a lower count beside a higher", 1000, some, []int64{2048, 2}, 5, 3, []int64{1024, 2}},
		{"one that the node did not have", 1000, "gpu:8", []int64{1024, 2}, 10, 3, []int64{0, 0}},
		{"a small cluster", 8, some, []int64{2048, 512}, 100, 100, nil},
		{"a cluster whose size is not known", 0, some, []int64{2048, 512}, 100, 100, nil},
		{"a lower count", 5000, some, []int64{512, 512}, 100, 100, nil},
		{"nothing, told as 2 MiB", 5000, none, []int64{0, 2}, 100, 100, nil},
	} {
		p := newPublisher(t, &fakeSlurm{})
		ctx := t.Context()
		if err := p.Book.SetNodes(ctx, c.nodes); err != nil {
			t.Fatal(err)
		}
		row := func() (n int) {
			for ; n < 100; n++ {
				if c.nodes == 8 { // a node updates once a second at most
					later(t, p, time.Second)
				}
				counts, err := p.bounded(ctx, c.last, c.counts)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(counts, c.counts) {
					if !slices.Equal(counts, c.then) {
						t.Errorf("%s: %v after %d, want %v", c.name, counts, n, c.then)
					}
					break
				}
			}
			return n
		}
		if n := row(); n != c.most {
			t.Errorf("%s: %d in a row, want %d", c.name, n, c.most)
		}
		later(t, p, time.Minute)
		if n := row(); n != c.more {
			t.Errorf("%s: %d a minute later, want %d", c.name, n, c.more)
		}
	}
}

// later lets time pass for the node's part of the updates.
func later(t *testing.T, p *Publisher, by time.Duration) {
	t.Helper()
	_, paid, err := p.Book.Raised(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Book.SetRaised(t.Context(), paid-by); err != nil {
		t.Fatal(err)
	}
}

// A node that has used its part tells at once that it has less, and later that it has more again.
func TestPublishRaise(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:8,carmau0:81072,carma2:81072"}
	p := newPublisher(t, s)
	ctx := t.Context()
	if err := p.Publish(ctx); err != nil {
		t.Fatal(err)
	}
	snapshot, err := p.Book.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.CompareIf(ctx, snapshot, time.Second, 5000); err != nil { // which notes the number of nodes
		t.Fatal(err)
	}
	if err := p.Book.SetRaised(ctx, lease.Now()+1000*time.Second); err != nil {
		t.Fatal(err)
	}
	grant(t, p.Book, 7, 10240)
	if err := p.Publish(ctx); err != nil || len(s.updates) != 2 {
		t.Fatalf("after a grant: %v, %d updates", err, len(s.updates))
	}
	time.Sleep(1100 * time.Millisecond) // minInterval
	if err := p.Book.Release(ctx, jobenv.JobKey{JobID: 7}); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(ctx); !errors.Is(err, ErrTooSoon) || len(s.updates) != 2 {
		t.Errorf("after the job's end: %v, %d updates", err, len(s.updates))
	}
	later(t, p, 1000*time.Second)
	if err := p.Publish(ctx); err != nil || len(s.updates) != 3 {
		t.Errorf("after 1000 s: %v, %d updates", err, len(s.updates))
	}
}
