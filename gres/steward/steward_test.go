// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"carma/slurmbridge/schedule"
	"fmt"
	"slices"
	"testing"
	"time"
)

var now = time.Unix(1795257543, 0)

func TestComment(t *testing.T) {
	hold := Hold{JobID: 7, UID: 1000, GPUs: 2, MiB: 20480, Since: now}
	const word = "carma-hold=7:1000:2:20480:1795257543"
	for _, c := range []struct {
		before string
		hold   *Hold
		after  string
	}{
		{"", &hold, word},
		{"(null)", &hold, word},
		{"rack 4", &hold, "rack 4 " + word},
		{"rack 4 carma-hold=1:1000:1:0:1", &hold, "rack 4 " + word},
		{"rack " + word + " 4", nil, "rack 4"},
		{word, nil, ""},
		{"rack 4", nil, "rack 4"},
	} {
		if got := Comment(c.before, c.hold); got != c.after {
			t.Errorf("%q: got %q, want %q", c.before, got, c.after)
		}
		if got, ok := ParseComment(c.after); ok != (c.hold != nil) || ok && got != hold {
			t.Errorf("%q: read back as %+v, %v", c.after, got, ok)
		}
	}
	for _, bad := range []string{"", "(null)", "hold", "carma-hold=", "carma-hold=1:2:3", "carma-hold=1:1:0:5",
		"carma-hold=0:9:1:0:5", "carma-hold=1:9:0:0:5", "carma-hold=x:9:1:0:5", "carma-hold=1:x:1:0:5",
		"carma-hold=1:9:1:-1:5", "carma-hold=1:9:1:0:x", "carma-hold=1:9:1:1:1:1"} {
		if got, ok := ParseComment(bad); ok {
			t.Errorf("%q: read as %+v", bad, got)
		}
	}
}

func pending(id uint32, tres string, waited time.Duration) schedule.Job {
	return schedule.Job{ID: id, State: "PENDING", Partition: "gpu", Reason: "Resources", Priority: 100,
		Eligible: now.Add(-waited), TresPerNode: tres, UID: 1000}
}

func running(id uint32, nodes string, left time.Duration) schedule.Job {
	return schedule.Job{ID: id, State: "RUNNING", Partition: "gpu", Nodes: nodes, End: now.Add(left)}
}

const (
	two   = "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"
	whole = "gres:gpu:1,gres:carmau0:40536,gres:carmatotal:40536"
	half  = "gres:gpu:1,gres:carmau0:20480,gres:carmatotal:20480"
	share = "gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240"
)

func TestDecide(t *testing.T) {
	later := func(id uint32, priority int64, since time.Duration) schedule.Job {
		j := running(id, "n1", time.Hour)
		j.Priority, j.Start, j.TresPerNode = priority, now.Add(-since), share
		return j
	}
	cpu := later(5, 99, time.Minute)
	cpu.TresPerNode = ""
	nodes := func(comments ...string) []schedule.Node {
		all := []schedule.Node{{Name: "carma-anchor", Partitions: []string{"gpu"}, GPUs: 4},
			{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4},
			{Name: "n2", Partitions: []string{"gpu"}, Up: true, GPUs: 4},
			{Name: "n3", Partitions: []string{"other"}, Up: true, GPUs: 8}}
		for i, c := range comments {
			all[i+1].Comment = c
		}
		return all
	}
	with := func(j schedule.Job, change func(*schedule.Job)) schedule.Job {
		change(&j)
		return j
	}
	featured := nodes()
	featured[1].Features, featured[2].Features = "old", "new,big"
	busy := []schedule.Job{running(1, "n1", time.Hour), running(2, "n2", time.Minute)}
	for name, c := range map[string]struct {
		queue []schedule.Job
		nodes []schedule.Node
		node  string
		job   uint32
	}{
		"two GPUs, the node that is free first": {append(busy, pending(7, two, time.Hour)), nodes(), "n2", 7},
		"the node with fewer jobs": {append(busy, running(3, "n[2-3]", time.Second),
			pending(7, two, time.Hour)), nodes(), "n1", 7},
		"several partitions": {append(busy, with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Partition = "gpu,other" })), nodes(), "n3", 7},
		"several partitions, and names nodes": {append(busy, with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Partition, j.ReqNodes = "gpu,other", "n[1,3]" })), nodes(), "n3", 7},
		"a whole GPU of one of its partitions": {[]schedule.Job{with(pending(7, whole, time.Hour),
			func(j *schedule.Job) { j.Partition = "none,gpu" })}, nodes(), "n1", 7},
		"passed in one of its partitions": {[]schedule.Job{with(pending(7, half, time.Hour),
			func(j *schedule.Job) { j.Partition = "other,gpu" }), later(3, 99, time.Minute)}, nodes(), "n2", 7},
		"all GPUs of a node": {[]schedule.Job{pending(7, "gres:gpu:4,gres:carma4:3,gres:carmatotal:162144", time.Hour)},
			nodes(), "n1", 7},
		"all GPUs of two nodes, which slurmctld plans": {[]schedule.Job{with(pending(7,
			"gres:gpu:4,gres:carma4:3,gres:carmatotal:162144", time.Hour), func(j *schedule.Job) { j.NodeCount = 2 })},
			nodes(), "", 0},
		"a whole GPU": {[]schedule.Job{pending(7, whole, time.Hour)}, nodes(), "n1", 7},
		"a share that nobody passed": {[]schedule.Job{pending(7, half, time.Hour), later(3, 99, 2*time.Hour),
			later(4, 101, time.Minute), cpu}, nodes(), "", 0},
		"a share that was passed": {[]schedule.Job{pending(7, half, time.Hour), later(3, 99, time.Minute)},
			nodes(), "n2", 7},
		"passed by one of the same priority": {[]schedule.Job{pending(7, half, time.Hour), later(8, 100, time.Minute)},
			nodes(), "n2", 7},
		"not passed by an earlier one": {[]schedule.Job{pending(7, half, time.Hour), later(6, 100, time.Minute)},
			nodes(), "", 0},
		"passed, but not for long": {[]schedule.Job{pending(7, half, 5*time.Minute),
			later(3, 99, time.Minute)}, nodes(), "", 0},
		"in a reservation": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reservation = "r" })}, nodes(), "", 0},
		"a job of others": {[]schedule.Job{pending(7, "gres:gpu:8", time.Hour)}, nodes(), "", 0},
		"not long enough": {[]schedule.Job{pending(7, two, time.Minute)}, nodes(), "", 0},
		"waits for something else": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "Dependency" })}, nodes(), "", 0},
		"only the anchor could take it now": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "ReqNodeNotAvail, UnavailableNodes:carma-anchor" })}, nodes(), "n1", 7},
		"the anchor, and a node that is drained": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "ReqNodeNotAvail, UnavailableNodes:carma-anchor,n4" })}, nodes(), "n1", 7},
		"the anchor, and many": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "ReqNodeNotAvail, UnavailableNodes:a[1-2],carma-anchor,n[4-7,9]" })}, nodes(),
			"n1", 7},
		"the anchor, as scontrol writes it": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "ReqNodeNotAvail,_UnavailableNodes:carma-anchor,n4" })}, nodes(), "n1", 7},
		"the same, on 23.11": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "None" })}, nodes(), "n1", 7},
		"a node is down": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "ReqNodeNotAvail, UnavailableNodes:n4" })}, nodes(), "", 0},
		"wants features": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Features = "big" })}, nodes(), "", 0},
		"wants a feature that the second has": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Features = "big|huge" })}, featured, "n2", 7},
		"wants features that none has both": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Features = "big&old" })}, featured, "", 0},
		"wants what cannot be read": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Features = "big||" })}, featured, "", 0},
		"of an array": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.ArrayJobID, j.ArrayTask = 7, 1 })}, nodes(), "n1", 7},
		"asks for a node": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.ReqNodes = "n2" })}, nodes(), "n2", 7},
		"more than a node has": {[]schedule.Job{pending(7,
			"gres:gpu:8,gres:carma8:40536,gres:carmatotal:324288", time.Hour)}, nodes(), "", 0},
		"highest priority first": {[]schedule.Job{pending(7, two, time.Hour),
			with(pending(8, two, 30*time.Minute), func(j *schedule.Job) { j.Priority = 200 })}, nodes(), "n1", 8},
		"then the oldest": {[]schedule.Job{pending(8, two, 30*time.Minute),
			pending(7, two, time.Hour)}, nodes(), "n1", 7},
		"a node keeps for one job only": {[]schedule.Job{pending(7, two, time.Hour)}, nodes("carma-hold=5:1:2:0:1"),
			"n2", 7},
		"a user has one at a time": {[]schedule.Job{pending(7, two, time.Hour)},
			nodes("carma-hold=5:1000:2:0:1"), "", 0},
		"a node that is down keeps nothing": {[]schedule.Job{pending(7, two, time.Hour)}, func() []schedule.Node {
			all := nodes("carma-hold=5:1000:2:0:1")
			all[1].Up = false
			return all
		}(), "n2", 7},
		"then it is another's turn": {[]schedule.Job{pending(7, two, 2*time.Hour),
			with(pending(8, two, time.Hour), func(j *schedule.Job) { j.UID = 1001 })}, nodes("carma-hold=5:1000:2:0:1"), "n2",
			8},
		"names its node, and backs off": {[]schedule.Job{with(pending(7,
			"gres:gpu:2,gres:carma2:1,gres:carmatotal:81072", time.Hour),
			func(j *schedule.Job) { j.ReqNodes, j.Reason = "n2", "BeginTime" })}, nodes(), "n2", 7},
		"backs off": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "BeginTime" })}, nodes(), "", 0},
		"a job that is kept for is done": {[]schedule.Job{pending(7, two, time.Hour)},
			nodes("carma-hold=7:1000:2:0:1"), "", 0},
		"the next, where the first cannot be had": {[]schedule.Job{pending(7,
			"gres:gpu:8,gres:carma8:40536,gres:carmatotal:324288", 2*time.Hour), pending(8, two, time.Hour)}, nodes(), "n1", 8},
	} {
		in := Input{Queue: slices.Clone(c.queue), Nodes: c.nodes, FullMiB: map[string]int64{"gpu": 40536},
			After: 10 * time.Minute, Now: now}
		d, ok := Decide(in)
		if d.Node != c.node || d.Hold.JobID != c.job || d.Job.ID != c.job || ok != (c.node != "") {
			t.Errorf("%s: got %s for %d, %v; want %s for %d", name, d.Node, d.Hold.JobID, ok, c.node, c.job)
		}
	}
}

// What is kept is what the job needs of each GPU.
func TestDecideHowMuch(t *testing.T) {
	for tres, want := range map[string]Hold{
		two:   {GPUs: 2},
		whole: {GPUs: 1},
		half:  {GPUs: 1, MiB: 20480},
		"gres/gpu=2,gres/carma2:10240,gres/carmatotal:20480": {GPUs: 2, MiB: 10240},
		"gres:gpu:1,gres:carmau0:1,gres:carmatotal:20480":    {GPUs: 1, MiB: 20480},
	} {
		passing := running(1, "n1", time.Hour)
		passing.Start, passing.TresPerNode = now, share
		in := Input{Queue: []schedule.Job{pending(7, tres, time.Hour), passing},
			Nodes:   []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4}},
			FullMiB: map[string]int64{"gpu": 40536}, After: 10 * time.Minute, Now: now}
		want.JobID, want.UID, want.Since = 7, 1000, now
		if d, _ := Decide(in); d.Hold != want {
			t.Errorf("%s: %+v, want %+v", tres, d.Hold, want)
		}
	}
}

func TestMisbooked(t *testing.T) {
	named := pending(1, half, 0)
	named.ReqNodes = "n1"
	reserved := pending(2, two, 0)
	reserved.Reservation = "r"
	right := named
	right.ID, right.TresPerNode = 3, "gres:gpu:1,gres:carmau0:1,gres:carmatotal:20480"
	others := named
	others.ID, others.TresPerNode = 4, "gres:gpu:1"
	runs := running(5, "n1", time.Hour)
	runs.ReqNodes, runs.TresPerNode = "n1", half
	moved := func(id uint32, books string) schedule.Job { // to a partition of smaller GPUs
		j := pending(id, books, time.Hour)
		j.Partition = "small,gpu"
		return j
	}
	big, several, idle := moved(7, whole), moved(8, two), moved(9, "gres:gpu:1,gres:carmau0:40536,gres:carmatotal:10240")
	bigNamed, fits, unknown := moved(10, right.TresPerNode), moved(11,
		"gres:gpu:1,gres:carmau0:20000,gres:carmatotal:20000"), moved(12, whole)
	bigNamed.ReqNodes, unknown.Partition = "n1", "none"
	full := map[string]int64{"gpu": 40536, "small": 20000}
	node := pending(13, "gres:gpu:2,gres:carma2:3,gres:carmatotal:81072", time.Hour)
	right2, more, nodeNamed := node, node, node
	right2.ID, right2.Partition = 14, "two"
	more.ID, more.Partition = 15, "two,gpu"
	nodeNamed.ID, nodeNamed.Partition, nodeNamed.ReqNodes = 16, "two", "n1"
	full["two"] = 40536
	got := NeedsRebooking([]schedule.Job{named, named, reserved, right, others, runs, pending(6, half, time.Hour),
		big, several, idle, bigNamed, fits, unknown, node, right2, more, nodeNamed}, full,
		map[string]int{"gpu": 4, "small": 4, "two": 2})
	if want := []Rebooking{{named, right.TresPerNode}, {reserved, "gres:gpu:2,gres:carma2:1,gres:carmatotal:81072"},
		{big, fits.TresPerNode}, {several, "gres:gpu:2,gres:carma2:20000,gres:carmatotal:40000"},
		{idle, "gres:gpu:1,gres:carmau0:20000,gres:carmatotal:10240"},
		{bigNamed, "gres:gpu:1,gres:carmau0:1,gres:carmatotal:20000"},
		{node, two}, {more, two}, {nodeNamed, "gres:gpu:2,gres:carma2:1,gres:carmatotal:81072"},
	}; !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func FuzzParseComment(f *testing.F) {
	for _, seed := range []string{"", "carma-hold=7:9:2:0:1795257543", "rack carma-hold=7:9:2:0:1 x", "carma-hold=::",
		"(null)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, comment string) {
		if _, ok := ParseComment(Comment(comment, nil)); ok {
			t.Errorf("%q: a hold is left", comment)
		}
		h := Hold{JobID: 7, GPUs: 2, MiB: 1, Since: now}
		if got, ok := ParseComment(Comment(comment, &h)); !ok || got != h {
			t.Errorf("%q: read back as %+v", comment, got)
		}
	})
}

// queueOf is a cluster with so many waiting tasks of an array, jobs of one user that all
// name other nodes and features, and running jobs. No node can take any of them.
func queueOf(tasks, others, nodes int) Input {
	in := Input{FullMiB: map[string]int64{"gpu": 40536}, After: time.Minute, Now: now}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		in.Nodes = append(in.Nodes, schedule.Node{Name: name, Partitions: []string{"gpu"}, Lives: true, Up: true, GPUs: 1,
			Features: fmt.Sprint("a,f", i%7)})
		r := running(uint32(1000000+i), name, time.Hour)
		r.TresPerNode, r.Start, r.Priority = share, now, 1
		in.Queue = append(in.Queue, r)
	}
	for i := range tasks {
		j := pending(7, two, time.Hour)
		j.ArrayJobID, j.ArrayTask = 7, uint32(i)
		in.Queue = append(in.Queue, j)
	}
	for i := range others {
		j := pending(uint32(100000+i), two, time.Hour)
		j.UID, j.Features = 1001, fmt.Sprint("a&x", i)
		if i%2 == 0 {
			j.ReqNodes = fmt.Sprintf("n[0-%d]", i%max(nodes, 1))
		}
		in.Queue = append(in.Queue, j)
	}
	return in
}

// Twice the jobs and nodes cost twice the looks, whatever users ask for.
func TestDecideIsLinear(t *testing.T) {
	looksOf := func(tasks, others, nodes int) int {
		in := queueOf(tasks, others, nodes)
		_, ok, looks := decide(in)
		if ok {
			t.Fatal("a node was found")
		}
		return looks
	}
	const most = 2 + 2*searchesOfUser // looks at each job and node
	for _, c := range [][3]int{{1000, 0, 100}, {0, 1000, 100}, {1000, 1000, 1000}, {10000, 1000, 5000}} {
		if looks, limit := looksOf(c[0], c[1], c[2]), most*(c[0]+c[1]+2*c[2]); looks > limit {
			t.Errorf("%d tasks, %d other jobs, %d nodes: %d looks, at most %d", c[0], c[1], c[2], looks, limit)
		}
	}
}

// Users whose requests come first in the queue leave each other user a search.
func TestUsersTakeTurns(t *testing.T) {
	in := Input{After: 30 * time.Minute, Now: now,
		Nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4}}}
	for user := range uint32(2 * searchesOfAll / searchesOfUser) {
		for i := range uint32(2 * searchesOfUser) {
			j := pending(1000*(user+1)+i, two, 2*time.Hour)
			j.UID, j.Features = 2000+user, fmt.Sprintf("none%d_%d", user, i)
			in.Queue = append(in.Queue, j)
		}
	}
	last := pending(7, two, time.Hour)
	last.Priority = 1
	in.Queue = append(in.Queue, last)
	if d, ok := Decide(in); !ok || d.Job.ID != 7 {
		t.Errorf("%+v %v", d, ok)
	}
	// Of those who ask for the same, the first in the queue is looked for, whoever's turn it was.
	same := in.Queue[searchesOfUser]
	same.Features = ""
	in.Queue[searchesOfUser] = same
	if d, ok := Decide(in); !ok || d.Job.ID != same.ID {
		t.Errorf("%+v %v", d, ok)
	}
	// Where there is enough for all, priority decides alone.
	second := pending(8, two, time.Hour)
	second.UID, second.Priority = 2000, 2
	in.Queue = append(in.Queue[:1:1], last, second)
	if d, ok := Decide(in); !ok || d.Job.ID != 8 {
		t.Errorf("%+v %v", d, ok)
	}
}

func BenchmarkSteward(b *testing.B) {
	in := queueOf(10000, 0, 5000)
	w := Waits{}
	for b.Loop() {
		queue := slices.Clone(in.Queue)
		NeedsRebooking(queue, in.FullMiB, nil)
		w.Restore(queue, now, time.Minute)
		Decide(Input{Queue: queue, Nodes: in.Nodes, FullMiB: in.FullMiB, After: in.After, Now: in.Now})
	}
}
