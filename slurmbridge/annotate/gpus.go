// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"errors"
	"fmt"

	"carma/slurmbridge/tres"
)

// unclear refuses a request that slurmctld may count otherwise: GPUs beyond the booking would come ahead of all who
// wait.
func (l *lists) unclear(gresPrefix string) error {
	for _, list := range [...]*tres.List{&l.perNode, &l.perJob, &l.perSocket, &l.perTask} {
		if entry := list.Unclear(gresPrefix == "gres/"); entry != "" {
			return fmt.Errorf("releases of Slurm count %q differently; write gpu:2 or gpu:TYPE:2, without blanks", entry)
		}
	}
	return nil
}

// ErrNodeHasFewer begins the refusal of a job that can get more GPUs on a node than the node has.
var ErrNodeHasFewer = errors.New("the job can get")

// gpusPerNode returns the most GPUs that job can get on one node, 0 if it asks
// for none. A node's gres/gpu counts slots, several to a GPU, so slurmctld
// itself would give a job more slots than the node has GPUs; a request that
// could come to that is refused here with the way to write it.
func gpusPerNode(job Job, asked lists, have int) (int, error) {
	perNode, perJob, perSocket, perTask := asked.perNode.GPUs, asked.perJob.GPUs, asked.perSocket.GPUs, asked.perTask.GPUs
	most, hint := int64(0), ""
	bound := func(n int64, how string) {
		if n > 0 && (most == 0 || n < most) {
			most, hint = n, how
		}
	}
	bound(perNode, "ask for at most %d per node")
	if perTask > 0 {
		bound(perTask*tasksPerNode(job), "add --ntasks-per-node so that a node gets at most %d")
	}
	if perSocket > 0 {
		sockets := int64(2) // what a GPU node has; said only with --sockets-per-node
		if job.SocketsPerNode != NoVal {
			sockets = int64(job.SocketsPerNode)
		}
		bound(perSocket*sockets, "ask for at most %d with --gpus-per-node")
	}
	if perJob > 0 {
		// Every node of the job gets at least one.
		bound(max(perJob-max(int64(nodes(job.MinNodes))-1, 0), 1),
			"ask for at most %d per node with --gpus-per-node and --nodes")
	}
	if most > int64(have) {
		return 0, fmt.Errorf("%w %d GPUs on one node, but a node has %d; "+hint, ErrNodeHasFewer, most, have, have)
	}
	return int(most), nil
}

// tasksPerNode is the most tasks of job on one node. Without a task count
// sbatch starts one task a node.
func tasksPerNode(job Job) int64 {
	if job.TasksPerNode != NoVal && job.TasksPerNode > 0 {
		return int64(job.TasksPerNode)
	}
	if job.Tasks == NoVal || job.Tasks == 0 {
		return 1
	}
	return max(int64(job.Tasks)-max(int64(nodes(job.MinNodes))-1, 0), 1)
}

func nodes(n uint32) uint32 {
	if n == NoVal {
		return 1
	}
	return n
}
