// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/db"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/slurmtime"
)

// selection is which jobs to show.
type selection struct {
	db.Filter
	tasks      []string // "10_2": of Filter.Jobs only these tasks
	states     []string
	partitions []string
	nodes      string // a Slurm node list
	names      []string
}

// has tells whether a job is in the list.
func (s *selection) has(j *job) bool {
	switch {
	case !s.From.IsZero() && j.End.Before(s.From), !s.To.IsZero() && j.Start.After(s.To):
		return false
	case len(s.states) > 0 && !slices.Contains(s.states, j.State):
		return false
	case len(s.partitions) > 0 && !slices.Contains(s.partitions, j.Partition):
		return false
	case len(s.names) > 0 && !slices.Contains(s.names, j.Name):
		return false
	case s.nodes != "" && !slices.ContainsFunc(j.Nodes, func(n string) bool { return hostlist.Contains(s.nodes, n) }):
		return false
	case len(s.tasks) > 0 && !s.hasTask(j):
		return false
	}
	return true
}

func (s *selection) hasTask(j *job) bool {
	return slices.Contains(s.tasks, j.id()) || slices.Contains(s.tasks, strconv.FormatUint(uint64(j.JobID), 10)) ||
		j.ArrayJobID != 0 && slices.Contains(s.tasks, strconv.FormatUint(uint64(j.ArrayJobID), 10))
}

// outputName is the name of an output file of sbatch: slurm-12.out, slurm-10_2.out.
var outputName = regexp.MustCompile(`^slurm-(\d+(?:_\d+)?)\.(?:out|err)$`)

// addJobs reads a list of jobs: 12, 10_2, 12.batch, or names of output files.
func (s *selection) addJobs(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		if word == "" {
			continue
		}
		job := word
		if m := outputName.FindStringSubmatch(filepath.Base(word)); m != nil {
			job = m[1]
		} else {
			job, _, _ = strings.Cut(word, ".") // a step
		}
		number, task, isTask := strings.Cut(job, "_")
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil || id == 0 {
			return fmt.Errorf("%q is not a job id", word)
		}
		if _, err := strconv.ParseUint(task, 10, 32); isTask && err != nil {
			return fmt.Errorf("%q is not a job id", word)
		}
		s.Jobs = append(s.Jobs, uint32(id))
		s.tasks = append(s.tasks, job)
	}
	return nil
}

// stateNames are the short forms of states (squeue(1), sacct(1)).
var stateNames = map[string]string{
	"BF": jobstate.BootFail, "CA": jobstate.Cancelled, "CD": jobstate.Completed, "DL": jobstate.Deadline,
	"F": jobstate.Failed, "NF": jobstate.NodeFail,
	"OOM": jobstate.OutOfMemory,
	"PR":  jobstate.Preempted, "RQ": jobstate.Requeued, "TO": jobstate.Timeout,
}

// addStates reads sacct's -s. CARMA has records of jobs that ran.
func (s *selection) addStates(list string) error {
	for word := range strings.SplitSeq(list, ",") {
		word = strings.ToUpper(strings.TrimSpace(word))
		if word == "" {
			continue
		}
		if long, ok := stateNames[word]; ok {
			word = long
		}
		known := false
		for _, long := range stateNames {
			known = known || long == word
		}
		if !known {
			return fmt.Errorf("%q is not an end state of a job", word)
		}
		s.states = append(s.states, word)
	}
	return nil
}

// setTimes reads -S and -E; like sacct, the time is today unless jobs are named.
func (s *selection) setTimes(from, to string, now time.Time) (err error) {
	if from == "" && len(s.Jobs) == 0 {
		from = "today"
	}
	s.From, s.To, err = slurmtime.Period(from, to, now)
	return err
}
