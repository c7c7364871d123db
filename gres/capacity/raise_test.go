// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"errors"
	"maps"
	"testing"
	"time"

	"carma/gres/lease"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobenv"
)

// How many updates in a row a node makes that raise its counts, and how many more after it has made
// none for a minute; what it tells when it has used its part.
func TestBounded(t *testing.T) {
	// Of anybody, of the user 7 and of all GPUs.
	of := func(any, own, all int64) map[string]int64 {
		counts := map[string]int64{extra.Key(1): any, extra.UserKey(1, "7"): own, extra.All: all}
		return without(counts)
	}
	some, none := of(1024, 0, 2), of(0, 512, 2)
	for _, c := range []struct {
		name         string
		nodes        int
		told, counts map[string]int64
		most, more   int
		then         map[string]int64
	}{
		{"an open count on 1,000 nodes", 1000, some, of(2048, 0, 2), 5, 3, some},
		{"a count of which there was nothing", 1000, none, of(1024, 0, 2), 10, 3, of(0, 512, 2)},
		{"all GPUs of the node", 1000, of(0, 512, 0), none, 10, 3, of(0, 512, 0)},
		{"a user's", 1000, none, of(0, 1024, 2), 5, 3, none},
		{"a user's who had as much as anybody", 1000, some, of(256, 1024, 2), 100, 100, nil},
		{"a user's who had nothing", 1000, of(0, 0, 2), none, 10, 3, of(0, 0, 2)},
		{"5,000 nodes", 5000, none, of(1024, 0, 2), 10, 2, none},
		{"5,000 nodes, an open count", 5000, some, of(2048, 0, 2), 5, 2, some},
		{"a lower count beside a higher", 1000, of(1024, 2048, 2), of(2048, 0, 0), 5, 3, of(1024, 2048, 0)},
		{"one that the node did not have", 1000, map[string]int64{}, of(1024, 0, 2), 10, 3, of(0, 0, 0)},
		{"a small cluster", 8, some, of(2048, 0, 2), 100, 100, nil},
		{"a cluster whose size is not known", 0, some, of(2048, 0, 2), 100, 100, nil},
		{"a lower count", 5000, some, of(512, 0, 2), 100, 100, nil},
		{"a user's that has gone", 5000, none, of(0, 0, 2), 100, 100, nil},
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
				counts, err := p.bounded(ctx, c.told, c.counts)
				if err != nil {
					t.Fatal(err)
				}
				if !maps.Equal(counts, c.counts) {
					if !maps.Equal(counts, c.then) {
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
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	ctx := t.Context()
	publishFirst(t, p)
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
