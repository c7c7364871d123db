// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"carma/cmd/carma-sim/internal/replay"
)

// Job is a job of the trace as submitted.
type Job struct {
	GPUs       int
	Exclusive  bool
	ReserveMiB int64
	SMActPct   float64
	Draw       replay.Draw

	body string // instead of a training
}

// script is the batch script of a job. It writes down when each attempt begins
// and ends.
func (j *Job) script() string {
	line, body := fmt.Sprintf("mem=%dM", j.ReserveMiB), j.body
	if j.Exclusive {
		line = "policy=exclusive"
	}
	if body == "" {
		d := &j.Draw
		body = fmt.Sprintf("simjob --gpus %d --mem %dM --spike %dM:%.0fms --smact %.3g --startup %.0fms --duration "+
			"%.0fms --ramp 0s",
			j.GPUs, d.SteadyMiB, d.PeakMiB, 1000*d.SpikeS, j.SMActPct, 1000*d.StartupS, 1000*d.AloneS)
	}
	return "#!/bin/bash\n#SBATCH --gres=gpu:" + strconv.Itoa(j.GPUs) +
		"\n#SBATCH --output=%j.out --error=%j.err --open-mode=append\n#CARMA " + line + "\n" +
		"echo begin $EPOCHREALTIME >>$SLURM_JOB_ID.times\n" + body +
		"\nrc=$?\necho end $EPOCHREALTIME $rc >>$SLURM_JOB_ID.times\nexit $rc\n"
}

func (c *Cluster) jobs() string { return filepath.Join(c.dir, "jobs") }

// submit hands a job to sbatch as an ordinary user.
func (c *Cluster) submit(ctx context.Context, j Job) (id string, err error) {
	f, err := os.CreateTemp(c.jobs(), "submit-*.sh")
	if err != nil {
		return "", fmt.Errorf("write a batch script: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(j.script())
	if err == nil {
		err = f.Chmod(0o644)
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return "", fmt.Errorf("write a batch script: %w", err)
	}
	out, err := output(ctx, c.jobs(), nil, "runuser", "-u", c.user, "--", "sbatch", "--parsable", f.Name())
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(out)), nil
}

// Submit submits jobs at their times, in simulated seconds from now on, and
// returns their ids. It calls each after each job.
func (c *Cluster) Submit(ctx context.Context, jobs []Job, each func()) ([]string, error) {
	var ids []string
	begin := time.Now()
	for i := range jobs {
		at := begin.Add(time.Duration(jobs[i].Draw.ArrivalS / c.GPUs.TimeScale * float64(time.Second)))
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
			return ids, ctx.Err()
		}
		id, err := c.submit(ctx, jobs[i])
		if err != nil {
			return ids, err
		}
		ids = append(ids, id)
		each()
	}
	return ids, nil
}

// Wait waits until the user has no job in the queue; left is told how many.
func (c *Cluster) Wait(ctx context.Context, left func(int)) error {
	for {
		out, err := output(ctx, c.dir, nil, "squeue", "-h", "-u", c.user, "-o", "%i")
		if err != nil {
			return err
		}
		n := len(strings.Fields(string(out)))
		if n == 0 {
			return nil
		}
		if left != nil {
			left(n)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Cancel takes jobs out of the queue.
func (c *Cluster) Cancel(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := output(ctx, c.dir, nil, "scancel", ids...)
	return err
}

// attempt is one attempt of a job; end is zero if its script did not reach its
// end.
type attempt struct {
	begin, end time.Time
	rc         int
}

func (c *Cluster) attempts(id string) ([]attempt, error) {
	path := filepath.Join(c.jobs(), id+".times")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("job %s never began; see %s", id, filepath.Join(c.dir, "log"))
	}
	if err != nil {
		return nil, fmt.Errorf("read the times of job %s: %w", id, err)
	}
	return parseTimes(path, string(text))
}

func parseTimes(path, text string) ([]attempt, error) {
	var list []attempt
	for i, line := range strings.Split(strings.TrimSpace(text), "\n") {
		f := strings.Fields(line)
		bad := fmt.Errorf("%s: line %d: %q is no time", path, i+1, line)
		if len(f) < 2 {
			return nil, bad
		}
		s, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return nil, bad
		}
		at := time.UnixMicro(int64(s * 1e6))
		switch {
		case f[0] == "begin" && len(f) == 2:
			list = append(list, attempt{begin: at})
		case f[0] == "end" && len(f) == 3 && len(list) > 0:
			a := &list[len(list)-1]
			a.end = at
			if a.rc, err = strconv.Atoi(f[2]); err != nil {
				return nil, bad
			}
		default:
			return nil, bad
		}
	}
	return list, nil
}

// Collect sums up the results of the jobs. begun is when the first was
// submitted, before is the state of the GPUs at the time; times of the result
// are simulated.
func (c *Cluster) Collect(ctx context.Context, ids []string, jobs []Job, begun time.Time, before GPUs) (replay.Result,
	error) {
	after, err := c.Look(ctx)
	seen := time.Now()
	if err != nil {
		return replay.Result{}, err
	}
	var r replay.Result
	x, n := c.GPUs.TimeScale, float64(len(ids))
	var last time.Time
	for i, id := range ids {
		list, err := c.attempts(id)
		if err != nil {
			return r, err
		}
		for _, a := range list {
			if a.end.IsZero() {
				return r, fmt.Errorf("job %s was ended from outside", id)
			}
			if a.rc != 0 {
				r.OOM++
			}
			r.ExecS += a.end.Sub(a.begin).Seconds() * x / n
		}
		a := list[len(list)-1]
		if a.rc != 0 {
			r.Failed++
		}
		if a.end.After(last) {
			last = a.end
		}
		r.JCTS += (a.end.Sub(begun).Seconds()*x - jobs[i].Draw.ArrivalS) / n
	}
	r.WaitS = r.JCTS - r.ExecS
	r.MakespanS = last.Sub(begun).Seconds() * x
	// Idle since the last job has ended.
	r.EnergyJ = after.energyJ() - before.energyJ() - after.watts()*seen.Sub(last).Seconds()*x
	return r, nil
}
