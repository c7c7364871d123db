// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// separator stands between the fields of sacct: any printable one may be in a
// comment.
const separator = "\x1f"

// Accounted is a job as slurmdbd has it.
type Accounted struct {
	Cluster    string
	JobID      uint32
	ArrayJobID uint32 // 0: no array
	ArrayTask  string
	Name       string
	User       string
	Account    string
	Partition  string
	State      string // CANCELLED for "CANCELLED by 1000"
	Comment    string // AdminComment
}

// accountedFields are fields that sacct has in every version from 20.11 on.
var accountedFields = []string{"Cluster", "JobIDRaw", "JobID", "User", "Account", "Partition", "State", "JobName", "AdminComment"}

// AccountedFilter says which jobs to ask slurmdbd for. Empty means all.
type AccountedFilter struct {
	Jobs            []uint32
	Users, Accounts []string
	Clusters        []string
	From, To        time.Time
}

// Accounted asks slurmdbd for jobs and hands them over as sacct prints them, all
// attempts under one entry. What was handed over before an error is void.
func (c Client) Accounted(ctx context.Context, f AccountedFilter, each func(Accounted)) error {
	args := []string{"--noheader", "--allocations", "--parsable2", "--delimiter=" + separator, "--format=" + strings.Join(accountedFields, ",")}
	list := func(option string, values []string) {
		if len(values) > 0 {
			args = append(args, option+"="+strings.Join(values, ","))
		}
	}
	if len(f.Jobs) > 0 {
		ids := make([]string, len(f.Jobs))
		for i, id := range f.Jobs {
			ids[i] = strconv.FormatUint(uint64(id), 10)
		}
		list("--jobs", ids)
	}
	list("--accounts", f.Accounts)
	list("--clusters", f.Clusters)
	if len(f.Users) > 0 {
		list("--user", f.Users)
	} else {
		args = append(args, "--allusers")
	}
	from := f.From
	if from.IsZero() && len(f.Jobs) == 0 {
		from = time.Unix(1e6, 0) // the first that sacct takes
	}
	if !from.IsZero() {
		args = append(args, "--starttime="+slurmTime(from))
	}
	if !f.To.IsZero() {
		args = append(args, "--endtime="+slurmTime(f.To))
	}
	return c.lines(ctx, func(line string) {
		if j, ok := parseAccounted(line); ok {
			each(j)
		}
	}, "sacct", args...)
}

// slurmTime is a time as every Slurm reads it (parse_time.c, 20.11 to 25.11), without
// the hour that is there twice when summer time ends.
func slurmTime(t time.Time) string { return "uts" + strconv.FormatInt(t.Unix(), 10) }

// parseAccounted reads a line; one that is not of a job is left out.
func parseAccounted(line string) (j Accounted, ok bool) {
	if strings.Count(line, separator) < len(accountedFields)-1 {
		return j, false
	}
	// The comment is long and soon forgotten: it shares no memory with the rest.
	f := strings.SplitN(line, separator, len(accountedFields))
	comment := f[len(f)-1]
	f = strings.Split(strings.Clone(line[:len(line)-len(comment)]), separator)
	id, err := strconv.ParseUint(f[1], 10, 32)
	if err != nil { // a step, or a part of a heterogeneous job
		return j, false
	}
	j = Accounted{Cluster: f[0], JobID: uint32(id), User: f[3], Account: f[4], Partition: f[5], Name: f[7], Comment: comment}
	j.State, _, _ = strings.Cut(f[6], " ")
	if array, task, isTask := strings.Cut(f[2], "_"); isTask {
		if n, err := strconv.ParseUint(array, 10, 32); err == nil {
			j.ArrayJobID, j.ArrayTask = uint32(n), task
		}
	}
	return j, true
}

// ErrComment means that sacctmgr would change what others wrote in a comment.
var ErrComment = errors.New("what others wrote there would be changed by sacctmgr")

// SetComment replaces the AdminComment of a job that has ended, its last attempt's.
// The error is ErrComment where it is better left alone.
func (c Client) SetComment(ctx context.Context, cluster string, job uint32, comment string) error {
	// sacctmgr would make backticks of quotes (22.05, parse_option_end): better
	// no record there than what others wrote spoiled.
	if strings.ContainsAny(comment, "'\"\n") {
		return fmt.Errorf("set AdminComment of job %d: %w (it has quotes)", job, ErrComment)
	}
	if comment != strings.ToLower(comment) {
		v, err := c.Version(ctx)
		if err != nil {
			return err
		}
		if v.Before(23, 2) {
			return fmt.Errorf("set AdminComment of job %d: %w (it has capitals, which this version makes small)", job, ErrComment)
		}
	}
	args := []string{"--immediate", "--quiet", "modify", "job", "where", fmt.Sprintf("jobid=%d", job)}
	if cluster != "" {
		args = append(args, "cluster="+cluster)
	}
	_, err := c.run(ctx, "sacctmgr", append(args, "set", "AdminComment="+comment)...)
	return err
}
