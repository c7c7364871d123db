// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// cluster stands for slurmctld.
type cluster struct {
	rules schedule.Preemption
	queue []schedule.Job
	nodes []schedule.Node
	err   error
	calls []string

	comment  string            // of the anchor
	comments map[string]string // of nodes
	slow     time.Duration     // each update
}

func (c *cluster) Queue(context.Context, []string) ([]schedule.Job, error) {
	c.calls = append(c.calls, "queue")
	return c.queue, c.err
}

func (c *cluster) Nodes(context.Context, []string) ([]schedule.Node, error) {
	c.calls = append(c.calls, "nodes")
	return c.nodes, c.err
}

func (c *cluster) NodeNames(context.Context, []string) (names []string, err error) {
	for _, n := range c.nodes {
		names = append(names, n.Name)
	}
	return names, nil
}

func (c *cluster) SetNodeComment(_ context.Context, node, comment string) error {
	if node == jobstate.Anchor {
		c.comment = comment
		return c.err
	}
	if c.comments == nil {
		c.comments = map[string]string{}
	}
	c.comments[node] = comment
	h, _ := steward.ParseComment(comment)
	c.calls = append(c.calls, fmt.Sprintf("%s keeps %d for %d", node, h.GPUs, h.JobID))
	return c.err
}

func (c *cluster) Update(_ context.Context, t sctl.Target, change sctl.Change) error {
	time.Sleep(c.slow)
	c.calls = append(c.calls, "update "+t.String()+" "+change.TresPerNode)
	return c.err
}

func (c *cluster) Split(_ context.Context, j schedule.Job) (uint32, error) {
	c.calls = append(c.calls, fmt.Sprint("split ", j.ArrayTask))
	return j.ID + 1, c.err
}

func (c *cluster) Preemption(context.Context) (schedule.Preemption, error) { return c.rules, c.err }

func TestKeepSteward(t *testing.T) {
	old := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Resources",
		Eligible: time.Now().Add(-3 * time.Hour), TresPerNode: "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"}
	nodes := []schedule.Node{{Name: jobstate.Anchor, GPUs: 4}, {Name: "n1", Partitions: []string{"gpu"}, Up: true,
		Lives: true, GPUs: 4}, {Name: "n2", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4}}
	task, named := old, old
	task.ArrayJobID, task.ArrayTask = 7, 3
	named.ReqNodes = "n2"
	changed := func(j sctl.Job, tres string) *jobs {
		return &jobs{known: map[uint32]sctl.Job{7: j}, words: sctl.Words{TresPerNode: tres}}
	}
	down := slices.Clone(nodes)
	down[1].Up, down[1].Lives = false, false
	for _, c := range []struct {
		name, node string
		cluster    cluster
		want       []string
		jobs       *jobs // as they are when asked about alone; nil: as in the queue
	}{
		{"the first node", "n1", cluster{queue: []schedule.Job{old}, nodes: nodes},
			[]string{"nodes", "queue", "n1 keeps 2 for 7"}, nil},
		{"a task of an array", "n1", cluster{queue: []schedule.Job{task}, nodes: nodes},
			[]string{"nodes", "queue", "split 3", "n1 keeps 2 for 8"}, nil},
		{"names its node", "n1", cluster{queue: []schedule.Job{named}, nodes: nodes},
			[]string{"nodes", "queue", "n2 keeps 2 for 7", "update 7 gres:gpu:2,gres:carma2:1,gres:carmatotal:81072"}, nil},
		{"another user's by now", "n1", cluster{queue: []schedule.Job{named}, nodes: nodes},
			[]string{"nodes", "queue", "n2 keeps 2 for 7"}, changed(sctl.Job{ID: 7, UID: 1, State: "PENDING"}, old.TresPerNode)},
		{"another task by now", "n1", cluster{queue: []schedule.Job{named}, nodes: nodes},
			[]string{"nodes", "queue", "n2 keeps 2 for 7"}, changed(sctl.Job{ID: 7, State: "PENDING", ArrayJobID: 6},
				old.TresPerNode)},
		{"asks for other GPUs by now", "n1", cluster{queue: []schedule.Job{named}, nodes: nodes},
			[]string{"nodes", "queue", "n2 keeps 2 for 7"}, changed(sctl.Job{ID: 7, State: "PENDING"}, "gres:gpu:1")},
		{"runs by now", "n1", cluster{queue: []schedule.Job{named}, nodes: nodes},
			[]string{"nodes", "queue", "n2 keeps 2 for 7"}, changed(sctl.Job{ID: 7, State: "RUNNING"}, old.TresPerNode)},
		{"nobody waits", "n1", cluster{nodes: nodes}, []string{"nodes", "queue"}, nil},
		{"the second node", "n2", cluster{queue: []schedule.Job{old}, nodes: nodes}, []string{"nodes"}, nil},
		{"the second node, the first is down", "n2", cluster{queue: []schedule.Job{old}, nodes: down},
			[]string{"nodes", "queue", "n2 keeps 2 for 7"}, nil},
		{"no slurmctld", "n1", cluster{nodes: nodes, err: errors.New("no connection")}, []string{"nodes"}, nil},
	} {
		a := newAgent()
		a.Node, a.Cluster = c.node, &c.cluster
		a.Jobs = c.jobs
		if c.jobs == nil {
			a.Jobs = &jobs{known: map[uint32]sctl.Job{7: {ID: 7, State: "PENDING"}},
				words: sctl.Words{TresPerNode: old.TresPerNode}}
		}
		a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536}}
		a.keepSteward(t.Context(), 1)
		if !slices.Equal(c.cluster.calls, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.cluster.calls, c.want)
		}
	}
}

// A job that was returned to the queue between two looks is not new to the second.
func TestKeepStewardRemembers(t *testing.T) {
	j := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Resources",
		Eligible: time.Now().Add(-119 * time.Minute), TresPerNode: "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"}
	c := &cluster{queue: []schedule.Job{j}, nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true,
		Lives: true, GPUs: 4}}}
	a := newAgent()
	a.Node, a.Cluster = "n1", c
	a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536}}
	a.keepSteward(t.Context(), 1)
	c.queue = []schedule.Job{j}
	c.queue[0].Eligible = time.Now().Add(-time.Second)
	a.Config.Hold.After = config.Duration(118 * time.Minute)
	a.keepSteward(t.Context(), time.Minute)
	if want := []string{"nodes", "queue", "nodes", "queue", "n1 keeps 2 for 7"}; !slices.Equal(c.calls, want) {
		t.Errorf("%v, want %v", c.calls, want)
	}
}

// Nor is it to another steward, by what the first has left in the anchor's Comment.
func TestKeepStewardHandsOver(t *testing.T) {
	j := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Resources",
		Eligible: time.Now().Add(-119 * time.Minute), TresPerNode: "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"}
	c := &cluster{nodes: []schedule.Node{{Name: jobstate.Anchor, GPUs: 4, Comment: "(null)"},
		{Name: "n1", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4}}}
	minute := time.Duration(0)
	look := func(a *Agent, after time.Duration) {
		a.Config.Hold.After = config.Duration(after)
		a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536}}
		a.Node, a.Cluster = "n1", c
		c.queue = []schedule.Job{j}
		minute += time.Minute
		a.keepSteward(t.Context(), minute)
	}
	first := newAgent()
	look(first, 3*time.Hour)
	j.Eligible, j.Submitted, j.Restarts = time.Now().Add(-time.Second), time.Now().Add(-time.Minute), 1
	look(first, 3*time.Hour)
	if c.comment == "" {
		t.Fatalf("nothing is left: %v", c.calls)
	}
	c.nodes[0].Comment = c.comment
	c.calls = nil
	look(newAgent(), 118*time.Minute)
	if !slices.Equal(c.calls, []string{"nodes", "queue", "n1 keeps 2 for 7"}) {
		t.Errorf("%v", c.calls)
	}
}

// Most agents of a large cluster ask who the steward is once an hour.
func TestKeepStewardOfManyNodes(t *testing.T) {
	c := &cluster{}
	for i := range 9 {
		c.nodes = append(c.nodes, schedule.Node{Name: fmt.Sprint("n", i), Up: i > 4, Lives: i > 4, GPUs: 1})
	}
	a := newAgent()
	a.Node, a.Cluster = "n8", c // the fourth that is up
	for i := range 100 {
		a.keepSteward(t.Context(), time.Duration(i+1)*time.Minute)
	}
	if len(c.calls) != 2 || slices.Contains(c.calls, "queue") {
		t.Errorf("%v", c.calls)
	}
	c.calls, a = nil, newAgent()
	a.Node, a.Cluster = "n5", c // the first that is up, after five that are not
	if a.keepSteward(t.Context(), time.Minute); !slices.Equal(c.calls, []string{"nodes", "queue"}) {
		t.Errorf("%v", c.calls)
	}
}

// One of many looks when it starts, and then every second hour.
func TestKeepStewardOfThousands(t *testing.T) {
	c := &cluster{}
	for i := range 1000 {
		c.nodes = append(c.nodes, schedule.Node{Name: fmt.Sprint("n", i), Up: true, Lives: true, GPUs: 1})
	}
	a := newAgent()
	a.Node, a.Cluster = "n640", c
	for i := range 15 * 60 {
		a.keepSteward(t.Context(), time.Duration(i+1)*time.Minute)
	}
	if len(c.calls) != 8 || a.nodes.Load() != 1000 {
		t.Errorf("%v, %d nodes", c.calls, a.nodes.Load())
	}
}

func TestFollowComment(t *testing.T) {
	readings := []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40536}}, {GPU: gres.GPU{UUID: "b", TotalMiB: 40536}}}
	fresh := steward.Comment("rack", &steward.Hold{JobID: 7, GPUs: 2, MiB: 20480, Since: time.Now()})
	whole := steward.Comment("", &steward.Hold{JobID: 7, GPUs: 1, Since: time.Now()})
	many := steward.Comment("", &steward.Hold{JobID: 7, GPUs: 3, MiB: 20480, Since: time.Now()})
	late := steward.Comment("", &steward.Hold{JobID: 7, GPUs: 2, Since: time.Now().Add(-24 * time.Hour)})
	for name, c := range map[string]struct {
		comment string
		state   string
		holds   []lease.Hold
		ledger  []string
		slurm   []string
	}{
		"no word":               {"rack", "PENDING", nil, nil, nil},
		"new":                   {fresh, "PENDING", nil, []string{"hold 20480 MiB of [b a] for 2 GPUs of 7 of 1000"}, nil},
		"new, all":              {whole, "PENDING", nil, []string{"hold 0 MiB of [b] for 1 GPUs of 7 of 1000"}, nil},
		"kept already":          {fresh, "PENDING", []lease.Hold{{UUID: "a", JobID: 7}}, nil, nil},
		"in a Prolog":           {fresh, "RUNNING Prolog", []lease.Hold{{UUID: "a", JobID: 7}}, nil, nil},
		"returned to the queue": {fresh, "COMPLETING", []lease.Hold{{UUID: "a", JobID: 7}}, nil, nil},
		"starts":                {fresh, "RUNNING Prolog", nil, nil, nil},
		"has started":           {fresh, "RUNNING", nil, []string{"drop 7"}, []string{"n1 keeps 0 for 0"}},
		"held by its user": {fresh, "PENDING JobHeldUser", []lease.Hold{{UUID: "a", JobID: 7}}, []string{"drop 7"},
			[]string{"n1 keeps 0 for 0"}},
		"did not come":    {late, "PENDING", nil, []string{"drop 7"}, []string{"n1 keeps 0 for 0"}},
		"the clock jumps": {late, "PENDING", []lease.Hold{{UUID: "a", JobID: 7, Age: time.Minute}}, nil, nil},
		"kept for long": {fresh, "PENDING", []lease.Hold{{UUID: "a", JobID: 7, Age: time.Hour}}, []string{"drop 7"},
			[]string{"n1 keeps 0 for 0"}},
		"not known":           {fresh, "?", nil, nil, nil},
		"has gone":            {fresh, "", nil, []string{"drop 7"}, []string{"n1 keeps 0 for 0"}},
		"too many":            {many, "PENDING", nil, []string{"drop 7"}, []string{"n1 keeps 0 for 0"}},
		"held for others":     {fresh, "PENDING", nil, []string{"drop 7"}, []string{"n1 keeps 0 for 0"}},
		"too many, has gone":  {many, "", nil, []string{"drop 7"}, []string{"n1 keeps 0 for 0"}},
		"a bound on slowdown": {fresh, "PENDING", nil, []string{"hold 0 MiB of [b a] for 2 GPUs of 7 of 1000"}, nil},
	} {
		l, slurm := &ledger{}, &cluster{}
		a := newAgent()
		a.Node, a.Ledger, a.Cluster = "n1", l, slurm
		known := map[uint32]sctl.Job{}
		if c.state != "" {
			state, reason, _ := strings.Cut(c.state, " ")
			known[7] = sctl.Job{State: jobstate.State(state), Reason: jobstate.Reason(reason), UID: 1000}
			if state == "PENDING" {
				known[7] = sctl.Job{State: jobstate.State(state), Reason: jobstate.Reason(cmp.Or(reason, "Resources")), UID: 1000}
			}
		}
		a.Jobs = &jobs{known: known}
		if c.state == "?" {
			a.Jobs = &jobs{err: errors.New("no connection")}
		}
		if name == "a bound on slowdown" {
			a.Thresholds.MaxSlowdown = 1.5
		}
		readings := slices.Clone(readings)
		if name == "held for others" { // not for long
			readings[0].HeldFor, c.holds = 8, []lease.Hold{{UUID: "a", JobID: 8}}
		}
		a.followComment(t.Context(), c.comment, lease.Snapshot{Readings: readings, Holds: c.holds,
			Leases: []gres.Lease{{UUID: "a", UID: 1000}}})
		if !slices.Equal(l.calls, c.ledger) || !slices.Equal(slurm.calls, c.slurm) {
			t.Errorf("%s: ledger %v, slurmctld %v; want %v, %v", name, l.calls, slurm.calls, c.ledger, c.slurm)
		}
		// The steward is to look for another node.
		if said := strings.Contains(slurm.comments["n1"], "carma-vain=7:"); said != (name == "too many") {
			t.Errorf("%s: %q", name, slurm.comments["n1"])
		}
	}
}

// No start that a hook or an agent sets is taken for one of its user's.
func TestBackOffIsOurs(t *testing.T) {
	if longest := lease.LongestDelay; longest >= steward.BackOff {
		t.Errorf("a job may back off for %v, longer than %v is its user's", longest, steward.BackOff)
	}
}

func TestRestAfter(t *testing.T) {
	for _, c := range []struct{ took, holdAfter, want time.Duration }{
		{50 * time.Millisecond, 2 * time.Hour, time.Second},
		{time.Minute, 2 * time.Hour, longestRest},
		{time.Minute, 0, longestRest},
		{10 * time.Second, 2 * time.Second, 500 * time.Millisecond},
	} {
		if got := restAfter(c.took, c.holdAfter); got != c.want {
			t.Errorf("questions of %v, holds after %v: rests %v, want %v", c.took, c.holdAfter, got, c.want)
		}
	}
}

// A hold that has offered its GPUs for minutes when its time is over was in vain, and the node says
// so; one that its user's doing ended, or whose job was just returned to the queue, was not.
func TestHoldInVain(t *testing.T) {
	decided := time.Now().Add(-31 * time.Minute)
	hold := steward.Hold{JobID: 7, UID: 1000, GPUs: 1, MiB: 0, Since: decided}
	waits := func(reason jobstate.Reason) sctl.Job { return sctl.Job{State: "PENDING", Reason: reason} }
	for name, c := range map[string]struct {
		age, offered time.Duration
		job          sctl.Job
		lease        bool
		vain         bool
	}{
		"offered for long":       {time.Hour, 20 * time.Minute, waits("Resources"), false, true},
		"just offered":           {time.Hour, time.Minute, waits("Resources"), false, false},
		"a job is on it":         {time.Hour, 20 * time.Minute, waits("Resources"), true, false},
		"held by its user":       {time.Hour, 20 * time.Minute, waits("JobHeldUser"), false, false},
		"held by its user early": {time.Minute, 20 * time.Minute, waits("JobHeldUser"), false, false},
		"starts":                 {time.Hour, 20 * time.Minute, sctl.Job{State: "RUNNING", Reason: "Prolog"}, false, false},
	} {
		slurm := &cluster{}
		a := newAgent()
		a.Node, a.Ledger, a.Cluster, a.Jobs = "n1", &ledger{}, slurm, &jobs{known: map[uint32]sctl.Job{7: c.job}}
		s := lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7, GPUs: 1, Age: c.age, Open: true, Offered: c.offered}}}
		if c.lease {
			s.Leases = []gres.Lease{held(3, 1000)}
		}
		a.followHolds(t.Context(), s)
		s.Holds = nil
		a.followComment(t.Context(), "rack "+hold.String(), s)
		want := "rack"
		if c.vain {
			want = fmt.Sprintf("rack carma-vain=7:%d", decided.Unix())
		}
		if got := slurm.comments["n1"]; got != want || len(a.vain) != 0 {
			t.Errorf("%s: %q, want %q; %v", name, got, want, a.vain)
		}
	}
}

// Two holds may be over at the same look.
func TestTwoHoldsInVain(t *testing.T) {
	slurm := &cluster{}
	a := newAgent()
	waits := sctl.Job{State: "PENDING", Reason: "Resources"}
	a.Node, a.Ledger, a.Cluster = "n1", &ledger{}, slurm
	a.Jobs = &jobs{known: map[uint32]sctl.Job{6: waits, 7: waits, 8: waits}}
	var s lease.Snapshot
	for i, job := range []uint32{6, 7, 8} {
		s.Holds = append(s.Holds, lease.Hold{UUID: fmt.Sprint(i), JobID: job, GPUs: 1, Age: time.Hour, Open: true,
			Offered: time.Hour})
	}
	a.followHolds(t.Context(), s)
	hold := steward.Hold{JobID: 7, GPUs: 1, Since: time.Now().Add(-31 * time.Minute)}
	a.followComment(t.Context(), hold.String(), lease.Snapshot{})
	want := fmt.Sprintf("carma-vain=7:%d", hold.Since.Unix())
	if got := slurm.comments["n1"]; got != want || len(a.vain) != 0 {
		t.Errorf("%q, want %q; %v", got, want, a.vain)
	}
}

// A hold that the node made itself stands in no Comment: that it was in vain says nothing of one that
// the steward decides later.
func TestOldHoldInVain(t *testing.T) {
	hold := func(job uint32) string {
		return (steward.Hold{JobID: job, GPUs: 1, Since: time.Now()}).String()
	}
	for name, between := range map[string]string{"no hold": "rack", "another job's": hold(9), "none read": "-"} {
		l, slurm, a := &ledger{}, &cluster{}, newAgent()
		waits := sctl.Job{State: "PENDING", Reason: "Resources"}
		a.Node, a.Ledger, a.Cluster, a.Jobs = "n1", l, slurm, &jobs{known: map[uint32]sctl.Job{7: waits, 9: waits}}
		old := lease.Hold{UUID: "a", JobID: 7, GPUs: 1, Age: time.Hour, Open: true, Offered: time.Hour}
		a.followHolds(t.Context(), lease.Snapshot{Holds: []lease.Hold{old}})
		if between != "-" {
			a.followComment(t.Context(), between, lease.Snapshot{})
		}
		l.calls = nil
		a.followComment(t.Context(), hold(7), lease.Snapshot{
			Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40536}}}})
		if fmt.Sprint(l.calls) != "[hold 0 MiB of [a] for 1 GPUs of 7 of 0]" {
			t.Errorf("%s: %v, Comment %q", name, l.calls, slurm.comments["n1"])
		}
	}
}

// The steward gives a job whose hold was in vain none for a while, and leaves that to the next one.
func TestKeepStewardOfHoldsInVain(t *testing.T) {
	j := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Resources",
		Eligible: time.Now().Add(-24 * time.Hour), TresPerNode: "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"}
	said := time.Now().Add(-31 * time.Minute).Unix()
	c := &cluster{nodes: []schedule.Node{{Name: jobstate.Anchor, GPUs: 4, Comment: "(null)"},
		{Name: "n1", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4,
			Comment: fmt.Sprintf("rack carma-vain=7:%d", said)}}}
	for range 2 { // two stewards
		a := newAgent()
		a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536}}
		a.Node, a.Cluster = "n1", c
		c.queue = []schedule.Job{j}
		a.keepSteward(t.Context(), time.Minute)
		if !strings.HasPrefix(c.comment, fmt.Sprintf("carma-vain=7:1:%d:", said)) || c.comments["n1"] != "rack" ||
			slices.Contains(c.calls, "n1 keeps 2 for 7") {
			t.Errorf("anchor %q, n1 %q, calls %q", c.comment, c.comments["n1"], c.calls)
		}
		c.nodes[0].Comment, c.nodes[1].Comment = c.comment, c.comments["n1"]
	}
	a := newAgent()
	a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536}}
	a.Node, a.Cluster = "n1", c
	j.TresPerNode = "gres:gpu:3,gres:carma3:40536,gres:carmatotal:121608" // its user has changed it
	c.queue = []schedule.Job{j}
	if a.keepSteward(t.Context(), time.Minute); !slices.Contains(c.calls, "n1 keeps 3 for 7") {
		t.Errorf("calls %q", c.calls)
	}
}

// What the correction of bookings takes, which a user decides, is no reason to rest.
func TestRebookDoesNotDelayTheSteward(t *testing.T) {
	c := &cluster{nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4}},
		slow: 10 * time.Millisecond}
	j := &jobs{known: map[uint32]sctl.Job{},
		words: sctl.Words{TresPerNode: "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"}}
	for id := range uint32(100) {
		c.queue = append(c.queue, schedule.Job{ID: id + 1, State: "PENDING", Partition: "gpu", Reason: "Resources",
			ReqNodes: "n1", TresPerNode: j.words.TresPerNode})
		j.known[id+1] = sctl.Job{ID: id + 1, State: "PENDING"}
	}
	a := newAgent()
	a.Node, a.Cluster, a.Jobs = "n1", c, j
	a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536}}
	if a.keepSteward(t.Context(), time.Hour); a.rested-time.Hour > time.Second || len(c.calls) < 2+rebookedOfUser {
		t.Errorf("rests for %v after %d calls", a.rested-time.Hour, len(c.calls))
	}
}

// One user's many jobs whose booking needs a correction, which may fail each time, delay no other's.
func TestRebookByTurns(t *testing.T) {
	slurm, j := &cluster{}, &jobs{known: map[uint32]sctl.Job{}, words: sctl.Words{TresPerNode: "old"}}
	a := newAgent()
	a.Cluster, a.Jobs = slurm, j
	var list []steward.Rebooking
	for id := range uint32(300) {
		job := schedule.Job{ID: id + 1, UID: 1000 + id/100, State: "PENDING", TresPerNode: "old"}
		list = append(list, steward.Rebooking{Job: job, Books: "new"})
		j.known[job.ID] = sctl.Job{ID: job.ID, UID: job.UID, State: job.State}
		if job.UID == 1000 {
			j.known[job.ID] = sctl.Job{ID: job.ID, UID: job.UID, State: job.State, HetJobID: 1}
		}
	}
	a.rebook(t.Context(), slices.Clone(list), 1)
	if len(slurm.calls) != 2*rebookedOfUser || j.asked != 3*rebookedOfUser {
		t.Errorf("asked %d times: %q", j.asked, slurm.calls)
	}
	for now := time.Duration(2); now < 10; now++ {
		a.rebook(t.Context(), slices.Clone(list), now)
	}
	for _, id := range []string{"101", "200", "201", "300"} {
		if !slices.Contains(slurm.calls, "update "+id+" new") {
			t.Errorf("job %s is left", id)
		}
	}
}
