// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/tres"
)

// QueuedJob is a pending or running job as the steward looks at it.
type QueuedJob struct {
	ID          uint32
	State       string
	Partition   string
	Reason      string
	Priority    int64
	Eligible    time.Time // when it could have started first
	Start       time.Time // when it started, or is expected to
	End         time.Time // by its time limit; zero: unknown
	Nodes       string    // that it runs on
	ReqNodes    string    // that it asks for
	Reservation string
	ArrayJobID  uint32 // 0: no array
	ArrayTask   string
	Features    string
	TresPerNode string
	UID         uint32
	Restarts    int       // how often it has gone back into the queue
	Submitted   time.Time // or when it last went back (batch_requeue_fini)
	NodeCount   int       // that it has, or asks for
}

// Unsplit tells whether a task of a job array has no record of its own yet: ID is
// then the array's, and all its waiting tasks have it.
func (j QueuedJob) Unsplit() bool { return j.ArrayJobID != 0 && j.ID == j.ArrayJobID }

// queueFields are squeue's --Format names; with "|" as the suffix of a field in
// place of its width, none is cut (squeue 22.05, print.c).
const queueFields = "JobID:|,State:|,Partition:|,Reason:|,PriorityLong:|,EligibleTime:|,StartTime:|,EndTime:|,NodeList:|,ReqNodes:|,Reservation:|,ArrayJobID:|,ArrayTaskID:|,Feature:|,tres-per-node:|,UserID:|,RestartCnt:|,SubmitTime:|,NumNodes:"

// Queue returns the pending and running jobs of some partitions. It is one RPC
// that carries all of them.
func (c Client) Queue(ctx context.Context, partitions []string) ([]QueuedJob, error) {
	out, err := c.run(ctx, "squeue", "--noheader", "--array", "--states=PENDING,RUNNING", "--partition="+strings.Join(partitions, ","), "--Format="+queueFields)
	if err != nil {
		return nil, err
	}
	var jobs []QueuedJob
	for line := range strings.Lines(out) {
		if j, ok := parseQueued(strings.TrimRight(line, " \n")); ok {
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}

func parseQueued(line string) (QueuedJob, bool) {
	f := strings.Split(line, "|")
	if len(f) != 19 {
		return QueuedJob{}, false
	}
	for i := range f {
		if f[i] = strings.TrimSpace(f[i]); f[i] == "(null)" || f[i] == "N/A" {
			f[i] = ""
		}
	}
	id, err := strconv.ParseUint(f[0], 10, 32)
	if err != nil {
		return QueuedJob{}, false
	}
	priority, _ := strconv.ParseInt(f[4], 10, 64)
	j := QueuedJob{ID: uint32(id), State: f[1], Partition: f[2], Reason: f[3], Priority: priority, Eligible: unix(f[5]), Start: unix(f[6]), End: unix(f[7]),
		Nodes: f[8], ReqNodes: f[9], Reservation: f[10], Features: f[13], TresPerNode: f[14], Submitted: unix(f[17])}
	uid, err := strconv.ParseUint(f[15], 10, 32)
	if err != nil {
		return QueuedJob{}, false
	}
	j.UID = uint32(uid)
	j.Restarts, _ = strconv.Atoi(f[16])
	count, _, _ := strings.Cut(f[18], "-") // the least
	j.NodeCount, _ = strconv.Atoi(count)
	if array, err := strconv.ParseUint(f[11], 10, 32); err == nil && f[12] != "" {
		j.ArrayJobID, j.ArrayTask = uint32(array), f[12]
	}
	return j, true
}

// Split gives a waiting task of a job array a record, and an id, of its own: any
// update of it does, also one that changes nothing (slurmctld's
// job_array_split). The last task keeps the array's id.
func (c Client) Split(ctx context.Context, j QueuedJob) (id uint32, err error) {
	target := fmt.Sprintf("%d_%s", j.ArrayJobID, j.ArrayTask)
	if err := c.Update(ctx, target, Change{TresPerNode: j.TresPerNode}); err != nil {
		return 0, err
	}
	out, err := c.run(ctx, "squeue", "--noheader", "--jobs="+target, "--format=%A")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(out), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("squeue --jobs=%s: %.50q is no job id", target, out)
	}
	return uint32(n), nil
}

// unix reads a time under SLURM_TIME_FORMAT=%s; zero: unknown or none.
func unix(s string) time.Time {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 {
		return time.Time{}
	}
	return time.Unix(v, 0)
}

// NodeState is a node as the steward looks at it.
type NodeState struct {
	Name       string
	Partitions []string
	Up         bool // can be given jobs
	GPUs       int  // by its carma counts; 0: none of ours
	Comment    string
}

// Nodes returns the nodes of some partitions, in the order of their names.
func (c Client) Nodes(ctx context.Context, partitions []string) ([]NodeState, error) {
	out, err := c.run(ctx, "sinfo", "--noheader", "--Node", "--partition="+strings.Join(partitions, ","), "--Format=NodeList:|,Partition:|,StateCompact:|,Gres:|,Comment:")
	if err != nil {
		return nil, err
	}
	var nodes []NodeState
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimRight(line, " \n"), "|", 5)
		if len(f) != 5 {
			continue
		}
		for i := range f {
			f[i] = strings.TrimSpace(f[i])
		}
		f[1] = strings.TrimSuffix(f[1], "*") // the default partition's mark
		// A node has a line for each of its partitions.
		if n := len(nodes); n > 0 && nodes[n-1].Name == f[0] {
			nodes[n-1].Partitions = append(nodes[n-1].Partitions, f[1])
			continue
		}
		n := NodeState{Name: f[0], Partitions: []string{f[1]}, Comment: f[4]}
		n.Up = slices.Contains([]string{"idle", "mix", "alloc", "comp"}, f[2])
		for e := range tres.Parse(f[3]) {
			n.GPUs = max(n.GPUs, tres.K(e.Name))
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// SetNodeComment replaces the Comment of a node.
func (c Client) SetNodeComment(ctx context.Context, node, comment string) error {
	_, err := c.run(ctx, "scontrol", "update", "NodeName="+node, "Comment="+comment)
	return err
}
