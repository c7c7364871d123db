// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/tres"
)

// Finder asks slurmctld about many jobs, and about the GPUs of jobs, as a Client does. A Finder changes nothing.
type Finder Client

// OnNode returns the jobs that hold a node now. A single RPC carries the jobs of the whole cluster.
func (f Finder) OnNode(ctx context.Context, node string) (jobs []Job, err error) {
	if !plain(node) {
		return nil, fmt.Errorf("squeue: %.50q is not a node", node)
	}
	rows, err := Client(f).squeue(ctx, identity, "--nodelist="+node)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		j, err := parseJob(row)
		if err != nil {
			return nil, fmt.Errorf("squeue: job %.20q: %w", row[0], err)
		}
		if j.On(node) {
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}

// Description is a job with its words.
type Description struct {
	Job
	Words
}

// Describe asks slurmctld about jobs with one question. A job that slurmctld does not know is missing in the answer; so
// is, with an error, a job that cannot be read. Of more than one job the answer costs slurmctld as much as that about
// all jobs of the cluster.
func (f Finder) Describe(ctx context.Context, ids []uint32) (map[uint32]Description, error) {
	rows, err := rowsOf(ctx, Client(f), ids, slices.Concat(identity, aboutWords))
	jobs := map[uint32]Description{}
	for id, row := range rows {
		j, unread := parseJob(row[:len(identity)])
		if unread != nil {
			err = fmt.Errorf("job %d: %w", id, unread)
			continue
		}
		jobs[id] = Description{j, parseWords(row[len(identity):])}
	}
	return jobs, err
}

// On tells whether a job holds a node.
func (j Job) On(node string) bool {
	return (j.State.HoldsNode() || j.State == jobstate.Resizing) && hostlist.Contains(j.NodeList, node)
}

// GPUs returns the indices of the GPUs that a job has of a node, as slurmctld counts GPUs: in the order of
// gres.conf. No index: the job has no whole GPU there, or the answer can be read in two ways.
func (f Finder) GPUs(ctx context.Context, j Job, node string) ([]int, error) {
	t := j.Component()
	if t.text == "" {
		return nil, fmt.Errorf("scontrol show job: job %d stands for several", j.ID)
	}
	out, err := Client(f).run(ctx, "scontrol", "--details", "show", "job", t.text)
	if err != nil {
		return nil, err
	}
	return gpusIn(out, node), nil
}

// mostIndex bounds the index of a GPU.
const mostIndex = 63

// gpusIn finds the line of a node: "Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:a100:2(IDX:0-1)". Users' texts in the
// answer may hold line breaks: a job with two lines about the node has written one, and has no index.
func gpusIn(text, node string) (indices []int) {
	lines := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		nodes, rest, ok := strings.Cut(strings.TrimPrefix(line, "Nodes="), " CPU_IDs=")
		if !ok || !strings.HasPrefix(line, "Nodes=") || !hostlist.Contains(nodes, node) {
			continue
		}
		if lines++; lines > 1 {
			return nil
		}
		_, gres, _ := strings.Cut(rest, " GRES=")
		for e := range tres.Parse(gres) {
			if e.Name == tres.GPU {
				indices = append(indices, indicesIn(e.String())...)
			}
		}
	}
	return indices
}

// indicesIn reads "gpu:a100:3(IDX:0-1,3)".
func indicesIn(entry string) (indices []int) {
	_, list, ok := strings.Cut(entry, "(IDX:")
	list, _, closed := strings.Cut(list, ")")
	if !ok || !closed {
		return nil
	}
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := number(first)
		to, err2 := number(last)
		if err1 != nil || err2 != nil || to > mostIndex {
			return nil
		}
		for i := from; i <= to; i++ {
			indices = append(indices, int(i))
		}
	}
	return indices
}
