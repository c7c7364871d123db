// SPDX-License-Identifier: Apache-2.0

// Command scale measures the load of CARMA's agents on slurmctld, on a cluster of thousands of nodes:
// idle and under load, with and without agents, in one run. slurmctld, munged, Slurm's commands and a
// few slurmds, on which jobs start, are real. The other nodes have no slurmd: slurmctld has them idle
// and not responding, and a long SlurmdTimeout keeps the nodes so. Agents have no GPUs; many agents
// run in this process, with a real ledger and the real Publisher each.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"carma/gres"
	"carma/gres/capacity"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

const (
	gpus    = 4
	fullMiB = 40536
	compare = 30 * time.Second // capacity.compare
	runs    = 5 * time.Second  // a job
)

// phase is what was measured in one part of a run.
type phase struct {
	Nodes     int                `json:"nodes"`
	Name      string             `json:"phase"`
	Agents    bool               `json:"agents"`
	Seconds   float64            `json:"seconds"`
	CorePct   float64            `json:"slurmctld_core_pct"`
	Starts    float64            `json:"starts_per_s"`
	Updates   float64            `json:"updates_per_s"`
	Asked     float64            `json:"questions_about_nodes_per_s"`
	SbatchMS  [2]float64         `json:"sbatch_p50_p99_ms"`
	SqueueMS  [2]float64         `json:"squeue_p50_p99_ms"`
	Main      string             `json:"main_mean_cycle"`
	Backfill  string             `json:"backfill_mean_cycle"`
	RPCs      map[string]float64 `json:"rpcs_per_s"`
	submitted *samples
	queued    *samples
}

func main() {
	nodes := pflag.IntSlice("nodes", []int{1000, 5000}, "sizes of the cluster")
	starts := pflag.Float64("starts", 5, "job starts per second under load")
	waiting := pflag.Int("waiting", 10000, "jobs that wait")
	seconds := pflag.Int("seconds", 60, "of each phase")
	pairs := pflag.Int("pairs", 3, "phases under load without and with agents, in turn")
	live := pflag.Int("live", 8, "nodes with a slurmd, on which the jobs start")
	out := pflag.String("json", "", "write the figures to this file too")
	pflag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var all []phase
	for _, n := range *nodes {
		phases, err := measure(ctx, &bench{nodes: n, live: *live, waiting: *waiting, starts: *starts, pairs: *pairs,
			length: time.Duration(*seconds) * time.Second})
		all = append(all, phases...)
		if err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
			os.Exit(1)
		}
	}
	if *out != "" {
		text, err := json.MarshalIndent(all, "", " ")
		if err == nil {
			err = os.WriteFile(*out, append(text, '\n'), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
			os.Exit(1)
		}
	}
}

// measure brings a cluster up, runs the phases and prints each.
func measure(ctx context.Context, b *bench) (phases []phase, err error) {
	if b.dir, err = os.MkdirTemp("", "carma-scale"); err != nil {
		return nil, err
	}
	defer func() {
		b.down()
		if err == nil {
			os.RemoveAll(b.dir)
		} else {
			fmt.Fprintln(os.Stderr, "scale: logs are in", b.dir)
		}
	}()
	if err := b.up(ctx); err != nil {
		return nil, err
	}
	if err := b.makeAgents(ctx); err != nil {
		return nil, err
	}
	if err := b.rest(ctx); err != nil {
		return nil, err
	}
	fmt.Printf("\n%d nodes, %d jobs wait, %s\n", b.nodes, b.waiting, b.version)
	fmt.Printf("%-14s %-7s %8s %8s %9s %9s %18s %18s  %s\n", "phase", "agents", "core %", "starts/s", "updates/s",
		"asked/s",
		"sbatch p50/p99 ms", "squeue p50/p99 ms", "main, backfill mean cycle us")
	plan := []phase{{Name: "idle"}, {Name: "idle", Agents: true}}
	for range b.pairs {
		plan = append(plan, phase{Name: "load"}, phase{Name: "load", Agents: true})
	}
	for _, p := range plan {
		p.Nodes, p.submitted, p.queued = b.nodes, &samples{}, &samples{}
		if p.Name == "load" {
			if err := b.fill(ctx, p.Agents); err != nil {
				return phases, err
			}
		}
		if err := b.phase(ctx, &p); err != nil {
			return phases, err
		}
		fmt.Printf("%-14s %-7t %8.2f %8.1f %9.1f %9.1f %8.0f /%8.0f %8.0f /%8.0f  %s, %s\n", p.Name, p.Agents, p.CorePct,
			p.Starts, p.Updates, p.Asked, p.SbatchMS[0], p.SbatchMS[1], p.SqueueMS[0], p.SqueueMS[1], p.Main, p.Backfill)
		phases = append(phases, p)
	}
	if all, times := ratios(phases); len(times) > 0 {
		fmt.Printf("main cycle under load with agents: %.2f times that without; by pairs: %.2f\n", all, times)
	}
	return phases, nil
}

// ratios compares the mean main cycle under load with agents to the cycle without: over all pairs of phases, and
// pair by pair, to show how far two phases differ by chance.
func ratios(phases []phase) (all float64, times []float64) {
	var without, sumWithout, sumWith float64
	for _, p := range phases {
		us, err := strconv.ParseFloat(p.Main, 64)
		switch {
		case p.Name != "load" || err != nil:
		case !p.Agents:
			without = us
		case without > 0:
			sumWithout, sumWith = sumWithout+without, sumWith+us
			times = append(times, us/without)
		}
	}
	return sumWith / sumWithout, times
}

// group waits for the goroutines that were started in the group.
type group struct{ sync.WaitGroup }

func (g *group) do(f func()) {
	g.Add(1)
	go func() {
		defer g.Done()
		f()
	}()
}

// samples are durations in ms.
type samples struct {
	mu sync.Mutex
	ms []float64
}

func (s *samples) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ms = append(s.ms, float64(d.Microseconds())/1000)
}

func (s *samples) quantiles() (q [2]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.ms)
	if n := len(s.ms); n > 0 {
		q = [2]float64{s.ms[n/2], s.ms[n*99/100]}
	}
	return q
}

// phase runs one part and measures it.
func (b *bench) phase(ctx context.Context, p *phase) error {
	if _, err := b.sh(ctx, "sdiag", "--reset"); err != nil {
		return err
	}
	cpu, err := b.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	b.asked.Store(0)
	b.updates.Store(0)
	part, end := context.WithTimeout(ctx, b.length)
	defer end()
	var work group
	if p.Agents {
		work.do(func() { b.talk(part) })
	}
	work.do(func() { <-part.Done() })
	started := 0
	if p.Name != "idle" {
		work.do(func() { started = b.load(part, p) })
		work.do(func() { b.look(part, p) })
	}
	work.Wait()
	p.Seconds = time.Since(began).Seconds()
	after, err := b.cpu()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return err
	}
	p.CorePct = 100 * (after - cpu).Seconds() / p.Seconds
	p.Starts = float64(started) / p.Seconds
	p.Asked, p.Updates = float64(b.asked.Load())/p.Seconds, float64(b.updates.Load())/p.Seconds
	p.SbatchMS, p.SqueueMS = p.submitted.quantiles(), p.queued.quantiles()
	text, err := b.sh(ctx, "sdiag")
	p.RPCs, p.Main, p.Backfill = diagnosis(text, p.Seconds)
	return err
}

// diagnosis reads from sdiag the RPCs to slurmctld, and how long its cycles took.
func diagnosis(text string, seconds float64) (rpcs map[string]float64, main, backfill string) {
	rpcs = map[string]float64{}
	inBackfill := false
	for line := range strings.Lines(text) {
		inBackfill = inBackfill || strings.HasPrefix(line, "Backfilling stats")
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var count float64
		if i := strings.Index(rest, "count:"); i >= 0 && strings.HasPrefix(name, "REQUEST_") {
			if _, err := fmt.Sscanf(rest[i:], "count:%g", &count); err == nil {
				rpcs[name] = count / seconds
			}
		}
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "Mean cycle:"); ok && inBackfill {
			backfill = strings.TrimSpace(value)
		} else if ok {
			main = strings.TrimSpace(value)
		}
	}
	return rpcs, main, backfill
}

// node is one node's agent: its questions and messages to slurmctld about its node, and
// no more.
type node struct {
	book *lease.Ledger
	pub  *capacity.Publisher
}

// makeAgents makes the agents, as if they had run for long.
func (b *bench) makeAgents(ctx context.Context) error {
	text := ""
	for i := range b.nodes {
		name := b.name(i)
		dir := filepath.Join(b.dir, "run", name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		book, err := lease.Open(dir, 5*time.Second)
		if err != nil {
			return err
		}
		var readings []gres.Reading
		for g := range gpus {
			readings = append(readings, gres.Reading{GPU: gres.GPU{UUID: fmt.Sprint("GPU-", g), Index: g, TotalMiB: fullMiB}})
		}
		if err := book.PutReadings(ctx, readings); err != nil {
			return err
		}
		n := &node{book: book, pub: &capacity.Publisher{Node: name, RunDir: dir, Slurm: (*asking)(b), Book: book,
			Policy: policy.Carma, FullMiB: []int64{fullMiB},
			Thresholds: choose.Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4, CrossUser: true}}}
		if text == "" {
			if err := n.pub.Publish(ctx); err != nil {
				return err
			}
			if text, _, _, err = book.Published(ctx); err != nil {
				return err
			}
		} else if err := book.SetPublished(ctx, text, 0); err != nil {
			return err
		}
		b.agents = append(b.agents, n)
	}
	_, err := b.sh(ctx, "scontrol", "update", "NodeName="+b.all(), "Extra="+text)
	return err
}

// asking is slurmctld as the agents ask, and counts the questions.
type asking bench

func (a *asking) Node(ctx context.Context, name string) (extra string, err error) {
	a.asked.Add(1)
	return a.slurm.Node(ctx, name)
}

func (a *asking) SetNodeExtra(ctx context.Context, name, text string) error {
	a.updates.Add(1)
	return a.slurm.SetNodeExtra(ctx, name, text)
}

// talk has each agent compare when due, and publish changes.
func (b *bench) talk(ctx context.Context) {
	next := make(chan *node)
	var work group
	for range 16 {
		work.do(func() {
			for n := range next {
				s, err := n.book.Snapshot(ctx)
				if err == nil {
					err = n.pub.PublishIf(ctx, s)
				}
				if err == nil || errors.Is(err, capacity.ErrTooSoon) {
					_, _, err = n.pub.CompareIf(ctx, s, compare, b.nodes)
				}
				if err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "scale:", err)
				}
			}
		})
	}
	// The agent itself looks each second. All at once would keep slurmctld from its cores.
	each := time.NewTicker(max(5*time.Second/time.Duration(b.nodes), 2*time.Millisecond))
	defer each.Stop()
	for i := 0; ctx.Err() == nil; i = (i + 1) % len(b.agents) {
		select {
		case <-ctx.Done():
		case <-each.C:
			next <- b.agents[i]
		}
	}
	close(next)
	work.Wait()
}

// load submits jobs that start at once on the nodes with a slurmd. With agents each has a lease
// on some node, which publishes at the start and the end, and its end is asked for.
func (b *bench) load(ctx context.Context, p *phase) (started int) {
	tick := time.NewTicker(time.Duration(float64(time.Second) / b.starts))
	defer tick.Stop()
	var work group
	for {
		select {
		case <-ctx.Done():
			work.Wait()
			return started
		case <-tick.C:
		}
		started++
		work.do(func() {
			at := time.Now()
			out, err := b.sh(ctx, "sbatch", "--parsable", "--constraint=live", "--output=/dev/null", "--wrap",
				fmt.Sprintf("sleep %.0f", runs.Seconds()))
			if err != nil {
				return // the phase is over
			}
			p.submitted.add(time.Since(at))
			var id uint32
			if _, err := fmt.Sscan(out, &id); err == nil && p.Agents {
				b.run(ctx, id)
			}
		})
	}
}

// run is a job by what the agent of its node does about it.
func (b *bench) run(ctx context.Context, id uint32) {
	n := b.agents[rand.IntN(len(b.agents))]
	publish := func() {
		if s, err := n.book.Snapshot(ctx); err == nil {
			n.pub.PublishIf(ctx, s) // failed publishing is repeated by talk
		}
	}
	job := lease.Job{JobKey: jobenv.JobKey{JobID: id}, UID: 1000}
	if _, err := n.book.Acquire(ctx, job, gres.Request{GPUs: 1, ReserveMiB: 10240, UID: 1000},
		func([]gres.Reading, []gres.Lease, string) ([]string, gres.Daemon) {
			return []string{fmt.Sprint("GPU-", id%gpus)}, ""
		}); err != nil {
		return
	}
	publish()
	select {
	case <-ctx.Done():
	case <-time.After(runs + time.Second):
	}
	n.book.Release(ctx, job.JobKey)
	publish()
	b.slurm.Job(ctx, id) // as the agent does for the record
	b.slurm.Words(ctx, id)
}

// look asks for the queue of one user as people do.
func (b *bench) look(ctx context.Context, p *phase) {
	for ctx.Err() == nil {
		at := time.Now()
		if _, err := b.sh(ctx, "squeue", "--noheader", "--user=nobody"); err == nil {
			p.queued.add(time.Since(at))
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}
