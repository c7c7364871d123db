// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"errors"
	"testing"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// How many updates in a row a node makes that only raise its counts, and how many more
// after it has made none for a minute.
func TestMayRaise(t *testing.T) {
	const some, more, none = "gpu:8,carmau0:1024,carma2:2", "gpu:8,carmau0:2048,carma2:2", "gpu:8,carmau0:2,carma2:2"
	for _, c := range []struct {
		name       string
		nodes      int
		last, text string
		most, more int
	}{
		{"an open count on 1,000 nodes", 1000, some, more, 5, 3},
		{"a count of which there was nothing", 1000, none, some, 10, 3},
		{"one that the node did not have", 1000, "gpu:8", some, 10, 3},
		{"all GPUs of the node", 1000, some, "gpu:8,carmau0:1024,carma2:3", 10, 3},
		{"5,000 nodes", 5000, none, some, 10, 2},
		{"5,000 nodes, an open count", 5000, some, more, 5, 2},
		{"a small cluster", 8, some, more, 100, 100},
		{"a cluster whose size is not known", 0, some, more, 100, 100},
		{"a lower count", 5000, more, some, 100, 100},
		{"a lower count beside a higher", 5000, some, "gpu:8,carmau0:512,carma2:2048", 100, 100},
		{"a count that is gone", 5000, some, "gpu:8,carmau0:2048", 100, 100},
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
				if ok, err := p.mayRaise(ctx, c.last, c.text); err != nil {
					t.Fatal(err)
				} else if !ok {
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
