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
const lateNote = "no answer for this job at submission: whole GPUs are booked; submit the job again to share"

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
			for constrains := range 2 {
				job := annotate.Job{Partition: name, Constrains: constrains == 1}
				for list, tres := range []annotate.TRES{{PerNode: gpus}, {PerJob: gpus}} {
					job.TRES = tres
					head := fmt.Sprintf("whole %d %s %d %s\n", k, []string{"node", "job"}[list], constrains, name)
					b.WriteString(whole(s, job, head))
				}
			}
		}
	}
	return b.String()
}

// whole returns a block with a head; empty where the job would be refused.
func whole(s *annotate.Site, job annotate.Job, head string) string {
	job.UID, job.Option = annotate.NoVal, "policy=exclusive" // not what the partition has for jobs that say nothing
	job.MinNodes, job.MaxNodes, job.Tasks = 1, 1, annotate.NoVal
	job.TasksPerNode, job.SocketsPerNode, job.TimeLimit = annotate.NoVal, annotate.NoVal, annotate.NoVal
	a, err := s.Annotate(job)
	if err != nil {
		return ""
	}
	booking := a.TRES.PerNode[strings.LastIndexByte(a.TRES.PerNode, ',')+1:]
	constraint := a.Extra
	a.TRES, a.Extra, a.Note, a.Advice = job.TRES, job.Extra, lateNote, lateNote
	text := head + "book " + booking + "\n"
	if job.Constrains {
		text += "constrain " + constraint + "\n"
	}
	return text + lines(&job, &a)
}
