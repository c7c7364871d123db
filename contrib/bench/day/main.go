// SPDX-License-Identifier: Apache-2.0

// Command day measures when large jobs start: a synthetic day of small and large jobs on the
// development cluster (make bench-day), with a minute for an hour, first without CARMA, then with
// it and no directive in any job, then with small jobs that share. slurmctld, slurmds, hooks and
// agents are real; the jobs sleep. A step that takes CARMA a second takes a minute of the day.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

const (
	gpusPerNode = 4
	slotsPerGPU = 4 // of the development cluster
)

func main() {
	nodes := pflag.Int("nodes", 48, "of the cluster, with 4 GPUs each")
	length := pflag.Duration("length", 10*time.Minute, "jobs are submitted for so long")
	load := pflag.Float64("load", 0.85, "GPU time that the jobs ask for, of what there is")
	seed := pflag.Uint64("seed", 1, "of the jobs")
	only := pflag.StringSlice("only", []string{"none", "exclusive", "shared"}, "runs")
	out := pflag.String("json", "", "write the figures to this file too")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	jobs := makeJobs(rand.New(rand.NewPCG(*seed, 0)), *nodes, *length, *load)
	fmt.Printf("%d jobs on %d nodes in %v, seed %d; waits in s (a minute of the day each)\n", len(jobs), *nodes, *length,
		*seed)
	fmt.Printf("%-10s %-14s %6s %8s %8s %8s %8s %8s %9s\n", "run", "class", "jobs", "refused", "mean", "median", "p95",
		"longest", "restarts")
	var all []outcome
	for _, name := range *only {
		figures, err := measure(ctx, name, *nodes, jobs)
		if err != nil {
			fmt.Fprintln(os.Stderr, "day:", err)
			os.Exit(1)
		}
		all = append(all, figures...)
	}
	if *out != "" {
		text, err := json.MarshalIndent(all, "", " ")
		if err == nil {
			err = os.WriteFile(*out, append(text, '\n'), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "day:", err)
			os.Exit(1)
		}
	}
}

// job is a job of the day.
type job struct {
	class       string
	at          time.Duration // of its submission
	runs        time.Duration
	limit       int // minutes
	nodes, gpus int // gpus of each node
	memGiB      int // that the job books when sharing
	user        int
}

// classes are the sizes of jobs and their shares; sizes as of a training cluster: most jobs are
// small, most GPU time is in large ones.
var classes = []struct {
	name        string
	share       float64
	nodes, gpus int
}{
	{"1 GPU", 0.70, 1, 1}, {"2 GPUs", 0.15, 1, 2}, {"a node", 0.09, 1, 4}, {"4 nodes", 0.04, 4, 4},
	{"8 nodes", 0.02, 8, 4},
}

// makeJobs draws jobs with the given share of the cluster's GPU time. Run times are lognormal, of
// 20 s in the median (20 minutes) and 4 minutes (4 hours) at most; limits are 1.2 to 3 times that.
func makeJobs(r *rand.Rand, nodes int, length time.Duration, load float64) []job {
	var jobs []job
	budget := load * float64(nodes*gpusPerNode) * length.Seconds()
	for budget > 0 {
		x, c := r.Float64(), 0
		for x > classes[c].share && c < len(classes)-1 {
			x -= classes[c].share
			c++
		}
		runs := min(20*math.Exp(r.NormFloat64()), 240)
		j := job{class: classes[c].name, at: time.Duration(r.Float64() * float64(length)), nodes: classes[c].nodes,
			gpus: classes[c].gpus, runs: time.Duration(runs * float64(time.Second)),
			limit: int(math.Ceil(runs * (1.2 + 1.8*r.Float64()) / 60)), memGiB: 6 + 4*r.IntN(4), user: r.IntN(3)}
		budget -= runs * float64(j.nodes*j.gpus)
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(a, b job) int { return int(a.at - b.at) })
	return jobs
}

// script is the job's, for one of the runs. Without CARMA the cluster counts the slots only.
func (j job) script(run string) string {
	gpus, directive := j.gpus, ""
	switch {
	case run == "none":
		gpus *= slotsPerGPU
	case run == "shared" && j.nodes == 1 && j.gpus < gpusPerNode:
		directive = fmt.Sprintf("#CARMA mem=%dG\n", j.memGiB)
	}
	return fmt.Sprintf("#!/bin/bash\n#SBATCH -N %d -n %d --gres=gpu:%d -t %d -o %%j.out\n%secho start $(date +%%s.%%N) "+
		"${SLURM_RESTART_COUNT:-0}\nsleep %.2f\necho end $(date +%%s.%%N)\n", j.nodes, j.nodes, gpus, j.limit, directive,
		j.runs.Seconds())
}

// cluster is a development cluster.
type cluster struct {
	dir string
	env []string
}

func (c *cluster) run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Dir = filepath.Join(c.dir, "jobs")
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %.300s", name, strings.Join(args, " "), err, text)
	}
	return string(text), nil
}

// up starts a cluster whose times are a sixtieth of the default where the day would feel them.
func up(ctx context.Context, nodes int, carma bool) (*cluster, error) {
	dir, err := os.MkdirTemp("/tmp", "day")
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir}
	args := []string{"up", dir, "--nodes", strconv.Itoa(nodes), "--time-scale", "10"}
	if !carma {
		args = append(args, "--no-carma")
	}
	if text, err := exec.CommandContext(ctx, "contrib/devcluster/devcluster", args...).CombinedOutput(); err != nil {
		return c, fmt.Errorf("devcluster up: %w: %.300s", err, text)
	}
	text, err := exec.CommandContext(ctx, "contrib/devcluster/devcluster", "env", dir).Output()
	if err != nil {
		return c, fmt.Errorf("devcluster env: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		value, rest, _ := strings.Cut(strings.TrimPrefix(value, "'"), "'")
		if rest != "" { // PATH
			value += ":" + os.Getenv("PATH")
		}
		c.env = append(c.env, name+"="+value)
	}
	if !carma {
		return c, nil
	}
	conf := filepath.Join(dir, "etc/carma.toml")
	toml, err := os.ReadFile(conf)
	if err != nil {
		return c, err
	}
	// One look a second of each agent is enough for sleeping jobs, and two cores can do no
	// more.
	toml = append(bytes.Replace(toml, []byte(`interval = "250ms"`), []byte(`interval = "1s"`), 1),
		"\n[hold]\nafter = \"120s\"\n"...)
	if err := os.WriteFile(conf, toml, 0o644); err != nil {
		return c, err
	}
	restart := exec.CommandContext(ctx, "contrib/devcluster/devcluster", "restart", dir, "agent")
	if text, err := restart.CombinedOutput(); err != nil {
		return c, fmt.Errorf("devcluster restart: %w: %.300s", err, text)
	}
	return c, nil
}

func (c *cluster) down() error {
	text, err := exec.Command("contrib/devcluster/devcluster", "down", c.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("devcluster down: %w: %.300s", err, text)
	}
	return os.RemoveAll(c.dir)
}

// outcome is what one class of jobs met in one run.
type outcome struct {
	Run      string  `json:"run"`
	Class    string  `json:"class"`
	Jobs     int     `json:"jobs"`
	Refused  int     `json:"refused"` // at submission, or given up later (BadConstraints)
	MeanS    float64 `json:"mean_wait_s"`
	MedianS  float64 `json:"median_wait_s"`
	P95S     float64 `json:"p95_wait_s"`
	LongestS float64 `json:"longest_wait_s"`
	Restarts int     `json:"restarts"`
	LastS    float64 `json:"last_end_s"` // of all jobs
}

// measure brings a cluster up, submits the day to it and waits for its end.
func measure(ctx context.Context, run string, nodes int, jobs []job) (figures []outcome, err error) {
	c, err := up(ctx, nodes, run != "none")
	if c != nil {
		defer func() {
			if err == nil {
				err = c.down()
			} else {
				err = fmt.Errorf("%w; the cluster stays in %s", err, c.dir)
			}
		}()
	}
	if err != nil {
		return nil, err
	}
	users := []string{"carma-alice", "carma-bob", "carma-carol"}
	submitted := make([]time.Time, len(jobs))
	ids := make([]string, len(jobs))
	began := time.Now()
	for i, j := range jobs {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Until(began.Add(j.at))):
		}
		file := filepath.Join(c.dir, "jobs", fmt.Sprintf("s%d", i))
		if err := os.WriteFile(file, []byte(j.script(run)), 0o644); err != nil {
			return nil, err
		}
		submitted[i] = time.Now()
		id, err := c.run(ctx, "runuser", "-u", users[j.user], "--", "sbatch", "--parsable", file)
		if err != nil && strings.Contains(err.Error(), "Requested node configuration is not available") {
			continue
		} else if err != nil {
			return nil, err
		}
		lines := strings.Split(strings.TrimSpace(id), "\n") // after what job_submit tells the user
		ids[i] = lines[len(lines)-1]
	}
	waits := make([]float64, len(jobs))
	restarts := make([]int, len(jobs))
	last := 0.0
	for i := range jobs {
		for ids[i] != "" {
			start, end, n := c.times(ids[i])
			if end > 0 {
				waits[i], restarts[i] = start-float64(submitted[i].UnixNano())/1e9, n
				last = max(last, end-float64(began.UnixNano())/1e9)
				break
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if time.Since(submitted[len(jobs)-1]) > 30*time.Minute {
				return nil, fmt.Errorf("job %s (%s) has not ended", ids[i], jobs[i].class)
			}
			if reason, err := c.run(ctx, "squeue", "-h", "-j", ids[i], "-o", "%r"); err == nil &&
				strings.HasPrefix(reason, "BadConstraints") {
				ids[i] = ""
			}
			time.Sleep(time.Second)
		}
	}
	for _, k := range classes {
		f := outcome{Run: run, Class: k.name, LastS: last}
		var of []float64
		for i, j := range jobs {
			switch {
			case j.class != k.name:
			case ids[i] == "":
				f.Refused++
			default:
				of = append(of, waits[i])
				f.MeanS += waits[i]
				f.Restarts += restarts[i]
			}
		}
		if f.Jobs = len(of); f.Jobs > 0 {
			slices.Sort(of)
			f.MeanS /= float64(len(of))
			f.MedianS, f.P95S, f.LongestS = of[len(of)/2], of[len(of)*95/100], of[len(of)-1]
		}
		fmt.Printf("%-10s %-14s %6d %8d %8.1f %8.1f %8.1f %8.1f %9d\n", run, k.name, f.Jobs, f.Refused, f.MeanS, f.MedianS,
			f.P95S, f.LongestS, f.Restarts)
		figures = append(figures, f)
	}
	fmt.Printf("%-10s all jobs have ended after %.0f s\n", run, last)
	return figures, nil
}

// times are when a job's last attempt started and ended, 0 before it has, and its restarts.
func (c *cluster) times(id string) (start, end float64, restarts int) {
	text, err := os.ReadFile(filepath.Join(c.dir, "jobs", id+".out"))
	if err != nil {
		return 0, 0, 0
	}
	for line := range strings.Lines(string(text)) {
		if _, err := fmt.Sscanf(line, "start %g %d", &start, &restarts); err == nil {
			end = 0
			continue
		}
		fmt.Sscanf(line, "end %g", &end)
	}
	return start, end, restarts
}
