// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"carma/slurmbridge/annotate"
)

// lateNote is for the user of a job that was not answered for.
const lateNote = "slurmctld was too busy to read what the job says: whole GPUs are booked; submit it again to share"

// wholes returns the blocks of carma_whole (carma.h). Each is the answer to a job that asks for GPUs as plainly as
// can be, and to have them alone.
func wholes(s *annotate.Site) string {
	names := slices.Sorted(maps.Keys(s.Partitions))
	if s.DefaultPartition != "" {
		names = append(names, "")
	}
	var b strings.Builder
	for _, name := range names {
		_, part, _ := s.Partition(name)
		for k := 1; k <= part.GPUsPerNode; k++ {
			gpus := fmt.Sprintf("%sgpu:%d", s.GresPrefix, k)
			for _, constrains := range []bool{false, true} {
				job := annotate.Job{Partition: name, Constrains: constrains, TRES: annotate.TRES{PerNode: gpus}}
				b.WriteString(whole(s, job, k, "node"))
				job.TRES = annotate.TRES{PerJob: gpus}
				b.WriteString(whole(s, job, k, "job"))
			}
		}
	}
	return b.String()
}

// whole returns a block for k GPUs in a list; empty where such a job would be refused.
func whole(s *annotate.Site, job annotate.Job, k int, list string) string {
	job.UID, job.Option = annotate.NoVal, "policy=exclusive" // not what the partition has for jobs that say nothing
	job.MinNodes, job.MaxNodes, job.Tasks = 1, 1, annotate.NoVal
	job.TasksPerNode, job.SocketsPerNode, job.TimeLimit = annotate.NoVal, annotate.NoVal, annotate.NoVal
	a, err := s.Annotate(job)
	if err != nil {
		return ""
	}
	booking := a.TRES.PerNode[strings.LastIndexByte(a.TRES.PerNode, ',')+1:]
	constraint := a.Extra
	a.TRES, a.Extra, a.Note = job.TRES, job.Extra, lateNote
	text := fmt.Sprintf("whole %d %s %d %s\nbook %s\n", k, list, number(job.Constrains), job.Partition, booking)
	if job.Constrains {
		text += "constrain " + constraint + "\n"
	}
	return text + lines(&job, &a)
}

func number(is bool) int {
	if is {
		return 1
	}
	return 0
}
