// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"carma/slurmbridge/jobstate"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Job holds a job's identity and state.
type Job struct {
	ID         uint32
	UID        uint32
	ArrayJobID uint32 // 0: no array
	ArrayTask  uint32
	Unsplit    bool   // the id stands for several waiting tasks of the array
	HetJobID   uint32 // the leader's of a heterogeneous job; 0: none
	HetOffset  uint32
	State      jobstate.State
	Reason     jobstate.Reason // why it is pending; Prolog: it runs, and waits for that. Compared with known words alone
	Partition  string          // several, with commas, while the job is pending
	Nodes      int             // nodes that the job has, or asks for
	Requeue    bool            // false: --no-requeue, JobRequeue=0, or a job of a federation
	Restarts   int             // number of returns to the queue
	Eligible   time.Time       // from when on it may start; zero: not as things are, or slurmctld has not looked yet
	Submitted  time.Time       // or when the job last returned to the queue (batch_requeue_fini)
	QOS        string
	Start      time.Time // of a waiting job: as slurmctld plans; zero: not known
	End        time.Time // since when it completes, if it does; else when its time is up
	WholeNode  bool      // --exclusive, or OverSubscribe=EXCLUSIVE; in 26.05 any job without --oversubscribe
	ExitCode   int       // of the batch script
	ExitSignal int
	Suspended  time.Duration // for how long the job was suspended since its start; at most a second too much
	NodeList   string        // where the job runs, or still completes; empty: nowhere
	Priority   int64         // 0: held

	Reservation string
}

// Federated tells a job of a federation: its id has the number of its origin cluster above
// the 26 bits of other ids (FED_MGR_CLUSTER_ID_BEGIN). A requeue is for the origin to
// carry out; of a job that runs elsewhere it does nothing, or leaves the job waiting for
// ever (22.05.8).
func (j Job) Federated() bool { return j.ID >= 1<<26 }

// Task is the task's number within its array; empty: the job is no task.
func (j Job) Task() string {
	if j.ArrayJobID == 0 || j.Unsplit {
		return ""
	}
	return strconv.FormatUint(uint64(j.ArrayTask), 10)
}

// ErrNoJob means that slurmctld does not know the job (any more).
var ErrNoJob = errors.New("no such job")

// identity are squeue's --Format names of the fields of a Job. A user's text stands
// in no field, but in Reason where a burst buffer plugin writes it.
var identity = []string{"JobID", "UserID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "State",
	"Partition",
	"NumNodes", "Requeue", "RestartCnt", "EligibleTime", "exit_code", "Reason", "SubmitTime", "OverSubscribe", "NodeList",
	"QOS",
	"StartTime", "Reservation", "TimeUsed", "EndTime", "PriorityLong"}

// Job asks slurmctld about a job.
func (c Client) Job(ctx context.Context, id uint32) (Job, error) {
	row, err := c.row(ctx, id, identity)
	if err != nil {
		return Job{}, err
	}
	j, err := parseJob(row)
	if err != nil {
		return Job{}, fmt.Errorf("job %d: %w", id, err)
	}
	return j, nil
}

// parseJob reads the fields of identity.
func parseJob(row []string) (j Job, err error) {
	f := make([]string, len(row))
	for i := range row {
		f[i] = strings.TrimSpace(row[i])
	}
	var errs []error
	read := func(s string) uint32 {
		v, err := number(s)
		errs = append(errs, err)
		return v
	}
	j = Job{ID: read(f[0]), State: jobstate.State(f[6]), Partition: f[7], Reason: jobstate.Reason(f[13]),
		Nodes:   leastNodes(f[8]),
		Requeue: read(f[9]) == 1, Restarts: int(read(f[10])), Eligible: unix(f[11]), Submitted: unix(f[14]),
		WholeNode: f[15] == "NO", QOS: f[17], Start: unix(f[18]), End: unix(f[21])}
	if !none(f[16]) {
		j.NodeList = f[16]
	}
	j.Priority, _ = strconv.ParseInt(f[22], 10, 64) // squeue writes no other word
	if !none(f[19]) {
		j.Reservation = f[19]
	}
	// The time that squeue shows as used leaves out the time in which the job was
	// suspended.
	if used, ok := elapsed(f[20]); ok && j.State == jobstate.Running && !unix(f[18]).IsZero() {
		j.Suspended = max(time.Since(unix(f[18])).Truncate(time.Second)-used, 0)
	}
	if j.UID, err = userID(f[1]); err != nil {
		errs = append(errs, err)
	}
	// A job that is no array has its own id as ArrayJobID and no task; a job that
	// is not heterogeneous has 0, or none.
	if !none(f[3]) {
		j.ArrayJobID = read(f[2])
		if j.ArrayTask, err = number(f[3]); err != nil {
			j.Unsplit = true
		}
	}
	if !none(f[4]) && f[4] != "0" {
		j.HetJobID, j.HetOffset = read(f[4]), read(f[5])
	}
	if j.ExitCode, j.ExitSignal, err = exitStatus(f[12]); err != nil {
		errs = append(errs, err)
	}
	if !plain(f[6]) || !plain(f[7]) {
		errs = append(errs, fmt.Errorf("squeue: %.50q, %.50q are not a state and a partition", f[6], f[7]))
	}
	if err := errors.Join(errs...); err != nil {
		return Job{}, err
	}
	j.Requeue = j.Requeue && !j.Federated()
	return j, nil
}

// elapsed reads a time as squeue prints it: [days-][hours:]minutes:seconds.
func elapsed(s string) (time.Duration, bool) {
	days, clock, hasDays := strings.Cut(s, "-")
	if !hasDays {
		days, clock = "0", s
	}
	n, err := number(days)
	d := time.Duration(n) * 24
	for i, part := range strings.Split(clock, ":") {
		var v uint32
		if i > 0 {
			d *= 60
		}
		if err == nil {
			v, err = number(part)
		}
		d += time.Duration(v)
	}
	switch strings.Count(clock, ":") {
	case 1:
		return d * time.Second, err == nil && !hasDays
	case 2:
		return d * time.Second, err == nil
	}
	return 0, false
}

// leastNodes reads a count of nodes, or the range asked for by a waiting job; 0:
// unknown.
func leastNodes(s string) int {
	least, _, _ := strings.Cut(s, "-")
	n, err := number(least)
	if err != nil {
		return 0
	}
	return int(n)
}

// exitStatus reads "code:signal", or wait(2)'s status as one number (22.05.8); nothing
// stands there for a job without a status yet (25.11.7, _print_job_exit_code).
func exitStatus(s string) (code, signal int, err error) {
	if none(s) {
		return 0, 0, nil
	}
	if left, right, both := strings.Cut(s, ":"); both {
		c, err1 := number(left)
		n, err2 := number(right)
		return int(c), int(n), errors.Join(err1, err2)
	}
	status, err := number(s)
	w := syscall.WaitStatus(status)
	if w.Exited() {
		return w.ExitStatus(), 0, err
	}
	return 0, int(w.Signal()), err
}

// userID reads a uid, which squeue prints as a signed number up to 25.11 (_print_int).
func userID(s string) (uint32, error) {
	if negative, ok := strings.CutPrefix(s, "-"); ok {
		n, err := number(negative)
		return -n, err
	}
	return number(s)
}

// plain tells whether s consists of characters that Slurm uses in its own names.
func plain(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f ||
			strings.ContainsRune(`"'\=`, r)
	}) < 0
}

// Words is the users' text about a job, and others' text for people.
type Words struct {
	Name         string
	Account      string
	TresPerNode  string // the GRES asked for
	TresPerJob   string // by --gpus
	AdminComment string
}

// aboutWords are squeue's --Format names of the fields of Words.
var aboutWords = []string{"JobID", "Name", "Account", "tres-per-node", "admin_comment", "tres-per-job"}

// Words asks for a job's words. The words are the job's own: nothing about
// another job follows from them.
func (c Client) Words(ctx context.Context, id uint32) (Words, error) {
	row, err := c.row(ctx, id, aboutWords)
	if err != nil {
		return Words{}, err
	}
	return parseWords(row), nil
}

// parseWords reads the fields of aboutWords.
func parseWords(row []string) Words {
	f := make([]string, len(row))
	for i, s := range row {
		if f[i] = strings.TrimSpace(s); f[i] == "(null)" {
			f[i] = ""
		}
	}
	return Words{Name: f[1], Account: f[2], TresPerNode: noneEmpty(f[3]), AdminComment: f[4], TresPerJob: noneEmpty(f[5])}
}

// unix reads a time under SLURM_TIME_FORMAT=%s; zero: unknown or none.
func unix(s string) time.Time {
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 {
		return time.Time{}
	}
	return time.Unix(v, 0)
}
