// SPDX-License-Identifier: Apache-2.0

package steward

import (
	"carma/slurmbridge/schedule"
	"fmt"
	"testing"
	"time"
)

// A job that may preempt others is sent to a node where enough GPUs come free whichever
// these have, one to a node, and is let go when it does not start there.
func TestPreempt(t *testing.T) {
	rules := schedule.Preemption{ByPartition: true, Rules: map[string]schedule.PreemptRule{"high": {Tier: 9,
		Mode: "REQUEUE"}, "low": {Tier: 1, Mode: "REQUEUE"}, "rec": {Tier: 9, Mode: "REQUEUE"}}}
	ours := func(name string) bool { return name == "high" || name == "low" }
	nodes := []schedule.Node{
		{Name: "n0", Partitions: []string{"high", "low"}, GPUs: 4}, // down
		{Name: "n1", Partitions: []string{"high", "low"}, Up: true, GPUs: 2},
		{Name: "n2", Partitions: []string{"high", "low"}, Up: true, GPUs: 2},
	}
	id := uint32(100)
	running := func(partition, node string, b books) schedule.Job {
		id++
		return schedule.Job{ID: id, State: "RUNNING", Partition: partition, Nodes: node, NodeCount: 1, GPUs: b.gpus,
			MiB: b.mib}
	}
	one, both := whole, books{2, 20480}
	waiting := func(id uint32, partition string, b books) schedule.Job {
		return schedule.Job{ID: id, State: "PENDING", Reason: "Constraints", Partition: partition, NodeCount: 1,
			GPUs: b.gpus, MiB: b.mib}
	}
	sizes := Sizes{FullMiB: map[string]int64{"high": 40536, "low": 40536}, GPUs: map[string]int{"high": 2, "low": 2}}
	with := func(j schedule.Job, change func(*schedule.Job)) schedule.Job { change(&j); return j }
	full := []schedule.Job{running("high", "n1", one), running("low", "n1", one), running("low", "n2", one),
		running("low", "n2", one)}
	for _, c := range []struct {
		name  string
		queue []schedule.Job
		want  string
	}{
		{"to the node with fewer that stay", append(full[:4:4], waiting(1, "high", one)), "[1 n2]"},
		{"one to a node", append(full[:4:4], waiting(1, "high", one), waiting(2, "high", one), waiting(3, "high", one)),
			"[1 n2 2 n1]"},
		{"two GPUs", append(full[:4:4], waiting(1, "high,low", both)),
			"[1 n2]"},
		{"all GPUs of a node, for which slurmctld preempts", append(full[:4:4], waiting(1, "high", books{2, 40536})), "[]"},
		{"the same tier", append(full[:4:4], waiting(1, "low", one)), "[]"},
		{"a recovery partition", append(full[:4:4], waiting(1, "rec", one)), "[]"},
		{"one that waits for its user", append(full[:4:4], with(waiting(1, "high", one),
			func(j *schedule.Job) { j.Reason = "JobHeldUser" })), "[]"},
		{"one that names its node", append(full[:4:4], with(waiting(1, "high", one),
			func(j *schedule.Job) { j.ReqNodes = "n1" }), waiting(2, "high", one)), "[1 n1 2 n2]"},
		{"one that names several", append(full[:4:4], with(waiting(1, "high", one),
			func(j *schedule.Job) { j.ReqNodes = "n[1-2]" })), "[]"},
		{"none who can go", append(full[:2:2],
			with(full[2], func(j *schedule.Job) { j.State, j.End = "COMPLETING", time.Now().Add(-time.Hour) }),
			with(full[3], func(j *schedule.Job) { j.State, j.End = "COMPLETING", time.Now().Add(-time.Hour) }),
			waiting(1, "high", one)), "[1 n1]"},
		{"nobody to preempt", []schedule.Job{running("high", "n1", both), running("high", "n2", both),
			waiting(1, "high", one)}, "[]"},
	} {
		list := []string{}
		for _, p := range Preempt(c.queue, nodes, rules, ours, sizes, time.Now()) {
			list = append(list, fmt.Sprint(p.ID, " ", p.Node))
		}
		if got := fmt.Sprint(list); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
	nodes[2].Extra = `{"carmahold":"2:1:40536:1:preempt:1001"}`
	queue := append(full[:4:4], waiting(1, "high", one), waiting(2, "high", one))
	if sent := Preempt(queue, nodes, rules, ours, sizes, time.Now()); len(sent) != 1 || sent[0].Node != "n1" {
		t.Errorf("beside one on its way: %+v", sent)
	}
}

// Users decide how many jobs wait: 10,000 that nothing can be done for, of 2,000 users, and 5,000
// nodes.
func BenchmarkPreempt(b *testing.B) {
	in := queueOf(0, 0, 5000)
	for i := range in.Queue {
		in.Queue[i].Partition = "low"
	}
	for i := range uint32(10000) {
		j := pending(2000000+i, two, 0)
		j.UID, j.Partition, j.QOS = 1000+i/5, "gpu", fmt.Sprint("q", i)
		in.Queue = append(in.Queue, j)
	}
	rules := schedule.Preemption{ByPartition: true, Rules: map[string]schedule.PreemptRule{"gpu": {Tier: 2,
		Mode: "REQUEUE"}, "low": {Tier: 1, Mode: "REQUEUE"}}}
	for b.Loop() {
		if sent := Preempt(in.Queue, in.Nodes, rules, func(string) bool { return true }, sizes, now); len(sent) != 0 {
			b.Fatal(sent)
		}
	}
}
