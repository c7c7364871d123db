// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"testing"
	"time"

	"carma/slurmbridge/extra"
)

// counting counts questions.
type counting struct {
	*fakeSlurm
	asked int
}

func (c *counting) Node(ctx context.Context, node string) (string, error) {
	c.asked++
	return c.fakeSlurm.Node(ctx, node)
}

// When a node of so many is asked about again, counted from the last answer.
func TestCompareIf(t *testing.T) {
	const pause = 30 * time.Second
	for _, c := range []struct {
		name  string
		nodes int
		busy  bool
		reset bool // somebody had overwritten the counts before
		held  bool // it had a hold
		told  bool // slurmctld was told something since
		lost  bool // a GPU is missing
		want  time.Duration
	}{
		{"a small cluster", 150, false, false, false, false, false, pause},
		{"one that offers everything", 4400, false, false, false, false, false, 880 * time.Second},
		{"one with a job", 4400, true, false, false, false, false, 220 * time.Second},
		{"after another's text", 4400, false, true, false, false, false, 220 * time.Second},
		{"a hold", 4400, false, false, true, false, false, 220 * time.Second},
		{"one that is free again", 4400, false, false, false, true, false, 220 * time.Second},
		{"one that lacks a GPU", 4400, false, false, false, false, true, 220 * time.Second},
	} {
		s := &counting{fakeSlurm: &fakeSlurm{}}
		p := newPublisher(t, s.fakeSlurm)
		p.Slurm = s
		ctx := t.Context()
		if c.busy {
			grant(t, p.Book, 7, 10240)
		}
		if c.lost {
			p.GPUs = []int{8}
		}
		publishFirst(t, p)
		if c.reset {
			s.extra = `{"rack":4}`
		}
		if c.held {
			var err error
			if s.extra, err = extra.SetWord(s.extra, extra.Hold, "9:2:40536:1795000000"); err != nil {
				t.Fatal(err)
			}
		}
		snapshot, err := p.Book.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		p.due = due{at: 1, asked: 1} // an agent that has run for long
		s.asked = 0
		if _, asked, err := p.CompareIf(ctx, snapshot, pause, c.nodes); err != nil || !asked || s.asked != 1 && !c.reset {
			t.Fatalf("%s: %v %v, %d questions", c.name, asked, err, s.asked)
		}
		if c.told {
			if err := p.tell(ctx, map[string]int64{extra.Key(1): 256}); err != nil {
				t.Fatal(err)
			}
		}
		for _, at := range []struct {
			later time.Duration
			asked bool
		}{{c.want * 7 / 8 * 9 / 10, false}, {c.want + time.Second, true}} {
			p.due.asked, p.due.at = p.due.asked-at.later, p.due.at-at.later
			_, asked, err := p.CompareIf(ctx, snapshot, pause, c.nodes)
			if err != nil || asked != at.asked {
				t.Errorf("%s, %s later: asked %v, %v", c.name, at.later, asked, err)
			}
			p.due.asked, p.due.at = p.due.asked+at.later, p.due.at+at.later
		}
	}
}

// Agents that start together do not ask together.
func TestCompareIfApart(t *testing.T) {
	s := &counting{fakeSlurm: &fakeSlurm{}}
	p := newPublisher(t, s.fakeSlurm)
	snapshot, err := p.Book.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var late, early int
	for range 2000 {
		p.Node = p.Node + "1"
		p.due = due{}
		if _, asked, err := p.CompareIf(t.Context(), snapshot, time.Second, 4400); asked || err != nil {
			early++
		} else if p.due.at-p.due.asked > 440*time.Second {
			late++
		}
		if len(p.Node) > 60 {
			p.Node = p.Node[:3] + "0"
		}
	}
	if early > 40 || late < 600 || late > 1400 {
		t.Errorf("of 2000 nodes %d ask at once and %d in the second half", early, late)
	}
}
