// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"slices"
	"testing"
	"time"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
)

// bad is a job that slurmctld holds.
func bad(id uint32, b books, waited time.Duration) schedule.Job {
	j := pending(id, b, waited)
	j.Reason, j.Priority, j.NodeCount = "BadConstraints", 0, 1
	return j
}

func TestDue(t *testing.T) {
	node := func(name, partition, features, text string) schedule.Node {
		return schedule.Node{Name: name, Partitions: []string{partition}, Lives: true, Up: true, GPUs: 4,
			Features: features, Extra: text}
	}
	const full, free = `{"carma1":0,"carma2":0,"carma3":0,"carma4":0,"carmaall":4}`,
		`{"carma1":40536,"carma2":40536,"carma3":40536,"carma4":40536,"carmaall":4}`
	down := node("n2", "gpu", "", free)
	down.Up = false
	type change func(*schedule.Job)
	with := func(j schedule.Job, c change) schedule.Job {
		c(&j)
		return j
	}
	reason := func(word jobstate.Reason) change { return func(j *schedule.Job) { j.Reason = word } }
	short := bad(7, half, time.Minute)
	list := func(n ...schedule.Node) []schedule.Node { return n }
	alone := func(features, text string) []schedule.Node { return list(node("n1", "gpu", features, text)) }
	one := alone("", free)
	two := list(node("n1", "gpu", "", full), node("n2", "gpu", "", free))
	named := func(node string) schedule.Job {
		return with(short, func(j *schedule.Job) { j.ReqNodes = node })
	}
	featured := with(short, func(j *schedule.Job) { j.Features = "a" })
	for name, c := range map[string]struct {
		job   schedule.Job
		nodes []schedule.Node
		want  bool
	}{
		"another partition has room":     {short, list(node("n1", "gpu", "", full), node("n2", "x", "", free)), false},
		"the own partition has room":     {short, two, true},
		"a node that is down has room":   {short, list(down), false},
		"another node than the named":    {named("n1"), two, false},
		"the named node":                 {named("n[2-3]"), list(node("n2", "gpu", "", free)), true},
		"a node without the feature":     {featured, alone("ab", free), false},
		"a node with the feature":        {featured, alone("b,a", free), true},
		"what a user's own GPUs give":    {short, alone("", `{"carma1":0,"carma1u1000":20480}`), true},
		"what another's GPUs give":       {short, alone("", `{"carma1":0,"carma1u1001":20480}`), false},
		"all GPUs of a node":             {bad(7, all, time.Minute), alone("", full), true},
		"all GPUs where one is broken":   {bad(7, all, time.Minute), alone("", `{"carmaall":0}`), false},
		"one node where two are needed":  {with(short, func(j *schedule.Job) { j.NodeCount = 2 }), one, false},
		"no booking":                     {with(short, func(j *schedule.Job) { j.MiB = 0 }), one, false},
		"a hold of the user":             {with(short, reason("JobHeldUser")), one, false},
		"waits as it should":             {with(short, reason("Constraints")), one, false},
		"a node's Extra is others' text": {short, alone("", "rack 4"), false},
	} {
		in := Input{Sizes: sizes, Queue: []schedule.Job{c.job}, Nodes: c.nodes, Now: now}
		due := Releases{}.Due(in, extra.Tags{})
		if (len(due) == 1) != c.want {
			t.Errorf("%s: %v", name, due)
		}
	}
}

// A job that comes back held is released more and more rarely, and a user's thousand jobs leave others their turn.
func TestDueIsBounded(t *testing.T) {
	node := schedule.Node{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4, Extra: `{"carma1":40536}`}
	in := Input{Sizes: sizes, Now: now, Nodes: []schedule.Node{node}}
	for i := range 1000 {
		in.Queue = append(in.Queue, bad(uint32(i+1), half, time.Hour))
	}
	late := bad(2000, half, time.Minute)
	late.UID = 1001
	in.Queue = append(in.Queue, late)
	r := Releases{}
	due := r.Due(in, extra.Tags{})
	if len(due) != releasesOfUser+1 || due[releasesOfUser].ID != 2000 {
		t.Errorf("%d released: %v", len(due), due)
	}
	in.Queue = in.Queue[:1]
	var tries []time.Duration
	for range 3600 {
		in.Now = in.Now.Add(time.Second)
		if len(r.Due(in, extra.Tags{})) > 0 {
			tries = append(tries, in.Now.Sub(now))
		}
	}
	want := []time.Duration{10 * time.Second, 30 * time.Second, 70 * time.Second, 150 * time.Second, 310 * time.Second,
		610 * time.Second}
	if !slices.Equal(tries[:len(want)], want) || len(tries) != 15 {
		t.Errorf("tried again after %v", tries)
	}
	// A job that has not been held for a while is a new one.
	in.Queue, in.Now = nil, in.Now.Add(time.Hour)
	if r.Due(in, extra.Tags{}); len(r) != 0 {
		t.Errorf("%d remembered", len(r))
	}
}

// slurmctld tells no priority of a held job: a small job passed by later jobs gets a hold all the same.
func TestHoldForAHeldJob(t *testing.T) {
	nodes := []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, GPUs: 4}}
	for _, c := range []struct {
		id   uint32
		ago  time.Duration // the start of another job
		want bool
	}{{8, time.Minute, true}, {6, time.Minute, false}, {8, 4 * time.Hour, false}} {
		other := running(c.id, "n1", time.Hour)
		other.Priority, other.Start, other.GPUs, other.MiB = 100, now.Add(-c.ago), 1, 10240
		before := running(2, "n1", time.Hour)
		before.Priority, before.Start, before.GPUs, before.MiB = 1, now.Add(-time.Minute), 1, 10240
		in := Input{Queue: []schedule.Job{bad(7, half, 3*time.Hour), other, before}, Sizes: sizes, Nodes: nodes,
			After: 2 * time.Hour, Now: now}
		if d, ok := Decide(in); ok != c.want || ok && d.Hold.JobID != 7 {
			t.Errorf("job %d has started %s ago: %+v, %v", c.id, c.ago, d, ok)
		}
	}
}
