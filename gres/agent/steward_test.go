// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
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
	whole error // of Split
	calls []string
}

// node is one in the answers.
func (c *cluster) node(name string) *schedule.Node {
	for i := range c.nodes {
		if c.nodes[i].Name == name {
			return &c.nodes[i]
		}
	}
	c.nodes = append(c.nodes, schedule.Node{Name: name})
	return &c.nodes[len(c.nodes)-1]
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

func (c *cluster) Node(_ context.Context, name string) (string, error) {
	return c.node(name).Extra, c.err
}

func (c *cluster) SetNodeExtra(_ context.Context, name, text string) error {
	before, _ := steward.HoldIn(c.node(name).Extra)
	after, _ := steward.HoldIn(text)
	c.node(name).Extra = text
	if before != after {
		c.calls = append(c.calls, fmt.Sprintf("%s keeps %d for %d", name, after.GPUs, after.JobID))
	}
	return c.err
}

// ownNode writes in the Extra of the agent's own node.
type ownNode struct {
	*cluster
	name string
}

func (o ownNode) SetWords(ctx context.Context, words map[string]string) error {
	text, err := steward.SetWords(o.node(o.name).Extra, words)
	if err != nil {
		return err
	}
	return o.SetNodeExtra(ctx, o.name, text)
}

func (o ownNode) PublishIf(context.Context, lease.Snapshot) error { return nil }

func (o ownNode) CompareIf(context.Context, lease.Snapshot, time.Duration, int) (string, bool, error) {
	return o.node(o.name).Extra, true, nil
}

// stewardOf is an agent on a node of the cluster.
func stewardOf(c *cluster, name string) *Agent {
	a := newAgent()
	a.Node, a.Publisher, a.Ledger = name, ownNode{c, name}, &ledger{}
	wire(a)
	a.Steward = &Steward{Node: name, Config: &a.Config, Log: a.Log, Cluster: c, Own: a.Publisher}
	a.Steward.publishing = &a.publishing
	a.Config.Partition = map[string]config.Partition{"gpu": {GPUMemMiB: 40536, GPUsPerNode: 4}}
	a.publishing.Store(true)
	return a
}

func (c *cluster) Split(_ context.Context, j schedule.Job) (uint32, error) {
	c.calls = append(c.calls, fmt.Sprint("split ", j.ArrayTask))
	return j.ID + 1, errors.Join(c.err, c.whole)
}

func (c *cluster) ReleaseBad(_ context.Context, j schedule.Job) error {
	c.calls = append(c.calls, fmt.Sprint("release ", j.ID))
	return c.err
}

func (c *cluster) Preemption(context.Context) (schedule.Preemption, error) { return c.rules, c.err }

func TestKeepSteward(t *testing.T) {
	old := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Constraints",
		Eligible: time.Now().Add(-3 * time.Hour), GPUs: 2, MiB: 40536}
	nodes := []schedule.Node{{Name: "n0", Partitions: []string{"gpu"}, Up: true, Lives: true}, // without an agent
		{Name: "n1", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4},
		{Name: "n2", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4}}
	task, named := old, old
	task.ArrayJobID, task.ArrayTask = 7, 3
	named.ReqNodes = "n2"
	down, foreign := slices.Clone(nodes), slices.Clone(nodes)
	down[1].Up, down[1].Lives = false, false
	foreign[2].Extra = "GPU node of group 7"
	for _, c := range []struct {
		name, node string
		cluster    cluster
		want       []string
	}{
		{"the first node", "n1", cluster{queue: []schedule.Job{old}, nodes: nodes},
			[]string{"nodes", "queue", "n1 keeps 2 for 7"}},
		{"a task of an array", "n1", cluster{queue: []schedule.Job{task}, nodes: nodes},
			[]string{"nodes", "queue", "split 3", "n1 keeps 2 for 8"}},
		{"names its node", "n1", cluster{queue: []schedule.Job{named}, nodes: nodes},
			[]string{"nodes", "queue", "n2 keeps 2 for 7"}},
		{"names a node whose Extra is another's", "n1", cluster{queue: []schedule.Job{named}, nodes: foreign},
			[]string{"nodes", "queue"}},
		{"nobody waits", "n1", cluster{nodes: nodes}, []string{"nodes", "queue"}},
		{"the second node", "n2", cluster{queue: []schedule.Job{old}, nodes: nodes}, []string{"nodes"}},
		{"the second node, the first is down", "n2", cluster{queue: []schedule.Job{old}, nodes: down},
			[]string{"nodes", "queue", "n2 keeps 2 for 7"}},
		{"no slurmctld", "n1", cluster{nodes: nodes, err: errors.New("no connection")}, []string{"nodes"}},
	} {
		c.cluster.nodes = slices.Clone(c.cluster.nodes)
		a := stewardOf(&c.cluster, c.node)
		a.Steward.keep(t.Context(), 1)
		if !slices.Equal(c.cluster.calls, c.want) {
			t.Errorf("%s: %v, want %v", c.name, c.cluster.calls, c.want)
		}
	}
}

// A user with a request that slurmctld refuses to change comes again after a while, and stands in nobody's way
// meanwhile, however many such requests the user has.
func TestKeepStewardPassesOverRefusedRequests(t *testing.T) {
	task := schedule.Job{ID: 7, ArrayJobID: 7, ArrayTask: 3, State: "PENDING", Partition: "gpu", Reason: "Constraints",
		Priority: 2, Eligible: time.Now().Add(-3 * time.Hour), GPUs: 2, MiB: 40536}
	again, next := task, task
	again.ID, again.ArrayJobID = 8, 8
	next.ID, next.ArrayJobID, next.ArrayTask, next.Priority, next.UID = 9, 0, 0, 1, 1001
	queue := []schedule.Job{task, again, next}
	c := &cluster{queue: queue, nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"},
		Up: true, Lives: true, GPUs: 4}}, whole: errors.New("invalid generic resource specification")}
	a := stewardOf(c, "n1")
	for i := range 3 {
		a.Steward.rested, c.nodes[0].Extra = 0, ""
		a.Steward.keep(t.Context(), 1+time.Duration(i)*steward.VainAfter*2/3)
	}
	want := []string{"nodes", "queue", "split 3", "nodes", "queue", "n1 keeps 2 for 9", "nodes", "queue", "split 3"}
	if !slices.Equal(c.calls, want) {
		t.Errorf("%v, want %v", c.calls, want)
	}
}

// A node that has a hold by now keeps that.
func TestPlaceHoldOverAnother(t *testing.T) {
	c := &cluster{nodes: []schedule.Node{{Name: "n2", Extra: `{"carmahold":"5:2:0:1"}`}}}
	a := stewardOf(c, "n1")
	if err := a.Steward.placeHold(t.Context(), "n2", steward.Hold{JobID: 7, GPUs: 1}); err == nil || len(c.calls) != 0 {
		t.Errorf("%v, %v", err, c.calls)
	}
}

// A job that was returned to the queue between two looks is not new to the second.
func TestKeepStewardRemembers(t *testing.T) {
	j := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Constraints",
		Eligible: time.Now().Add(-119 * time.Minute), GPUs: 2, MiB: 40536}
	c := &cluster{queue: []schedule.Job{j}, nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true,
		Lives: true, GPUs: 4}}}
	a := stewardOf(c, "n1")
	a.Steward.keep(t.Context(), 1)
	c.queue = []schedule.Job{j}
	c.queue[0].Eligible = time.Now().Add(-time.Second)
	a.Config.Hold.After = config.Duration(118 * time.Minute)
	a.Steward.keep(t.Context(), time.Minute)
	if want := []string{"nodes", "queue", "nodes", "queue", "n1 keeps 2 for 7"}; !slices.Equal(c.calls, want) {
		t.Errorf("%v, want %v", c.calls, want)
	}
}

// Nor is it to another steward, by what the first has left in the Extra of its node.
func TestKeepStewardHandsOver(t *testing.T) {
	j := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Constraints",
		Eligible: time.Now().Add(-119 * time.Minute), GPUs: 2, MiB: 40536}
	c := &cluster{nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4,
		Extra: `{"carma1":40536,"rack":4}`},
		{Name: "n2", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4, Extra: `{"rack":5}`}}}
	minute := time.Duration(0)
	look := func(a *Agent, after time.Duration) {
		a.Config.Hold.After = config.Duration(after)
		c.queue = []schedule.Job{j}
		minute += time.Minute
		a.Steward.keep(t.Context(), minute)
	}
	first := stewardOf(c, "n1")
	look(first, 3*time.Hour)
	j.Eligible, j.Submitted, j.Restarts = time.Now().Add(-time.Second), time.Now().Add(-time.Minute), 1
	look(first, 3*time.Hour)
	if word := extra.Word(c.nodes[0].Extra, extra.Waits); !strings.HasPrefix(word, "7:0:") {
		t.Fatalf("left: %s", c.nodes[0].Extra)
	}
	c.nodes[0].Up, c.nodes[0].Lives, c.calls = false, false, nil
	look(stewardOf(c, "n2"), 118*time.Minute)
	if !slices.Equal(c.calls, []string{"nodes", "queue", "n2 keeps 2 for 7"}) {
		t.Errorf("%v", c.calls)
	}
	left := extra.Word(c.nodes[1].Extra, extra.Waits)
	if c.nodes[0].Extra != `{"carma1":40536,"rack":4}` || !strings.HasPrefix(left, "7:0:") {
		t.Errorf("then n1 has %s, n2 %s", c.nodes[0].Extra, c.nodes[1].Extra)
	}
}

// Most agents of a large cluster ask who the steward is once an hour.
func TestKeepStewardOfManyNodes(t *testing.T) {
	c := &cluster{}
	for i := range 9 {
		c.nodes = append(c.nodes, schedule.Node{Name: fmt.Sprint("n", i), Up: i > 4, Lives: i > 4, GPUs: 1})
	}
	a := stewardOf(c, "n8") // the fourth that is up
	for i := range 100 {
		a.Steward.keep(t.Context(), time.Duration(i+1)*time.Minute)
	}
	if len(c.calls) != 2 || slices.Contains(c.calls, "queue") {
		t.Errorf("%v", c.calls)
	}
	c.calls, a = nil, stewardOf(c, "n5") // the first that is up, after five that are not
	a.Steward.keep(t.Context(), time.Second)
	if a.Steward.keep(t.Context(), time.Minute); !slices.Equal(c.calls, []string{"nodes", "queue"}) {
		t.Errorf("%v", c.calls)
	}
}

// One of many looks when it starts, and then every second hour.
func TestKeepStewardOfThousands(t *testing.T) {
	c := &cluster{}
	for i := range 1000 {
		c.nodes = append(c.nodes, schedule.Node{Name: fmt.Sprint("n", i), Up: true, Lives: true, GPUs: 1})
	}
	a := stewardOf(c, "n640")
	for i := range 15 * 60 {
		a.Steward.keep(t.Context(), time.Duration(i+1)*time.Minute)
	}
	if len(c.calls) != 8 || a.Steward.nodes.Load() != 1000 {
		t.Errorf("%v, %d nodes", c.calls, a.Steward.nodes.Load())
	}
}

// Agents that start together look at all nodes at different moments; the first nodes' agents look at once.
func TestFirstLooksComeApart(t *testing.T) {
	const nodes = 100
	c := &cluster{}
	for i := range nodes {
		c.nodes = append(c.nodes, schedule.Node{Name: fmt.Sprintf("n%02d", i), Up: true, Lives: true, GPUs: 1})
	}
	most := 0
	var agents []*Agent
	for _, n := range c.nodes {
		agents = append(agents, stewardOf(c, n.Name))
	}
	for second := range nodes/firstLooksPerSecond + 1 {
		c.calls = nil
		for i, a := range agents {
			before := len(c.calls)
			a.Steward.keep(t.Context(), time.Hour+time.Duration(second)*time.Second)
			if looked := len(c.calls) > before; second == 0 && looked != (i < stewards) {
				t.Errorf("agent %d looks at its start: %v", i, looked)
			}
		}
		most = max(most, len(c.calls))
	}
	for i, a := range agents {
		if a.Steward.ranked == 0 {
			t.Errorf("agent %d has never looked", i)
		}
	}
	if most > 3*firstLooksPerSecond {
		t.Errorf("%d questions in a second", most)
	}
}

func TestFollowExtra(t *testing.T) {
	readings := []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40536}}, {GPU: gres.GPU{UUID: "b", TotalMiB: 40536}}}
	fresh := extraOf(steward.Hold{JobID: 7, GPUs: 2, MiB: 20480, Since: time.Now()})
	whole := extraOf(steward.Hold{JobID: 7, GPUs: 1, Since: time.Now()})
	many := extraOf(steward.Hold{JobID: 7, GPUs: 3, MiB: 20480, Since: time.Now()})
	late := extraOf(steward.Hold{JobID: 7, GPUs: 2, Since: time.Now().Add(-24 * time.Hour)})
	sent := extraOf(steward.Hold{JobID: 7, GPUs: 2, MiB: 20480, Since: time.Now(), Preempts: "1000"})
	for name, c := range map[string]struct {
		extra  string
		state  string
		holds  []lease.Hold
		ledger []string
		slurm  []string
	}{
		"no word":               {`{"rack":4}`, "PENDING", nil, nil, nil},
		"no object":             {"rack", "PENDING", nil, nil, nil},
		"sent to preempt":       {sent, "PENDING", nil, nil, nil},
		"preempts":              {sent, "RUNNING Prolog", []lease.Hold{{UUID: "a", JobID: 7}}, nil, nil},
		"sent, has started":     {sent, "RUNNING", nil, []string{"drop 7"}, []string{"n1 keeps 0 for 0"}},
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
		l, slurm := &ledger{}, &cluster{nodes: []schedule.Node{{Name: "n1", Extra: c.extra}}}
		a := stewardOf(slurm, "n1")
		a.Ledger = l
		wire(a)
		known := map[uint32]sctl.Job{}
		if c.state != "" {
			state, reason, _ := strings.Cut(c.state, " ")
			known[7] = sctl.Job{State: jobstate.State(state), Reason: jobstate.Reason(reason), UID: 1000}
			if state == "PENDING" {
				known[7] = sctl.Job{State: jobstate.State(state), Reason: jobstate.Reason(cmp.Or(reason, "Resources")), UID: 1000}
			}
		}
		a.Jobs = &jobs{known: known}
		wire(a)
		if c.state == "?" {
			a.Jobs = &jobs{err: errors.New("no connection")}
			wire(a)
		}
		if name == "a bound on slowdown" {
			a.Thresholds.MaxSlowdown = 1.5
			wire(a)
		}
		readings := slices.Clone(readings)
		if name == "held for others" { // not for long
			readings[0].HeldFor, c.holds = 8, []lease.Hold{{UUID: "a", JobID: 8}}
		}
		a.Offers.followExtra(t.Context(), c.extra, lease.Snapshot{Readings: readings, Holds: c.holds,
			Leases: []gres.Lease{{UUID: "a", UID: 1000}}}, nil)
		if !slices.Equal(l.calls, c.ledger) || !slices.Equal(slurm.calls, c.slurm) {
			t.Errorf("%s: ledger %v, slurmctld %v; want %v, %v", name, l.calls, slurm.calls, c.ledger, c.slurm)
		}
		// The steward is to look for another node.
		is := slurm.node("n1").Extra
		if said := strings.HasPrefix(extra.Word(is, extra.Vain), "7:"); said != (name == "too many") {
			t.Errorf("%s: %q", name, is)
		}
		if counts, _ := extra.Counts(is); name == "sent, has started" && len(counts) > 0 {
			t.Errorf("%s: its count is left: %s", name, is)
		}
	}
}

// extraOf is the Extra of a node with a hold.
func extraOf(h steward.Hold) string {
	text, err := steward.SetWords(`{"rack":4}`, map[string]string{extra.Hold: h.String()})
	if err != nil {
		panic(err)
	}
	return text
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

// A hold ends, in vain, after minutes of offers, and the node says so. A hold was not in vain where the user's doing
// ended the hold, or where the hold's time is over and the job was just returned to the queue.
func TestHoldInVain(t *testing.T) {
	decided := time.Now().Add(-31 * time.Minute)
	hold := steward.Hold{JobID: 7, GPUs: 1, Since: decided}
	waits := func(reason jobstate.Reason) sctl.Job { return sctl.Job{State: "PENDING", Reason: reason} }
	on2, later := waits("Resources"), waits("BeginTime")
	on2.Nodes, later.Restarts = 2, 1
	soon, tomorrow, on1 := on2, on2, waits("Resources")
	soon.Start, tomorrow.Start = time.Now().Add(20*time.Minute), time.Now().Add(20*time.Hour)
	on1.Start = soon.Start
	starts := sctl.Job{State: "RUNNING", Reason: "Prolog"}
	for name, c := range map[string]struct {
		age, offered time.Duration
		job          sctl.Job
		lease        bool
		vain         bool
	}{
		"offered for minutes":         {10 * time.Minute, 6 * time.Minute, waits("Resources"), false, true},
		"a job is on it by now":       {10 * time.Minute, 6 * time.Minute, waits("Resources"), true, false},
		"planned, on one node":        {10 * time.Minute, 6 * time.Minute, on1, false, true},
		"waits for another node":      {10 * time.Minute, 6 * time.Minute, on2, false, true},
		"which will be free soon":     {10 * time.Minute, 6 * time.Minute, soon, false, false},
		"which will be free tomorrow": {10 * time.Minute, 6 * time.Minute, tomorrow, false, true},
		"backs off":                   {10 * time.Minute, 6 * time.Minute, later, false, false},
		"offered for long":            {time.Hour, 20 * time.Minute, waits("Resources"), false, true},
		"just offered":                {time.Hour, time.Minute, waits("Resources"), false, false},
		"a job is on it":              {time.Hour, 20 * time.Minute, waits("Resources"), true, false},
		"held by its user":            {time.Hour, 20 * time.Minute, waits("JobHeldUser"), false, false},
		"held by its user early":      {time.Minute, 20 * time.Minute, waits("JobHeldUser"), false, false},
		"starts":                      {time.Hour, 20 * time.Minute, starts, false, false},
	} {
		slurm := &cluster{nodes: []schedule.Node{{Name: "n1", Extra: extraOf(hold)}}}
		a := stewardOf(slurm, "n1")
		j := &jobs{known: map[uint32]sctl.Job{7: c.job}}
		if c.job.Restarts > 0 {
			j.may.Submitted, j.may.Eligible = time.Now(), time.Now().Add(10*time.Second)
		}
		a.Jobs = j
		wire(a)
		s := lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7, GPUs: 1, Age: c.age, Open: true, Offered: c.offered}}}
		if c.lease {
			s.Leases = []gres.Lease{held(3, 1000)}
		}
		said := a.Offers.followHolds(t.Context(), s)
		if lasts := c.age < steward.HoldTimeout && c.job.Reason.IsRoom() || c.job.Restarts > 0; c.vain || !lasts {
			s.Holds = nil
		}
		a.Offers.followExtra(t.Context(), slurm.nodes[0].Extra, s, said)
		if j.asked != 1 {
			t.Errorf("%s: slurmctld was asked %d times about the job", name, j.asked)
		}
		want := `{"rack":4}`
		if len(s.Holds) > 0 {
			want = extraOf(hold)
		}
		if c.vain {
			want = fmt.Sprintf(`{"carmavain":"7:%d","rack":4}`, decided.Unix())
		}
		if got := slurm.nodes[0].Extra; got != want || len(a.Offers.vain) != 0 {
			t.Errorf("%s: %q, want %q; %v", name, got, want, a.Offers.vain)
		}
	}
}

// Two holds may be over at the same look.
func TestTwoHoldsInVain(t *testing.T) {
	hold := steward.Hold{JobID: 7, GPUs: 1, Since: time.Now().Add(-31 * time.Minute)}
	slurm := &cluster{nodes: []schedule.Node{{Name: "n1", Extra: extraOf(hold)}}}
	a := stewardOf(slurm, "n1")
	waits := sctl.Job{State: "PENDING", Reason: "Resources"}
	a.Jobs = &jobs{known: map[uint32]sctl.Job{6: waits, 7: waits, 8: waits}}
	wire(a)
	var s lease.Snapshot
	for i, job := range []uint32{6, 7, 8} {
		s.Holds = append(s.Holds, lease.Hold{UUID: fmt.Sprint(i), JobID: job, GPUs: 1, Age: time.Hour, Open: true,
			Offered: time.Hour})
	}
	said := a.Offers.followHolds(t.Context(), s)
	a.Offers.followExtra(t.Context(), slurm.nodes[0].Extra, lease.Snapshot{}, said)
	want := fmt.Sprintf(`{"carmavain":"7:%d","rack":4}`, hold.Since.Unix())
	if got := slurm.nodes[0].Extra; got != want || len(a.Offers.vain) != 0 {
		t.Errorf("%q, want %q; %v", got, want, a.Offers.vain)
	}
}

// A hold that the node made itself stands in no Extra: that it was in vain says nothing of one that
// the steward decides later.
func TestOldHoldInVain(t *testing.T) {
	hold := func(job uint32) string {
		return extraOf(steward.Hold{JobID: job, GPUs: 1, Since: time.Now()})
	}
	for name, between := range map[string]string{"no hold": `{"rack":4}`, "another job's": hold(9), "none read": "-"} {
		l, slurm := &ledger{}, &cluster{}
		a := stewardOf(slurm, "n1")
		waits := sctl.Job{State: "PENDING", Reason: "Resources"}
		a.Ledger, a.Jobs = l, &jobs{known: map[uint32]sctl.Job{7: waits, 9: waits}}
		wire(a)
		old := lease.Hold{UUID: "a", JobID: 7, GPUs: 1, Age: time.Hour, Open: true, Offered: time.Hour}
		a.Offers.followHolds(t.Context(), lease.Snapshot{Holds: []lease.Hold{old}})
		if between != "-" {
			a.Offers.followExtra(t.Context(), between, lease.Snapshot{}, nil)
		}
		l.calls = nil
		a.Offers.followExtra(t.Context(), hold(7), lease.Snapshot{
			Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a", TotalMiB: 40536}}}}, nil)
		if fmt.Sprint(l.calls) != "[hold 0 MiB of [a] for 1 GPUs of 7 of 0]" {
			t.Errorf("%s: %v, Extra %q", name, l.calls, slurm.node("n1").Extra)
		}
	}
}

// The steward gives a job whose hold was in vain none for a while, and leaves that to the next one.
func TestKeepStewardOfHoldsInVain(t *testing.T) {
	j := schedule.Job{ID: 7, State: "PENDING", Partition: "gpu", Reason: "Constraints",
		Eligible: time.Now().Add(-24 * time.Hour), GPUs: 2, MiB: 40536}
	said := time.Now().Add(-31 * time.Minute).Unix()
	c := &cluster{nodes: []schedule.Node{{Name: "n1", Partitions: []string{"gpu"}, Up: true, Lives: true, GPUs: 4,
		Extra: fmt.Sprintf(`{"carmavain":"7:%d","rack":4}`, said)}}}
	for range 2 { // two stewards
		a := stewardOf(c, "n1")
		c.queue = []schedule.Job{j}
		a.Steward.keep(t.Context(), time.Minute)
		if is := c.nodes[0].Extra; !strings.HasPrefix(extra.Word(is, extra.Vains), fmt.Sprintf("7:1:%d:", said)) ||
			extra.Word(is, extra.Vain) != "" || slices.Contains(c.calls, "n1 keeps 2 for 7") {
			t.Errorf("n1 %s, calls %q", is, c.calls)
		}
	}
	a := stewardOf(c, "n1")
	j.GPUs = 3 // its user has changed it
	c.queue = []schedule.Job{j}
	if a.Steward.keep(t.Context(), time.Minute); !slices.Contains(c.calls, "n1 keeps 3 for 7") {
		t.Errorf("calls %q", c.calls)
	}
}

// A node whose Extra is another tool's text, or whose users' key cannot be read, looks after its holds and leases all
// the same; without an answer of slurmctld the node does not.
func TestCompareWithForeignExtra(t *testing.T) {
	for _, c := range []struct {
		err   error
		calls []string
	}{
		{extra.ErrForeign, []string{"drop 7"}},
		{fmt.Errorf("read slurm.user_key: %w", fs.ErrPermission), []string{"drop 7"}},
		{errors.New("slurm_load_node error: Unable to contact slurm controller (connect failure)"), nil},
	} {
		slurm, l := &cluster{}, &ledger{}
		a := stewardOf(slurm, "n1")
		a.Ledger, a.Jobs = l, &jobs{known: map[uint32]sctl.Job{}}
		a.Publisher = failing{ownNode{slurm, "n1"}, c.err}
		wire(a)
		a.compare(t.Context(), lease.Snapshot{Holds: []lease.Hold{{UUID: "a", JobID: 7}}})
		if !slices.Equal(l.calls, c.calls) {
			t.Errorf("%v: %v, want %v", c.err, l.calls, c.calls)
		}
	}
}

// Why nothing is published is said once, until it changes.
func TestPublishSaysOnce(t *testing.T) {
	away := func(at int) error {
		return fmt.Errorf("sinfo: Munge decode failed: Expired credential ENCODED: Thu Jan 1 00:00:%02d 2026", at)
	}
	var log bytes.Buffer
	a := newAgent()
	a.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, c := range []struct {
		err  error
		want int // lines so far
	}{
		{away(1), 1}, {capacity.ErrTooSoon, 1}, {away(12), 1}, {errors.New("Invalid node name"), 2}, {nil, 2}, {away(13), 3},
	} {
		a.Publisher = failing{err: c.err}
		a.publish(t.Context(), lease.Snapshot{})
		if got := strings.Count(log.String(), "publish capacity"); got != c.want {
			t.Errorf("%v: %d lines, want %d\n%s", c.err, got, c.want, log.String())
		}
	}
}

// failing publishes and compares nothing.
type failing struct {
	ownNode
	err error
}

func (f failing) PublishIf(context.Context, lease.Snapshot) error { return f.err }

func (f failing) CompareIf(context.Context, lease.Snapshot, time.Duration, int) (string, bool, error) {
	return "", false, f.err
}

// Where Slurm compares nothing, nothing is published and there is no steward, until it does: packages are brought up
// to date while an agent runs.
func TestOldSlurm(t *testing.T) {
	release := sctl.Version{Major: 22, Minor: 5, Micro: 8}
	asked := 0
	slurm := &cluster{nodes: []schedule.Node{{Name: "n1", Up: true, Lives: true, GPUs: 4}}}
	a := stewardOf(slurm, "n1")
	a.publishing.Store(false)
	a.Publishes = func(context.Context) (bool, error) { asked++; return release.Publishes(), nil }
	a.Publisher = failing{ownNode{slurm, "n1"}, errors.New("asked")}
	wire(a)
	for range 3 {
		a.publish(t.Context(), lease.Snapshot{})
		a.Steward.keep(t.Context(), time.Hour)
		a.Steward.sendPreemptors(t.Context(), time.Hour)
		if _, _, err := a.compareExtra(t.Context(), lease.Snapshot{}); err != nil {
			t.Error(err)
		}
	}
	if asked != 1 || len(slurm.calls) > 0 {
		t.Errorf("asked %d times, %v", asked, slurm.calls)
	}
	release.Major, release.Minor = 24, 11
	a.askedRelease -= releaseEvery
	a.publish(t.Context(), lease.Snapshot{})
	if a.Steward.keep(t.Context(), time.Hour); len(slurm.calls) == 0 {
		t.Error("it has no steward")
	}
	if _, _, err := a.compareExtra(t.Context(), lease.Snapshot{}); err == nil {
		t.Error("it compares nothing")
	}
}
