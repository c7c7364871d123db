// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/jobstate"
)

// Accounting asks slurmdbd, through sacct and sacctmgr, as a Client asks slurmctld.
type Accounting Client

// Accounted is a job as slurmdbd has it.
type Accounted struct {
	Cluster    string
	JobID      uint32
	UID        uint32
	ArrayJobID uint32 // 0: no array
	ArrayTask  string
	User       string // Slurm's name for UID
	Partition  string
	State      string // CANCELLED for "CANCELLED by 1000"
	Ended      bool   // slurmdbd has been told of the end, and no attempt follows
	Comment    string // AdminComment; only operators write there
}

// accountedFields and namedFields are fields that sacct has in every version from
// 20.11 on. Text that a user can write stands in the second alone, which asks for
// nothing else: the separator stands in sacct's arguments, which users can read
// while sacct runs.
var (
	accountedFields = []string{"Cluster", "JobIDRaw", "JobID", "UID", "User", "Partition", "State", "End", "AdminComment"}
	namedFields     = []string{"Cluster", "JobIDRaw", "Account", "JobName"}
)

// AccountedFilter says which jobs to ask slurmdbd for. Empty means all.
type AccountedFilter struct {
	Jobs            []uint32
	Users, Accounts []string
	Clusters        []string
	From, To        time.Time
}

// Accounted asks slurmdbd for jobs and hands them over as sacct prints them, all
// attempts under one entry. Jobs handed over before an error are void.
func (a Accounting) Accounted(ctx context.Context, f AccountedFilter, each func(Accounted)) error {
	return a.sacct(ctx, accountedFields, f, func(row []string) {
		if j, ok := parseAccounted(row); ok {
			each(j)
		}
	})
}

// Named holds the users' names for a job in slurmdbd, for people to read.
type Named struct {
	Cluster       string
	JobID         uint32
	Account, Name string
}

// Names asks slurmdbd for the names of jobs.
func (a Accounting) Names(ctx context.Context, f AccountedFilter, each func(Named)) error {
	return a.sacct(ctx, namedFields, f, func(row []string) {
		if id, err := number(row[1]); err == nil {
			each(Named{Cluster: row[0], JobID: id, Account: row[2], Name: row[3]})
		}
	})
}

// sacct prints fields of jobs, with a separator of this call behind each.
func (a Accounting) sacct(ctx context.Context, fields []string, f AccountedFilter, each func([]string)) error {
	sep := newSeparator()
	args := []string{"--noheader", "--allocations", "--parsable", "--delimiter=" + string(sep),
		"--format=" + strings.Join(fields, ",")}
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
		from = time.Unix(1e6, 0) // sacct's earliest
	}
	if !from.IsZero() {
		args = append(args, "--starttime="+slurmTime(from))
	}
	if !f.To.IsZero() {
		args = append(args, "--endtime="+slurmTime(f.To))
	}
	return Client(a).rows(ctx, sep, len(fields), each, "sacct", args...)
}

// slurmTime is a time as every Slurm reads it (parse_time.c, 20.11 to 25.11), without
// the double hour at the end of summer time.
func slurmTime(t time.Time) string { return "uts" + strconv.FormatInt(t.Unix(), 10) }

// parseAccounted reads the fields of a job; steps, and parts of a heterogeneous
// job, are left out.
func parseAccounted(f []string) (j Accounted, ok bool) {
	id, err := number(f[1])
	if err != nil {
		return j, false
	}
	uid, err := number(f[3])
	if err != nil {
		return j, false
	}
	j = Accounted{Cluster: f[0], JobID: id, UID: uid, User: f[4], Partition: f[5], Comment: f[8]}
	j.State, _, _ = strings.Cut(f[6], " ")
	// slurmctld sends the start of a job of which slurmdbd has not heard with the state of now, perhaps
	// COMPLETED; the end comes after (as_mysql_job.c, 22.05 to 26.05). Until then sacct has no time for the end.
	j.Ended = jobstate.State(j.State).HasEnded() && f[7] != "Unknown"
	if array, task, isTask := strings.Cut(f[2], "_"); isTask {
		if n, err := number(array); err == nil {
			j.ArrayJobID, j.ArrayTask = n, task
		}
	}
	return j, true
}

// ErrComment means that sacctmgr would change others' text in a comment.
var ErrComment = errors.New("what others wrote there would be changed by sacctmgr")

// ErrLong means that slurmdbd would cut a comment.
var ErrLong = errors.New("the comment is too long for slurmdbd")

// mostComment is what slurmdbd keeps of a comment: its column is a TEXT of MySQL, which cuts longer ones without an
// error, as slurmdbd sets no strict mode (accounting_storage_mysql.c, mysql_common.c).
const mostComment = 1<<16 - 1

// SetComment replaces the AdminComment of a job that has ended, its last attempt's.
// The error is ErrComment where the comment is better left alone, or ErrLong.
func (a Accounting) SetComment(ctx context.Context, cluster string, job uint32, comment string) error {
	if len(comment) > mostComment {
		return fmt.Errorf("set AdminComment of job %d: %w (%d bytes)", job, ErrLong, len(comment))
	}
	// sacctmgr would make backticks of quotes (22.05, parse_option_end): better
	// no record there than others' text spoiled.
	if strings.ContainsFunc(comment, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\'' || r == '"' }) {
		return fmt.Errorf("set AdminComment of job %d: %w (it has quotes or control characters)", job, ErrComment)
	}
	if comment != strings.ToLower(comment) {
		v, err := Client(a).Version(ctx)
		if err != nil {
			return err
		}
		if v.Before(23, 2) {
			return fmt.Errorf("set AdminComment of job %d: %w (it has capitals, which this version makes small)", job,
				ErrComment)
		}
	}
	args := []string{"--immediate", "--quiet", "modify", "job", "where", fmt.Sprintf("jobid=%d", job)}
	if cluster != "" {
		args = append(args, "cluster="+cluster)
	}
	_, err := Client(a).run(ctx, "sacctmgr", append(args, "set", "AdminComment="+comment)...)
	return err
}
