// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/schedule"
)

// says is a node that says that a hold for a job was in vain, which was decided so long ago.
func says(job uint32, ago time.Duration) []schedule.Node { return saysOf("n1", job, ago) }

func saysOf(node string, job uint32, ago time.Duration) []schedule.Node {
	return []schedule.Node{{Name: node, Extra: fmt.Sprintf(`{"carmavain":"%d:%d","rack":4}`, job, now.Add(-ago).Unix())}}
}

// vainExtra is the Extra of a node that says so of a hold.
func vainExtra(h Hold) string { return fmt.Sprintf(`{"carmavain":%q}`, VainWord(h)) }

// restsOn tells whether a job is to get no hold on a node.
func restsOn(v Vains, node string, j *schedule.Job, at time.Time) bool {
	all, nodes := v.rests(j, at)
	return all || slices.Contains(nodes, hashOf(node))
}

// The time without a hold doubles up to a day.
func TestVainsBackOff(t *testing.T) {
	v, j, at := Vains{}, pending(7, two, 100*time.Hour), now
	for i, want := range []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour, 8 * time.Hour,
		16 * time.Hour, 24 * time.Hour, 24 * time.Hour} {
		nodes := says(7, now.Sub(at))
		at = at.Add(HoldTimeout)
		for look := range 3 { // the word may stand for a while
			if list := v.Look([]schedule.Job{j}, nodes, at, time.Minute); (len(list) == 1) != (look == 0) {
				t.Errorf("hold %d, look %d: %v", i, look, list)
			}
		}
		if !restsOn(v, "n1", &j, at.Add(want-time.Second)) || restsOn(v, "n1", &j, at.Add(want)) {
			t.Errorf("hold %d: until %v, want %v", i, v[7].until().Sub(at), want)
		}
		at = at.Add(want)
	}
}

func TestVains(t *testing.T) {
	j := pending(7, two, 100*time.Hour)
	task := func(id, n uint32) schedule.Job {
		t := pending(id, two, 100*time.Hour)
		t.ArrayJobID, t.ArrayTask = 7, n
		return t
	}
	changed := pending(7, whole, 100*time.Hour)
	started := running(7, "n2", time.Hour)
	started.Start = now.Add(-10 * time.Minute)
	before := running(7, "n2", time.Hour)
	before.Start = now.Add(-time.Hour)
	for name, c := range map[string]struct {
		first, then schedule.Job
		rests       bool
	}{
		"waits":                       {j, j, true},
		"asks for something else":     {j, changed, false},
		"has started and come back":   {j, started, false},
		"the array's other tasks":     {task(9, 1), task(7, 2), true},
		"a task that runs for longer": {task(9, 1), with(before, func(j *schedule.Job) { j.ArrayJobID = 7 }), true},
	} {
		v := Vains{}
		v.Look([]schedule.Job{c.first}, says(c.first.ID, 31*time.Minute), now, time.Minute)
		v.Look([]schedule.Job{c.then}, nil, now, time.Minute)
		if c.then.State == "RUNNING" {
			c.then = c.first
		}
		if rests := restsOn(v, "n1", &c.then, now); rests != c.rests {
			t.Errorf("%s: %v", name, rests)
		}
		v.Look(nil, nil, now.Add(longestRest), time.Minute)
		if len(v) != 0 {
			t.Errorf("%s: remembered %v", name, v)
		}
	}
}

func with(j schedule.Job, change func(*schedule.Job)) schedule.Job {
	change(&j)
	return j
}

// Another job gets the hold meanwhile.
func TestDecideOfHoldsInVain(t *testing.T) {
	in := Input{Queue: []schedule.Job{pending(7, two, 2*time.Hour), with(pending(8, two, time.Hour),
		func(j *schedule.Job) { j.Priority = 1 })}, After: 30 * time.Minute, Now: now, Vains: Vains{},
		Nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4}}}
	in.Vains.Look(in.Queue, says(7, 31*time.Minute), now, time.Minute)
	if d, ok := Decide(in); !ok || d.Job.ID != 8 {
		t.Errorf("%+v %v", d, ok)
	}
}

func TestVainsAreHandedOver(t *testing.T) {
	first, next, j := Vains{}, Vains{}, pending(7, two, 2*time.Hour)
	first.Look([]schedule.Job{j}, says(7, 31*time.Minute), now, time.Minute)
	word := first.Word()
	next.Learn(word, now)
	if !restsOn(next, "n1", &j, now) || restsOn(next, "n2", &j, now) || !strings.HasPrefix(word, "7:1:") {
		t.Errorf("%q: %v", word, next)
	}
	if again := next.Word(); again != word {
		t.Errorf("%q, want %q", again, word)
	}
	for id := range uint32(3 * most) {
		next[100+id] = vain{holds: 1, since: int64(id), nodes: make([]uint16, mostNodes)}
	}
	delete(next, 7)
	text := next.Word()
	jobs, numbers := strings.Count(text, ",")+1, strings.Count(text, ":")
	if jobs != most || numbers != (3+nodesTold)*most {
		t.Errorf("%d jobs in the word, %d numbers", jobs, numbers)
	}
	v := Vains{}
	for _, bad := range []string{"", "(null)", "7", "7:1:2", "x:1:1:1", "7:-1:5:5", "7:1:1:1:x", ","} {
		if v.Learn(bad, now); len(v) != 0 {
			t.Errorf("%q: %v", bad, v)
		}
	}
	if v.Learn("7:99999999999:5:5", now); v[7].until().IsZero() {
		t.Error("no time")
	}
}

// A job that one node cannot start, one that it excludes say, gets its next hold on another at once.
// One that no node can start holds a few in a row at most.
func TestHoldsInVainOnSeveralNodes(t *testing.T) {
	j := pending(7, two, 100*time.Hour)
	var nodes []schedule.Node
	for i := range 3 * holdsAtOnce {
		nodes = append(nodes, schedule.Node{Name: fmt.Sprintf("n%02d", i), Partitions: []string{"gpu"}, Up: true, GPUs: 4})
	}
	v, at, held := Vains{}, now, map[string]int{}
	var last string
	hold := func() bool {
		in := Input{Queue: []schedule.Job{j}, Nodes: nodes, After: time.Minute, Now: at, Vains: v}
		d, ok := Decide(in)
		if !ok {
			return false
		}
		held[d.Node]++
		last = d.Node
		word := schedule.Node{Name: d.Node, Extra: vainExtra(d.Hold)}
		at = at.Add(HoldTimeout)
		v.Look(in.Queue, []schedule.Node{word}, at, time.Minute)
		return true
	}
	for range holdsAtOnce {
		if !hold() {
			t.Fatalf("no hold; before on %v", held)
		}
	}
	if len(held) != holdsAtOnce || hold() {
		t.Errorf("holds on %v", held)
	}
	if at = at.Add(longestRest); !hold() || hold() || last != "n00" {
		t.Errorf("a day later: holds on %v", held)
	}
}

// A node that cannot keep a hold says so at once, and is skipped; others that ask for the same are
// not. That is no fault of the job's: any number of nodes may.
func TestHoldsRefused(t *testing.T) {
	queue := []schedule.Job{pending(7, two, 100*time.Hour), pending(8, two, 99*time.Hour)}
	var nodes []schedule.Node
	for i := range 3 * holdsAtOnce {
		nodes = append(nodes, schedule.Node{Name: fmt.Sprintf("n%02d", i), Partitions: []string{"gpu"}, Up: true, GPUs: 4})
	}
	v, at := Vains{}, now
	for i := range nodes {
		in := Input{Queue: queue, Nodes: nodes, After: time.Minute, Now: at, Vains: v}
		d, ok := Decide(in)
		if !ok || d.Job.ID != 7 || d.Node != nodes[i].Name {
			t.Fatalf("hold %d: %+v %v", i, d, ok)
		}
		at = at.Add(time.Minute)
		v.Look(queue, []schedule.Node{{Name: d.Node, Extra: vainExtra(d.Hold)}}, at, time.Minute)
	}
	in := Input{Queue: queue, Nodes: nodes, After: time.Minute, Now: at, Vains: v}
	if d, ok := Decide(in); !ok || d.Job.ID != 8 {
		t.Errorf("all nodes have refused job 7: %+v, %v", d.Job.ID, ok)
	}
	in.Now = at.Add(VainAfter) // a GPU that was not read, or an MPS fault, may be over
	if d, ok := Decide(in); !ok || d.Job.ID != 7 {
		t.Errorf("later: %+v, %v", d.Job.ID, ok)
	}
}

// Two nodes may say so of one job before the steward looks.
func TestTwoNodesSayThatHoldsWereInVain(t *testing.T) {
	v, j := Vains{}, pending(7, two, 100*time.Hour)
	nodes := append(saysOf("n2", 7, time.Minute), saysOf("n1", 7, 40*time.Minute)...)
	if v.Look([]schedule.Job{j}, nodes, now, time.Minute); !restsOn(v, "n1", &j, now) || !restsOn(v, "n2", &j, now) {
		t.Errorf("%+v", v)
	}
}

// A user's many jobs, or a job that is submitted or changed again and again, do not have a node kept empty for ever:
// the user's holds in vain are counted together. The first says nothing of the user's other jobs, and none of others'.
func TestHoldsInVainOfOneUser(t *testing.T) {
	nodes := []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4}}
	job := func(id uint32) schedule.Job {
		return with(pending(id, two, 100*time.Hour), func(j *schedule.Job) { j.UID = 1000 })
	}
	honest := with(pending(999, two, time.Hour), func(j *schedule.Job) { j.UID, j.Priority = 2000, 1 })
	for name, queued := range map[string]func(hold int) []schedule.Job{
		"many jobs": func(int) (list []schedule.Job) {
			for id := range uint32(50) {
				list = append(list, job(10+id))
			}
			return list
		},
		"submitted again": func(hold int) []schedule.Job { return []schedule.Job{job(uint32(10 + hold))} },
		"changed": func(hold int) []schedule.Job {
			return []schedule.Job{with(job(10), func(j *schedule.Job) { j.MiB += int64(hold) })}
		},
	} {
		v, at, holds, others := Vains{}, now, 0, 0
		for at.Before(now.Add(24 * time.Hour)) {
			in := Input{Queue: queued(holds), Nodes: nodes, After: time.Minute, Now: at, Vains: v}
			d, ok := Decide(in)
			in.Queue = append(in.Queue, honest)
			if o, found := Decide(in); found && o.Job.UID == honest.UID {
				others++
			}
			at = at.Add(5 * time.Minute)
			var said []schedule.Node
			if ok {
				holds++
				at = at.Add(HoldTimeout - VainAfter)
				said = []schedule.Node{{Name: d.Node, Extra: vainExtra(d.Hold)}}
			}
			v.Look(in.Queue, said, at, time.Minute)
		}
		if holds < 2 || holds > 12 || others == 0 {
			t.Errorf("%s: %d holds in a day, another user could have had %d", name, holds, others)
		}
	}
}
