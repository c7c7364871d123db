// SPDX-License-Identifier: Apache-2.0

// Package sctl calls Slurm's commands. Each call is one RPC or two and has a
// deadline; callers keep them rare.
package sctl

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Client runs the commands of one Slurm installation.
type Client struct {
	BinDir string // absolute
	Conf   string // SLURM_CONF; empty: Slurm's default
}

// command has an environment of its own: a hook's PATH and variables are not to be
// trusted.
func (c Client) command(ctx context.Context, command string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.BinDir+"/"+command, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "SLURM_TIME_FORMAT=%s"}
	if c.Conf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+c.Conf)
	}
	cmd.WaitDelay = time.Second
	return cmd
}

// run executes one command and returns what it printed.
func (c Client) run(ctx context.Context, command string, args ...string) (string, error) {
	cmd := c.command(ctx, command, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", failed(ctx, cmd, err, stderr.String()+" "+stdout.String())
	}
	return stdout.String(), nil
}

// lines executes one command and hands over what it prints, line by line, while it
// does. What was handed over before an error is void.
func (c Client) lines(ctx context.Context, each func(line string), command string, args ...string) error {
	cmd := c.command(ctx, command, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return failed(ctx, cmd, err, "")
	}
	r := bufio.NewReaderSize(out, 1<<16)
	line, err := r.ReadString('\n')
	last := ""
	for ; err == nil; line, err = r.ReadString('\n') {
		last = line[:len(line)-1]
		each(last)
	}
	if err := cmd.Wait(); err != nil {
		return failed(ctx, cmd, err, stderr.String()+" "+last)
	}
	return nil
}

// failed says which command did not work, and in whose words.
func failed(ctx context.Context, cmd *exec.Cmd, err error, text string) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	words := append([]string{filepath.Base(cmd.Path)}, cmd.Args[1:]...)
	return fmt.Errorf("%s: %w: %.200s", strings.Join(words, " "), err, strings.Join(strings.Fields(text), " "))
}

// Node returns a node's Gres text, as slurmctld counts it, and its Comment.
func (c Client) Node(ctx context.Context, node string) (gres, comment string, err error) {
	out, err := c.run(ctx, "scontrol", "show", "node", node)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch {
		case name == "Gres" && gres == "":
			gres = value
		case name == "Comment":
			comment = value
		}
	}
	if gres == "" {
		return "", "", fmt.Errorf("scontrol show node %s: no Gres line", node)
	}
	return gres, comment, nil
}

// SetNodeGres replaces the Gres text of a node in slurmctld.
func (c Client) SetNodeGres(ctx context.Context, node, gres string) error {
	_, err := c.run(ctx, "scontrol", "update", "NodeName="+node, "Gres="+gres)
	return err
}

// Job is what squeue tells of a job.
type Job struct {
	ID          uint32
	ArrayJobID  uint32 // 0: no array
	ArrayTask   string
	State       string // COMPLETING, RUNNING, ...
	TresPerNode string
	Partition   string
	Account     string
	Reason      string // why it is pending; Prolog: it runs, and waits for that
	Nodes       int    // that it has, or asks for
	UID         uint32
	Name        string
}

// Target is the id to give to scontrol for this job alone. The raw id of one
// member of an array equals the array's id and would mean all of it.
func (j Job) Target() string {
	if j.ArrayJobID != 0 {
		return fmt.Sprintf("%d_%s", j.ArrayJobID, j.ArrayTask)
	}
	return strconv.FormatUint(uint64(j.ID), 10)
}

// ErrNoJob means that slurmctld does not know the job (any more).
var ErrNoJob = errors.New("no such job")

// squeueFormat ends with the one field that may hold the separator.
const squeueFormat = "%A|%F|%K|%T|%P|%a|%r|%D|%U|%b|%j"

// Job asks slurmctld about one job.
func (c Client) Job(ctx context.Context, id uint32) (Job, error) {
	out, err := c.run(ctx, "squeue", "--noheader", "--states=all", "--jobs="+strconv.FormatUint(uint64(id), 10), "--format="+squeueFormat)
	if err != nil {
		if strings.Contains(err.Error(), "Invalid job id") {
			return Job{}, ErrNoJob
		}
		return Job{}, err
	}
	for line := range strings.Lines(out) {
		if j, ok := parseJob(strings.TrimRight(line, "\n")); ok && j.ID == id {
			return j, nil
		}
	}
	return Job{}, ErrNoJob
}

func parseJob(line string) (Job, bool) {
	f := strings.SplitN(line, "|", 11)
	if len(f) != 11 {
		return Job{}, false
	}
	id, err := strconv.ParseUint(f[0], 10, 32)
	if err != nil {
		return Job{}, false
	}
	j := Job{ID: uint32(id), State: f[3], Partition: f[4], Account: f[5], Reason: f[6], TresPerNode: f[9], Name: f[10]}
	j.Nodes, _ = strconv.Atoi(f[7])
	uid, _ := strconv.ParseUint(f[8], 10, 32)
	j.UID = uint32(uid)
	if j.Account == "(null)" {
		j.Account = ""
	}
	// For a job that is no array squeue prints %F = %A and %K = N/A.
	if array, err := strconv.ParseUint(f[1], 10, 32); err == nil && f[2] != "N/A" && f[2] != "" {
		j.ArrayJobID, j.ArrayTask = uint32(array), f[2]
	}
	return j, true
}

// RequeueHold puts a job back into the queue, held.
func (c Client) RequeueHold(ctx context.Context, target string) error {
	_, err := c.run(ctx, "scontrol", "requeuehold", target)
	return err
}

// ErrBatchOnly means that the job cannot be requeued because it is no batch job.
var ErrBatchOnly = errors.New("not a batch job")

// RequeueIncomplete puts a running job that has not launched back into the
// queue. The error is ErrBatchOnly for a job of srun or salloc.
func (c Client) RequeueIncomplete(ctx context.Context, target string) error {
	_, err := c.run(ctx, "scontrol", "requeue", "incomplete", target)
	if err != nil && strings.Contains(err.Error(), "Only batch jobs") { // ESLURM_BATCH_ONLY
		return ErrBatchOnly
	}
	return err
}

// Change is what an update of a pending or completing job sets; empty fields
// stay as they are.
type Change struct {
	Partition    string
	TresPerNode  string
	AdminComment string
	StartIn      time.Duration // not before; of use only for a job that is pending, or will be
}

// Update changes a job in one RPC.
func (c Client) Update(ctx context.Context, target string, change Change) error {
	args := []string{"update", "JobId=" + target}
	for _, f := range []struct{ name, value string }{
		{"Partition", change.Partition}, {"Gres", change.TresPerNode}, {"AdminComment", change.AdminComment},
	} {
		if f.value != "" {
			args = append(args, f.name+"="+f.value)
		}
	}
	if change.StartIn > 0 {
		args = append(args, fmt.Sprintf("StartTime=now+%.0f", change.StartIn.Seconds()))
	}
	_, err := c.run(ctx, "scontrol", args...)
	return err
}

// Requeueing is what decides whether and how a job goes back.
type Requeueing struct {
	Leader       uint32 // of a heterogeneous job: the only id that requeues it; 0: none
	Component    string // of a heterogeneous job: what updates this component alone
	Allowed      bool   // false: --no-requeue, or JobRequeue=0
	AdminComment string
}

// requeueFormat ends with the one field that may hold the separator.
const requeueFormat = "JobID:|,HetJobID:|,HetJobOffset:|,Requeue:|,admin_comment:"

// Requeueing asks slurmctld about a job.
func (c Client) Requeueing(ctx context.Context, id uint32) (Requeueing, error) {
	out, err := c.run(ctx, "squeue", "--noheader", "--states=all", "--jobs="+strconv.FormatUint(uint64(id), 10), "--Format="+requeueFormat)
	if err != nil {
		return Requeueing{}, err
	}
	for line := range strings.Lines(out) {
		f := strings.SplitN(strings.TrimRight(line, " \n"), "|", 5)
		if len(f) != 5 || strings.TrimSpace(f[0]) != strconv.FormatUint(uint64(id), 10) {
			continue
		}
		r := Requeueing{Allowed: strings.TrimSpace(f[3]) == "1", AdminComment: strings.TrimSpace(f[4])}
		if leader, err := strconv.ParseUint(strings.TrimSpace(f[1]), 10, 32); err == nil && leader > 0 { // N/A: no het job
			r.Leader = uint32(leader)
			r.Component = fmt.Sprintf("%d+%s", leader, strings.TrimSpace(f[2]))
		}
		if r.AdminComment == "(null)" {
			r.AdminComment = ""
		}
		return r, nil
	}
	return Requeueing{}, ErrNoJob
}

// Eligibility is from when on a job may start.
type Eligibility struct {
	At        time.Time // zero: not as things are, or slurmctld has not looked yet
	Restarts  int       // how often it has gone back into the queue
	Submitted time.Time // or when it last went back (batch_requeue_fini)
}

// Eligibility asks slurmctld from when on a job may start. The reason that it waits
// for tells that only after slurmctld's next look at it.
func (c Client) Eligibility(ctx context.Context, id uint32) (Eligibility, error) {
	text, err := c.field(ctx, id, "RestartCnt:|,SubmitTime:|,EligibleTime")
	if err != nil {
		return Eligibility{}, err
	}
	count, times, _ := strings.Cut(text, "|")
	submitted, at, _ := strings.Cut(times, "|")
	n, err := strconv.Atoi(strings.TrimSpace(count))
	if err != nil {
		return Eligibility{}, fmt.Errorf("squeue: %.50q is no count of restarts and no time of job %d", text, id)
	}
	return Eligibility{unix(strings.TrimSpace(at)), n, unix(strings.TrimSpace(submitted))}, nil
}

// Exit asks slurmctld how a job ended: the exit status of its batch script, or the
// signal that ended that.
func (c Client) Exit(ctx context.Context, id uint32) (code, signal int, err error) {
	status, err := c.field(ctx, id, "exit_code")
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(status, "%d:%d", &code, &signal); err != nil {
		return 0, 0, fmt.Errorf("squeue: %.50q is no exit status of job %d", status, id)
	}
	return code, signal, nil
}

// field is what squeue prints of a job for one of its --Format, or for several that
// are joined as --Format wants them.
func (c Client) field(ctx context.Context, id uint32, name string) (string, error) {
	out, err := c.run(ctx, "squeue", "--noheader", "--states=all", "--jobs="+strconv.FormatUint(uint64(id), 10), "--Format=JobID:|,"+name+":")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		job, text, _ := strings.Cut(line, "|")
		if strings.TrimSpace(job) == strconv.FormatUint(uint64(id), 10) {
			return strings.TrimSpace(text), nil
		}
	}
	return "", ErrNoJob
}

// Partition is who may use a partition. Empty lists bar nobody.
type Partition struct {
	Up            bool // its jobs start
	AllowGroups   []string
	AllowAccounts []string
	DenyAccounts  []string
}

// Admits tells whether jobs of an account may be there.
func (p Partition) Admits(account string) bool {
	if len(p.AllowAccounts) > 0 {
		return slices.Contains(p.AllowAccounts, account)
	}
	return !slices.Contains(p.DenyAccounts, account)
}

// Partition asks slurmctld about a partition. An error is also that there is none
// of the name.
func (c Client) Partition(ctx context.Context, name string) (p Partition, err error) {
	out, err := c.run(ctx, "scontrol", "show", "partition", name)
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, " ") {
			continue
		}
		for word := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(word, "=")
			list := strings.Split(value, ",")
			switch {
			case key == "State":
				p.Up = value == "UP"
			case value == "ALL" || value == "(null)" || value == "":
			case key == "AllowGroups":
				p.AllowGroups = list
			case key == "AllowAccounts":
				p.AllowAccounts = list
			case key == "DenyAccounts":
				p.DenyAccounts = list
			}
		}
	}
	return p, nil
}

// SetStart lets a pending job start at a time and not before.
func (c Client) SetStart(ctx context.Context, target string, at time.Time) error {
	_, err := c.run(ctx, "scontrol", "update", "JobId="+target, "StartTime="+slurmTime(at))
	return err
}

// Version is a release of Slurm.
type Version struct{ Major, Minor, Micro int }

// Before tells whether v is older than major.minor.
func (v Version) Before(major, minor int) bool {
	return v.Major < major || v.Major == major && v.Minor < minor
}

// Version asks the installed commands what they are; it is no RPC.
func (c Client) Version(ctx context.Context) (Version, error) {
	out, err := c.run(ctx, "scontrol", "--version")
	if err != nil {
		return Version{}, err
	}
	var v Version
	fields := strings.Fields(out) // "slurm 23.11.1", on Debian "slurm-wlm 22.05.8"
	if len(fields) < 2 {
		return v, fmt.Errorf("scontrol --version: %.50q is no version", out)
	}
	if _, err := fmt.Sscanf(fields[1], "%d.%d.%d", &v.Major, &v.Minor, &v.Micro); err != nil {
		return v, fmt.Errorf("scontrol --version: %.50q is no version", out)
	}
	return v, nil
}

// Release lets a held job start.
func (c Client) Release(ctx context.Context, target string) error {
	_, err := c.run(ctx, "scontrol", "release", target)
	return err
}

// Notify writes a line to the terminal of a job of srun or salloc, and into the
// stderr of a batch script.
func (c Client) Notify(ctx context.Context, job uint32, text string) error {
	_, err := c.run(ctx, "scontrol", "notify", strconv.FormatUint(uint64(job), 10), text)
	return err
}

// Cancel ends a job.
func (c Client) Cancel(ctx context.Context, target string) error {
	_, err := c.run(ctx, "scancel", target)
	return err
}
