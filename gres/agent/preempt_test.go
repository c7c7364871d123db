// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/config"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// preemptorWorld is a cluster where job 7 waits that may preempt job 1.
func preemptorWorld() (a *Agent, c *cluster, j *jobs) {
	const books = "gres:gpu:1,gres:carmau0:20480,gres:carmatotal:20480"
	c = &cluster{
		rules: schedule.Preemption{ByPartition: true, Rules: map[string]schedule.PreemptRule{
			"high": {Tier: 9, Mode: "REQUEUE"}, "gpu": {Tier: 1, Mode: "REQUEUE"}}},
		nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu", "high"}, Up: true, Lives: true, GPUs: 1}},
		queue: []schedule.Job{
			{ID: 1, State: jobstate.Running, Partition: "gpu", Nodes: "n1", TresPerNode: books, NodeCount: 1,
				Start: time.Now().Add(-time.Hour)},
			{ID: 7, State: jobstate.Pending, Reason: jobstate.Resources, Partition: "high", TresPerNode: books, NodeCount: 1},
		},
	}
	j = &jobs{known: map[uint32]sctl.Job{7: {ID: 7, State: jobstate.Pending}}, words: sctl.Words{TresPerNode: books}}
	a = newAgent()
	a.Node, a.Cluster, a.Jobs = "n1", c, j
	a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536}, "high": {GPUMemMiB: 40536}}
	a.steward.Store(true)
	return a, c, j
}

// updates are the changes of jobs since the last time.
func updates(c *cluster) string {
	list := slices.DeleteFunc(slices.Clone(c.calls), func(call string) bool { return !strings.HasPrefix(call, "update ") })
	c.calls = nil
	return strings.Join(list, "; ")
}

// A job that waits at two looks is sent. Where it cannot run there, or its user holds it,
// it is let go at once and not sent again for a while: it would keep the node from others,
// and itself from the nodes where it could run.
func TestSentInVain(t *testing.T) {
	a, c, j := preemptorWorld()
	look := func(at time.Duration) string {
		a.preemptors.took = 0
		a.sendPreemptors(t.Context(), at)
		return updates(c)
	}
	const sent = "update 7 gres:gpu:1,gres:carmau0:2,gres:carmatotal:20480"
	const back = "update 7 gres:gpu:1,gres:carmau0:20480,gres:carmatotal:20480"
	if first, second := look(time.Second), look(5*time.Second); first != "" || second != sent {
		t.Fatalf("%q, then %q", first, second)
	}
	was := c.queue[1].TresPerNode
	c.queue[1].TresPerNode, c.queue[1].ReqNodes = strings.TrimPrefix(sent, "update 7 "), "n1"
	j.words.TresPerNode = c.queue[1].TresPerNode
	if got := look(9 * time.Second); got != "" {
		t.Errorf("while it waits for room there: %q", got)
	}
	c.queue[1].Reason = "BadConstraints"
	if got := look(13 * time.Second); got != back {
		t.Errorf("when it cannot run there: %q", got)
	}
	c.queue[1].TresPerNode, c.queue[1].ReqNodes, c.queue[1].Reason = was, "", jobstate.Resources
	j.words.TresPerNode = was
	if got := look(17*time.Second) + look(21*time.Second); got != "" {
		t.Errorf("it is sent again at once: %q", got)
	}
	if got := look(vainFor + time.Minute); got != sent {
		t.Errorf("much later: %q", got)
	}
}

// Of an array whose first task was sent in vain the others are not sent.
func TestTasksOfAnArraySentInVain(t *testing.T) {
	a, c, j := preemptorWorld()
	task := &c.queue[1]
	task.ArrayJobID, task.ArrayTask = 7, 0 // 7 is the array's; the task that is split off has 8
	j.known[8] = sctl.Job{ID: 8, State: jobstate.Pending, ArrayJobID: 7}
	look := func(at time.Duration) string {
		a.preemptors.took = 0
		a.sendPreemptors(t.Context(), at)
		return updates(c)
	}
	if got := look(time.Second) + look(5*time.Second); got == "" {
		t.Fatal("nothing is sent")
	}
	next := *task
	sent := next
	sent.ID, sent.ReqNodes, sent.Reason = 8, "n1", "BadConstraints"
	sent.TresPerNode = "gres:gpu:1,gres:carmau0:2,gres:carmatotal:20480"
	next.ArrayTask = 1
	c.queue = []schedule.Job{c.queue[0], sent, next}
	look(9 * time.Second) // is let go
	c.queue = []schedule.Job{c.queue[0], next}
	if got := look(13*time.Second) + look(17*time.Second); got != "" {
		t.Errorf("the next task is sent: %q", got)
	}
}

// slurmctld makes a change of a heterogeneous job's leader one of all components.
func TestHetjobsAreNotSent(t *testing.T) {
	a, c, j := preemptorWorld()
	j.known[7] = sctl.Job{ID: 7, State: jobstate.Pending, HetJobID: 7}
	for at := range 3 {
		a.sendPreemptors(t.Context(), time.Duration(1+4*at)*time.Second)
		if got := updates(c); got != "" {
			t.Errorf("%q", got)
		}
	}
}
