// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// preemptorWorld is a cluster where job 7 waits that may preempt job 1.
func preemptorWorld() (a *Agent, c *cluster, j *jobs) {
	c = &cluster{
		rules: schedule.Preemption{ByPartition: true, Rules: map[string]schedule.PreemptRule{
			"high": {Tier: 9, Mode: "REQUEUE"}, "gpu": {Tier: 1, Mode: "REQUEUE"}}},
		nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu", "high"}, Up: true, Lives: true, GPUs: 1,
			Extra: `{"carma1":0,"rack":4}`}},
		queue: []schedule.Job{
			{ID: 1, State: jobstate.Running, Partition: "gpu", Nodes: "n1", GPUs: 1, MiB: 20480, NodeCount: 1,
				Start: time.Now().Add(-time.Hour)},
			{ID: 7, State: jobstate.Pending, Reason: jobstate.Constraints, Partition: "high", UID: 1001, GPUs: 1,
				MiB: 20480, NodeCount: 1},
		},
	}
	j = &jobs{known: map[uint32]sctl.Job{7: {ID: 7, UID: 1001, State: jobstate.Pending}}}
	a = stewardOf(c, "n0")
	a.Jobs, a.Steward.Jobs = j, j
	a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536, GPUsPerNode: 1},
		"high": {GPUMemMiB: 40536, GPUsPerNode: 1}}
	a.Steward.is.Store(true)
	return a, c, j
}

// tellsN1 lets the steward look, and returns what n1 is told.
func tellsN1(t *testing.T, a *Agent, c *cluster, at time.Duration) string {
	a.Steward.preemptors.took, c.calls = 0, nil
	a.Steward.sendPreemptors(t.Context(), at)
	c.calls = slices.DeleteFunc(c.calls, func(call string) bool { return call == "nodes" || call == "queue" })
	return strings.Join(c.calls, "; ")
}

// A job that waits at two looks is sent. Where it cannot run there, or its user holds it,
// it is let go at once and not sent again for a while: it would keep the node from others.
func TestSentInVain(t *testing.T) {
	a, c, _ := preemptorWorld()
	const sent, back = "n1 keeps 1 for 7", "n1 keeps 0 for 0"
	if first, second := tellsN1(t, a, c, time.Second), tellsN1(t, a, c, 5*time.Second); first != "" || second != sent {
		t.Fatalf("%q, then %q", first, second)
	}
	if counts, _ := extra.Counts(c.nodes[0].Extra); counts["carma1u1001"] != 20480 || counts["carma1"] != 0 {
		t.Errorf("n1 has %s", c.nodes[0].Extra)
	}
	if got := tellsN1(t, a, c, 9*time.Second); got != "" {
		t.Errorf("while it waits for room there: %q", got)
	}
	c.queue[1].Reason = "Dependency"
	if got := tellsN1(t, a, c, 13*time.Second); got != back || c.nodes[0].Extra != `{"carma1":0,"rack":4}` {
		t.Errorf("when it cannot run there: %q, %s", got, c.nodes[0].Extra)
	}
	c.queue[1].Reason = jobstate.Constraints
	if got := tellsN1(t, a, c, 17*time.Second) + tellsN1(t, a, c, 21*time.Second); got != "" {
		t.Errorf("it is sent again at once: %q", got)
	}
	if got := tellsN1(t, a, c, vainFor+time.Minute); got != sent {
		t.Errorf("much later: %q", got)
	}
	if got := tellsN1(t, a, c, vainFor+time.Minute+sentFor); got != back {
		t.Errorf("it does not start: %q", got)
	}
}

// The hold stays as long as the job's Prolog is there, which preempts by it, and goes when the job has started, there
// or elsewhere, or has gone. So with one that another steward has placed.
func TestSentStarts(t *testing.T) {
	const back = "n1 keeps 0 for 0"
	for name, c := range map[string]struct {
		state  jobstate.State
		reason jobstate.Reason
		node   string
		want   string
	}{
		"in its Prolog":           {jobstate.Running, jobstate.InProlog, "n1", ""},
		"in its Prolog elsewhere": {jobstate.Running, jobstate.InProlog, "n2", back},
		"runs":                    {jobstate.Running, jobstate.None, "n1", back},
		"gone":                    {},
	} {
		for _, anew := range []bool{false, true} {
			a, slurm, _ := preemptorWorld()
			if got := tellsN1(t, a, slurm, time.Second) + tellsN1(t, a, slurm, 5*time.Second); got != "n1 keeps 1 for 7" {
				t.Fatal(got)
			}
			if anew {
				a.Steward.is.Store(false)
				tellsN1(t, a, slurm, 6*time.Second)
				a.Steward.is.Store(true)
			}
			if j := &slurm.queue[1]; name == "gone" {
				slurm.queue, c.want = slurm.queue[:1], back
			} else {
				j.State, j.Reason, j.Nodes = c.state, c.reason, c.node
			}
			if got := tellsN1(t, a, slurm, 9*time.Second); got != c.want {
				t.Errorf("%s, another steward %v: %q", name, anew, got)
			}
			if name == "in its Prolog" {
				if got := tellsN1(t, a, slurm, sentFor+time.Minute); got != "" {
					t.Errorf("a long Prolog: %q", got)
				}
			}
		}
	}
}

// Of an array whose first task was sent in vain the others are not sent.
func TestTasksOfAnArraySentInVain(t *testing.T) {
	a, c, j := preemptorWorld()
	task := &c.queue[1]
	task.ArrayJobID, task.ArrayTask = 7, 0 // 7 is the array's; the task that is split off has 8
	j.known[8] = sctl.Job{ID: 8, UID: 1001, State: jobstate.Pending, ArrayJobID: 7}
	if got := tellsN1(t, a, c, time.Second) + tellsN1(t, a, c, 5*time.Second); got == "" {
		t.Fatal("nothing is sent")
	}
	next := *task
	sent := next
	sent.ID, sent.Reason = 8, "Dependency"
	next.ArrayTask = 1
	c.queue = []schedule.Job{c.queue[0], sent, next}
	tellsN1(t, a, c, 9*time.Second) // is let go
	c.queue = []schedule.Job{c.queue[0], next}
	if got := tellsN1(t, a, c, 13*time.Second) + tellsN1(t, a, c, 17*time.Second); got != "" {
		t.Errorf("the next task is sent: %q", got)
	}
}

// A Prolog preempts for no component of a heterogeneous job.
func TestHetjobsAreNotSent(t *testing.T) {
	a, c, j := preemptorWorld()
	j.known[7] = sctl.Job{ID: 7, UID: 1001, State: jobstate.Pending, HetJobID: 7}
	for at := range 3 {
		if got := tellsN1(t, a, c, time.Duration(1+4*at)*time.Second); got != "" {
			t.Errorf("%q", got)
		}
	}
}
