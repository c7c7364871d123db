// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/tres"
)

// queueFields are squeue's --Format names. A user's words stand among the fields,
// so nothing is done about a job before Job has asked about this job alone.
var queueFields = []string{"JobID", "UserID", "State", "Partition", "Reason", "PriorityLong", "EligibleTime",
	"StartTime", "EndTime",
	"NodeList", "ReqNodes", "Reservation", "ArrayJobID", "ArrayTaskID", "Feature", "tres-per-node",
	"RestartCnt", "SubmitTime", "NumNodes", "QOS", "tres-per-job", "tres-per-task", "tres-per-socket", "NumTasks",
	"NTPerNode"}

// Queue returns the pending and running jobs of some partitions. A single RPC
// carries all jobs (squeue of 24.11 and later has these fields).
func (c Client) Queue(ctx context.Context, partitions []string) ([]schedule.Job, error) {
	rows, err := c.squeue(ctx, queueFields, "--array", "--states=PENDING,RUNNING,COMPLETING",
		"--partition="+strings.Join(partitions, ","))
	if err != nil {
		return nil, err
	}
	var jobs []schedule.Job
	for _, row := range rows {
		if j, ok := parseQueued(row); ok {
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}

// parseQueued reads the fields of a job; ok is false for a job with a number that
// cannot be read.
func parseQueued(f []string) (j schedule.Job, ok bool) {
	for i := range f {
		if f[i] = strings.TrimSpace(f[i]); none(f[i]) {
			f[i] = ""
		}
	}
	id, err1 := number(f[0])
	uid, err2 := userID(f[1])
	if err1 != nil || err2 != nil {
		return schedule.Job{}, false
	}
	priority, _ := strconv.ParseInt(f[5], 10, 64)
	j = schedule.Job{ID: id, UID: uid, State: jobstate.State(f[2]), Partition: f[3], Reason: jobstate.Reason(f[4]),
		Priority: priority,
		Eligible: unix(f[6]), Start: unix(f[7]), End: unix(f[8]),
		Nodes: f[9], ReqNodes: f[10], Reservation: f[11], Features: f[14], Submitted: unix(f[17]), QOS: f[19]}
	j.Restarts, _ = strconv.Atoi(f[16])
	j.NodeCount = leastNodes(f[18])
	j.GPUs, j.MiB = gpusOf(asked{perNode: f[15], perJob: f[20], perTask: f[21], perSocket: f[22],
		tasks: count(f[23]), tasksPerNode: count(f[24]), nodes: j.NodeCount})
	if f[13] != "" {
		array, err1 := number(f[12])
		task, err2 := number(f[13])
		if err1 != nil || err2 != nil {
			return schedule.Job{}, false
		}
		j.ArrayJobID, j.ArrayTask = array, task
	}
	return j, true
}

// asked is what a job asks for, as squeue prints it; 0: squeue does not say.
type asked struct {
	perNode, perJob, perTask, perSocket string
	tasks, tasksPerNode                 int64
	nodes                               int
}

// sockets is a GPU node's number of sockets.
const sockets = 2

// gpusOf is how many GPUs a job gets on one node at most, as counted by job_submit for the booking (package
// annotate), and the memory booked on each.
func gpusOf(a asked) (gpus int, mib int64) {
	list := tres.Read(a.perNode)
	most := int64(0)
	bound := func(n int64) {
		if n > 0 && (most == 0 || n < most) {
			most = n
		}
	}
	others := int64(max(a.nodes-1, 0)) // each gets at least one
	bound(list.GPUs)
	if a.perTask != "" {
		tasks := a.tasksPerNode
		if tasks == 0 {
			tasks = max(a.tasks-others, 1)
		}
		bound(tres.Read(a.perTask).GPUs * min(tasks, 1<<16))
	}
	if a.perSocket != "" {
		bound(tres.Read(a.perSocket).GPUs * sockets)
	}
	if a.perJob != "" {
		if n := tres.Read(a.perJob).GPUs; n > 0 {
			bound(max(n-others, 1))
		}
	}
	gpus = int(min(most, 1<<16))
	return gpus, list.Each(gpus)
}

// count reads a number that squeue may not know.
func count(s string) int64 {
	n, _ := number(s)
	return int64(n)
}

// Split gives a waiting task of a job array a record, and an id, of its own: any
// update of the task does, even an update that changes nothing (slurmctld's
// job_array_split). The last task keeps the array's id. Split asks about the task
// alone before: a list entry is not enough to change a job.
func (c Client) Split(ctx context.Context, j schedule.Job) (id uint32, err error) {
	t := target(j.ArrayJobID, "_", j.ArrayTask)
	_, books, err := c.task(ctx, t, j)
	if err != nil {
		return 0, err
	}
	if err := c.Update(ctx, t, Change{TresPerNode: books}); err != nil {
		return 0, err
	}
	id, _, err = c.task(ctx, t, j)
	return id, err
}

// ReleaseBad releases a job, or a task of an array, held by slurmctld for BadConstraints. The job is asked about
// alone before: a hold of a user or an administrator stays.
func (c Client) ReleaseBad(ctx context.Context, j schedule.Job) error {
	t := Target{strconv.FormatUint(uint64(j.ID), 10)}
	if j.ArrayJobID != 0 {
		t = target(j.ArrayJobID, "_", j.ArrayTask)
	}
	rows, err := c.squeue(ctx, []string{"UserID", "State", "Reason", "PriorityLong"}, "--array", "--jobs="+t.text)
	if err != nil {
		return err
	}
	if len(rows) != 1 {
		return fmt.Errorf("squeue --jobs=%s: %d rows", t, len(rows))
	}
	row := rows[0]
	for i := range row {
		row[i] = strings.TrimSpace(row[i])
	}
	uid, err := userID(row[0])
	if err != nil || uid != j.UID || row[1] != jobstate.Pending || row[2] != jobstate.BadConstraints || row[3] != "0" {
		return fmt.Errorf("job %s is %.50s (%.50s) now", t, row[1], row[2])
	}
	return c.Release(ctx, t)
}

// task asks about a task of an array, which must still be the task in the list.
func (c Client) task(ctx context.Context, t Target, j schedule.Job) (id uint32, tresPerNode string, err error) {
	rows, err := c.squeue(ctx, []string{"JobID", "UserID", "ArrayJobID", "ArrayTaskID", "State", "tres-per-node"},
		"--array", "--jobs="+t.text)
	if err != nil {
		return 0, "", err
	}
	if len(rows) != 1 {
		return 0, "", fmt.Errorf("squeue --jobs=%s: %d rows", t, len(rows))
	}
	row := rows[0]
	for i := range row {
		row[i] = strings.TrimSpace(row[i])
	}
	for i, want := range []uint32{1: j.UID, 2: j.ArrayJobID, 3: j.ArrayTask} {
		if got, err := userID(row[i]); err != nil || i > 0 && got != want {
			return 0, "", fmt.Errorf("squeue --jobs=%s: %.50q where %d is expected", t, row[i], want)
		}
	}
	if row[4] != jobstate.Pending {
		return 0, "", fmt.Errorf("job %s is %.50s now", t, row[4])
	}
	if tres.Read(row[5]).Each(j.GPUs) != j.MiB {
		return 0, "", fmt.Errorf("job %s asks for other GRES now", t)
	}
	id, err = number(row[0])
	return id, row[5], err
}

var nodeFields = []string{"NodeList", "Partition", "StateComplete", "Features_act", "Extra"}

// Nodes returns the nodes of some partitions, in the order of their names (24.11 and later).
func (c Client) Nodes(ctx context.Context, partitions []string) (nodes []schedule.Node, err error) {
	s := newSeparator()
	err = c.rows(ctx, s, len(nodeFields), func(row []string) { nodes = addNode(nodes, row) },
		"sinfo", "--noheader", "--Node", "--partition="+strings.Join(partitions, ","), "--Format="+s.format(nodeFields))
	if err != nil {
		return nil, err
	}
	return nodes, nil
}

// NodeNames returns the names of the nodes of some partitions, sorted; nil: of all partitions. slurmctld packs
// partitions for this, and no nodes.
func (c Client) NodeNames(ctx context.Context, partitions []string) ([]string, error) {
	out, err := c.run(ctx, "scontrol", "show", "partition")
	if err != nil {
		return nil, err
	}
	return namesOf(out, partitions)
}

func namesOf(text string, partitions []string) (names []string, err error) {
	wanted := false
	for word := range strings.FieldsSeq(text) {
		switch key, value, _ := strings.Cut(word, "="); {
		case key == "PartitionName":
			wanted = partitions == nil || slices.Contains(partitions, value)
		case key == "Nodes" && wanted && !none(value):
			some, err := hostlist.Expand(value)
			if err != nil {
				return nil, fmt.Errorf("scontrol show partition: %w", err)
			}
			names = append(names, some...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// addNode adds what a row says of a node; there is a row for each of its partitions.
func addNode(nodes []schedule.Node, f []string) []schedule.Node {
	partition := strings.TrimSuffix(f[1], "*") // the default partition's mark
	if n := len(nodes); n > 0 && nodes[n-1].Name == f[0] {
		nodes[n-1].Partitions = append(nodes[n-1].Partitions, partition)
		return nodes
	}
	n := schedule.Node{Name: f[0], Partitions: []string{partition}, Features: noneEmpty(f[3]), Extra: noneEmpty(f[4])}
	n.Lives, n.Up = nodeState(f[2])
	n.GPUs = extra.GPUs(n.Extra)
	return append(nodes, n)
}
