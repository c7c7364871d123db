// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/schedule"
)

var now = time.Unix(1795257543, 0)

func place(text string, h Hold) (string, error) {
	return SetWords(text, map[string]string{extra.Hold: h.String()})
}

func TestHoldIn(t *testing.T) {
	hold := Hold{JobID: 7, GPUs: 2, MiB: 20480, Since: now}
	sent := hold
	sent.Preempts = "1001"
	const word = `"carmahold":"7:2:20480:1795257543`
	for _, c := range []struct {
		before string
		hold   Hold
		after  string
	}{
		{"", hold, "{" + word + `"}`},
		{"(null)", hold, "{" + word + `"}`},
		{`{"rack":4}`, hold, "{" + word + `","rack":4}`},
		{`{"carma1":5,"carmahold":"1:1:0:1"}`, hold, `{"carma1":5,` + word + `"}`},
		{`{"carma1":5,"carma1u9":7,"carmahold":"1:1:7:1:preempt:9"}`, hold, `{"carma1":5,` + word + `"}`},
		{"", sent, `{"carma2u1001":20480,` + word + `:preempt:1001"}`},
		{`{"carma2":1,"carma2u1001":30000}`, sent, `{"carma2":1,"carma2u1001":30000,` + word + `:preempt:1001"}`},
	} {
		got, err := place(c.before, c.hold)
		if got != c.after || err != nil {
			t.Errorf("%q: got %q, %v, want %q", c.before, got, err, c.after)
		}
		if back, ok := HoldIn(got); !ok || back != c.hold {
			t.Errorf("%q: read back as %+v, %v", got, back, ok)
		}
	}
	for before, want := range map[string]string{"": "", `{"carma2":1,` + word + `","rack":4}`: `{"carma2":1,"rack":4}`,
		`{"carma2":1,"carma2u1001":30000,"carma1u1001":9,` + word + `:preempt:1001"}`: `{"carma1u1001":9,"carma2":1}`} {
		if got, err := SetWords(before, map[string]string{extra.Hold: ""}); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", before, got, err, want)
		}
	}
	if _, err := place("rack 4", hold); err == nil {
		t.Error("a text of others is overwritten")
	}
	for _, bad := range []string{"", "hold", "1:2:3", "1:1:0:5:", "0:1:0:5", "1:0:0:5", "x:1:0:5", "1:x:0:5", "1:1:-1:5",
		"1:1:0:x", "1:1:1:1:1", "1:1:1:1:preempt", "1:1:1:1:preempt:", "1:1:1:1:preempt:a b", "1:1:1:1:x:1001",
		"1:1:1:1:preempt:" + strings.Repeat("a", 65)} {
		if got, ok := HoldIn(fmt.Sprintf(`{"carmahold":%q}`, bad)); ok {
			t.Errorf("%q: read as %+v", bad, got)
		}
	}
}

// books is what a job has booked.
type books struct {
	gpus int
	mib  int64
}

func pending(id uint32, b books, waited time.Duration) schedule.Job {
	return schedule.Job{ID: id, State: "PENDING", Partition: "gpu", Reason: "Constraints", Priority: 100,
		Eligible: now.Add(-waited), GPUs: b.gpus, MiB: b.mib, UID: 1000}
}

func running(id uint32, nodes string, left time.Duration) schedule.Job {
	return schedule.Job{ID: id, State: "RUNNING", Partition: "gpu", Nodes: nodes, End: now.Add(left)}
}

var (
	two   = books{2, 40536}
	whole = books{1, 40536}
	half  = books{1, 20480}
	all   = books{4, 40536} // of a node of the partition gpu
	eight = books{8, 40536}
)

// Partitions of several sizes of GPUs have no "all".
func TestTakesAll(t *testing.T) {
	s := Sizes{FullMiB: map[string]int64{"gpu": 40536, "big": 81072, "same": 40536},
		GPUs: map[string]int{"gpu": 4, "big": 4, "same": 4}}
	for partition, want := range map[string]bool{"gpu": true, "gpu,same": true, "gpu,big": false, "gpu,cpu": true} {
		j := schedule.Job{Partition: partition, GPUs: 4, MiB: 40536}
		if s.takesAll(&j) != want {
			t.Errorf("%s: %v", partition, !want)
		}
	}
}

var sizes = Sizes{FullMiB: map[string]int64{"gpu": 40536}, GPUs: map[string]int{"gpu": 4}}

func TestDecide(t *testing.T) {
	later := func(id uint32, priority int64, since time.Duration) schedule.Job {
		j := running(id, "n1", time.Hour)
		j.Priority, j.Start, j.GPUs, j.MiB = priority, now.Add(-since), 1, 10240
		return j
	}
	cpu := later(5, 99, time.Minute)
	cpu.GPUs, cpu.MiB = 0, 0
	nodes := func(words ...string) []schedule.Node {
		all := []schedule.Node{{Name: "n0", Partitions: []string{"gpu"}, Up: true}, // without an agent
			{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4},
			{Name: "n2", Partitions: []string{"gpu"}, Up: true, GPUs: 4},
			{Name: "n3", Partitions: []string{"other"}, Up: true, GPUs: 8}}
		for i, w := range words {
			all[i+1].Extra = fmt.Sprintf(`{"carmahold":%q}`, w)
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
		"all GPUs of a node": {[]schedule.Job{pending(7, all, time.Hour)},
			nodes(), "n1", 7},
		"all GPUs of two nodes, which slurmctld plans": {[]schedule.Job{with(pending(7, all, time.Hour),
			func(j *schedule.Job) { j.NodeCount = 2 })},
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
		"a job of others": {[]schedule.Job{pending(7, books{4, 0}, time.Hour)}, nodes(), "", 0},
		"not long enough": {[]schedule.Job{pending(7, two, time.Minute)}, nodes(), "", 0},
		"waits for something else": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "Dependency" })}, nodes(), "", 0},
		"on several nodes": {[]schedule.Job{with(pending(7, two, time.Hour), func(j *schedule.Job) {
			j.Reason = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
			j.NodeCount = 2
		})}, nodes(), "n1", 7},
		"other memory is free": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "Resources" })}, nodes(), "n1", 7},
		"slurmctld has not looked at it": {[]schedule.Job{with(pending(7, two, time.Hour),
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
		"more than a node has": {[]schedule.Job{pending(7, eight, time.Hour)}, nodes(), "", 0},
		"highest priority first": {[]schedule.Job{pending(7, two, time.Hour),
			with(pending(8, two, 30*time.Minute), func(j *schedule.Job) { j.Priority = 200 })}, nodes(), "n1", 8},
		"then the oldest": {[]schedule.Job{pending(8, two, 30*time.Minute),
			pending(7, two, time.Hour)}, nodes(), "n1", 7},
		"a node keeps for one job only": {[]schedule.Job{pending(7, two, time.Hour)}, nodes("5:2:0:1"), "n2", 7},
		"a user has one at a time": {[]schedule.Job{pending(7, two, time.Hour), pending(5, two, time.Hour)},
			nodes("5:2:0:1"), "", 0},
		"a job that preempts is on its way": {[]schedule.Job{pending(7, two, time.Hour), pending(5, two, time.Hour)},
			nodes("5:2:0:1:preempt:1000"), "", 0},
		"a node that is down keeps nothing": {[]schedule.Job{pending(7, two, time.Hour),
			with(pending(5, two, time.Hour), func(j *schedule.Job) { j.Reason = "JobHeldUser" })}, func() []schedule.Node {
			all := nodes("5:2:0:1")
			all[1].Up = false
			return all
		}(), "n2", 7},
		"then it is another's turn": {[]schedule.Job{pending(7, two, 2*time.Hour), pending(5, two, time.Hour),
			with(pending(8, two, time.Hour), func(j *schedule.Job) { j.UID = 1001 })}, nodes("5:2:0:1"), "n2", 8},
		"backs off": {[]schedule.Job{with(pending(7, two, time.Hour),
			func(j *schedule.Job) { j.Reason = "BeginTime" })}, nodes(), "", 0},
		"a job that is kept for is done": {[]schedule.Job{pending(7, two, time.Hour)},
			nodes("7:2:0:1"), "", 0},
		"the next, where the first cannot be had": {[]schedule.Job{pending(7, eight, 2*time.Hour),
			pending(8, two, time.Hour)}, nodes(), "n1", 8},
	} {
		in := Input{Queue: slices.Clone(c.queue), Nodes: c.nodes, Sizes: sizes,
			After: 10 * time.Minute, Now: now}
		d, ok := Decide(in)
		if d.Node != c.node || d.Hold.JobID != c.job || d.Job.ID != c.job || ok != (c.node != "") {
			t.Errorf("%s: got %s for %d, %v; want %s for %d", name, d.Node, d.Hold.JobID, ok, c.node, c.job)
		}
	}
}

// What is kept is what the job needs of each GPU.
func TestDecideHowMuch(t *testing.T) {
	for b, want := range map[books]Hold{
		two:        {GPUs: 2},
		whole:      {GPUs: 1},
		half:       {GPUs: 1, MiB: 20480},
		{2, 10240}: {GPUs: 2, MiB: 10240},
	} {
		passing := running(1, "n1", time.Hour)
		passing.Start, passing.GPUs, passing.MiB = now, 1, 10240
		in := Input{Queue: []schedule.Job{pending(7, b, time.Hour), passing}, Sizes: sizes,
			Nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4}},
			After: 10 * time.Minute, Now: now}
		want.JobID, want.Since = 7, now
		if d, _ := Decide(in); d.Hold != want {
			t.Errorf("%v: %+v, want %+v", b, d.Hold, want)
		}
	}
}

func FuzzHoldIn(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"carmahold":"7:2:0:1795257543"}`,
		`{"carmahold":"7:2:0:1:preempt:ab","rack":4}`, `{"carmahold":"::"}`, `{"carmahold":7}`, "(null)", "rack 4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if h, ok := HoldIn(text); ok && (h.JobID == 0 || h.GPUs == 0 || h.MiB < 0) {
			t.Errorf("%q: %+v", text, h)
		}
		h := Hold{JobID: 7, GPUs: 2, MiB: 1, Since: now, Preempts: "ab"}
		after, err := place(text, h)
		if err != nil {
			return
		}
		if got, ok := HoldIn(after); !ok || got != h {
			t.Errorf("%q: read back as %+v", text, got)
		}
	})
}

// queueOf is a cluster with so many waiting tasks of an array, jobs of one user that all
// name other nodes and features, and running jobs. No node can take any of them.
func queueOf(tasks, others, nodes int) Input {
	in := Input{Sizes: sizes, After: time.Minute, Now: now}
	for i := range nodes {
		name := fmt.Sprint("n", i)
		in.Nodes = append(in.Nodes, schedule.Node{Name: name, Partitions: []string{"gpu"}, Lives: true, Up: true, GPUs: 1,
			Features: fmt.Sprint("a,f", i%7)})
		r := running(uint32(1000000+i), name, time.Hour)
		r.GPUs, r.MiB, r.Start, r.Priority = 1, 10240, now, 1
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
		w.Restore(queue, now, time.Minute)
		in.Queue = queue
		Decide(in)
	}
}
