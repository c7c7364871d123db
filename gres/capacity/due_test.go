// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"testing"
	"time"
)

// counting counts questions.
type counting struct {
	*fakeSlurm
	asked   int
	comment string
}

func (c *counting) Node(context.Context, string) (gres, comment string, err error) {
	c.asked++
	return c.gres, c.comment, c.err
}

// When a node of so many is asked about again, counted from the last answer.
func TestCompareIf(t *testing.T) {
	const pause = 30 * time.Second
	for _, c := range []struct {
		name  string
		nodes int
		busy  bool
		reset bool // the answer before was of a slurmctld that was reconfigured
		held  bool // it had a hold
		told  bool // slurmctld was told something since
		lost  bool // a GPU is missing
		want  time.Duration
	}{
		{"a small cluster", 150, false, false, false, false, false, pause},
		{"one that offers everything", 4400, false, false, false, false, false, 880 * time.Second},
		{"one with a job", 4400, true, false, false, false, false, 220 * time.Second},
		{"after a reconfigure", 4400, false, true, false, false, false, 220 * time.Second},
		{"a hold", 4400, false, false, true, false, false, 220 * time.Second},
		{"one that is free again", 4400, false, false, false, true, false, 220 * time.Second},
		{"one that lacks a GPU", 4400, false, false, false, false, true, 220 * time.Second},
	} {
		s := &counting{fakeSlurm: &fakeSlurm{gres: "gpu:8"}}
		p := newPublisher(t, s.fakeSlurm)
		p.Slurm = s
		ctx := t.Context()
		if c.busy {
			grant(t, p.Book, 7, 10240)
		}
		if c.lost {
			p.GPUs = []int{8}
		}
		if err := p.Publish(ctx); err != nil {
			t.Fatal(err)
		}
		if c.reset {
			s.gres = "gpu:8,carmau0:81072,carma2:81072"
		}
		if c.held {
			s.comment = "carma-hold=9:1000:2:40536:1795000000"
		}
		snapshot, err := p.Book.Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		p.due = due{at: 1, asked: 1} // an agent that has run for long
		s.asked = 0
		if _, asked, err := p.CompareIf(ctx, snapshot, pause, c.nodes); err != nil || !asked || s.asked != 1 {
			t.Fatalf("%s: %v %v, %d questions", c.name, asked, err, s.asked)
		}
		if _, nodes, ok, err := p.Book.Miscounted(ctx); ok != c.reset || ok && nodes != c.nodes || err != nil {
			t.Errorf("%s: noted that slurmctld had lost the counts: %v of %d nodes, %v", c.name, ok, nodes, err)
		}
		if c.told {
			if err := p.tell(ctx, p.due.told+",x:1"); err != nil {
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
	s := &counting{fakeSlurm: &fakeSlurm{gres: "gpu:8"}}
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
