// SPDX-License-Identifier: Apache-2.0

// Bench starts many Prologs and Epilogs at once on a node of 8 simulated H100,
// kills some of them at named places, and checks from the ledger's own log that
// no memory was promised twice and no lease was left (make bench-placement).
package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver
	"github.com/spf13/pflag"
)

// The places to die at (lease.FailPoint), by hook.
var (
	inProlog = []string{"prolog.start", "prolog.refreshed", "lease.locked", "lease.job-written", "lease.written",
		"lease.committed", "prolog.task-file-written", "prolog.poked"}
	inEpilog = []string{"epilog.start", "epilog.recorded", "lease.release-written", "epilog.released"}
)

func main() {
	rounds := pflag.Int("rounds", 200, "`N` rounds; in every other one hooks are killed")
	jobs := pflag.Int("jobs", 64, "`N` Prologs at once")
	seed := pflag.Uint64("seed", 1, "of sizes and deaths")
	idle := pflag.Duration("idle", time.Minute, "`TIME` over which the idle agent is watched")
	pflag.Parse()
	if err := run(*rounds, *jobs, *seed, *idle); err != nil {
		fmt.Fprintln(os.Stderr, "bench-placement:", err)
		os.Exit(1)
	}
}

func run(rounds, jobs int, seed uint64, idle time.Duration) (err error) {
	n, err := newNode()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	r := rand.New(rand.NewPCG(seed, 0))
	var took latencies
	for i := range rounds {
		if err := n.round(r, i, jobs, i%2 == 1, &took); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	decisions, promised, err := check(n.audit)
	if err != nil {
		return err
	}
	fmt.Printf("%d rounds of %d Prologs on 8 GPUs, hooks killed at %d places %d times\n", rounds, jobs,
		len(inProlog)+len(inEpilog), n.killed)
	fmt.Printf("%d changes of the ledger replayed: %d MiB promised twice, 0 leases left after any round\n", decisions,
		promised)
	decided, err := n.logged()
	if err != nil {
		return err
	}
	fmt.Printf("a Prolog's way to its lease, %d at once:  %s\n", jobs, decided)
	fmt.Printf("a Prolog's process, start to end:        %s\n", took)
	pct, rss, err := n.watchAgent(idle)
	if err != nil {
		return err
	}
	fmt.Printf("the agent, idle, 8 GPUs at 1 Hz, %v:    %.2f %% of a core, %.1f MiB resident\n", idle, pct, rss)
	if promised != 0 {
		return errors.New("memory was promised twice")
	}
	return nil
}

// job is one attempt of a job.
type job struct {
	id, restart int
	slots       string
	mode        string
	mib         int
}

func newJob(r *rand.Rand, id int) job {
	j := job{id: id, slots: "0", mode: "shared", mib: 4096 * (1 + r.IntN(8))}
	switch r.IntN(10) {
	case 0:
		j.mode, j.mib = "exclusive", 81559
	case 1:
		j.slots = "0,1"
	}
	return j
}

func (j job) env() []string {
	gpus := 1 + strings.Count(j.slots, ",")
	return []string{
		fmt.Sprintf("SLURM_JOB_ID=%d", j.id), fmt.Sprintf("SLURM_JOB_RESTART_COUNT=%d", j.restart),
		"SLURM_JOB_UID=0", "SLURM_JOB_GID=0", "SLURM_JOB_USER=root", "SLURM_JOB_PARTITION=gpu",
		"SLURMD_NODENAME=n1", "SLURM_NODELIST=n2", "SLURM_JOB_GPUS=" + j.slots, "SLURM_JOB_EXIT_CODE2=0:0",
		"SPANK_CARMA_V=1", "SPANK_CARMA_MODE=" + j.mode, "SPANK_CARMA_METHOD=user", fmt.Sprintf("SPANK_CARMA_GPUS=%d", gpus),
		fmt.Sprintf("SPANK_CARMA_MEM_MIB=%d", j.mib), fmt.Sprintf("SPANK_CARMA_EST_MIB=%d", j.mib), "SPANK_CARMA_FULL=81559",
	}
}

// round runs the Prologs of many jobs at once, the killed Prologs once more as
// the next attempt, then all Epilogs.
func (n *node) round(r *rand.Rand, i, count int, faulty bool, took *latencies) error {
	jobs := make([]job, count)
	place := func(places []string) string {
		if faulty && r.IntN(3) == 0 {
			return places[r.IntN(len(places))]
		}
		return ""
	}
	deaths := make([]string, count)
	for k := range jobs {
		jobs[k], deaths[k] = newJob(r, 1+i*count+k), place(inProlog)
	}
	killed, times, err := n.all("prolog", jobs, deaths)
	if err != nil {
		return err
	}
	if !faulty {
		*took = append(*took, times...)
	}
	var again []job
	for k := range jobs {
		if killed[k] {
			jobs[k].restart++ // slurmctld takes the job back and starts it anew
			again = append(again, jobs[k])
		}
	}
	if _, _, err := n.all("prolog", again, make([]string, len(again))); err != nil {
		return err
	}
	for k := range jobs {
		deaths[k] = place(inEpilog)
	}
	if killed, _, err = n.all("epilog", jobs, deaths); err != nil {
		return err
	}
	again = again[:0]
	for k := range jobs {
		if killed[k] { // a lease of the job may stand: the next attempt finds the lease
			jobs[k].restart++
			again = append(again, jobs[k])
		}
	}
	for _, hook := range []string{"prolog", "epilog"} {
		if _, _, err := n.all(hook, again, make([]string, len(again))); err != nil {
			return err
		}
	}
	var left int
	if err := n.audit.QueryRow("SELECT count(*) FROM lease").Scan(&left); err != nil {
		return err
	}
	if left != 0 {
		return fmt.Errorf("%d leases are left", left)
	}
	return nil
}

// all runs one hook for many jobs at once and tells which hooks were killed and
// how long the others took.
func (n *node) all(hook string, jobs []job, deaths []string) (killed []bool, took []time.Duration, err error) {
	killed = make([]bool, len(jobs))
	errs := make([]error, len(jobs))
	times := make([]time.Duration, len(jobs))
	var wg sync.WaitGroup
	for k, j := range jobs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			cmd := exec.Command(filepath.Join(n.dir, "carma-node"), "--config", n.config, hook)
			cmd.Env = append(n.env(), append(j.env(), "CARMA_FAILPOINT="+deaths[k])...)
			start := time.Now()
			out, err := cmd.CombinedOutput()
			times[k] = time.Since(start)
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL && deaths[k] != "" {
				killed[k] = true
			} else if err != nil || len(out) > 0 {
				errs[k] = fmt.Errorf("%s of job %d: %w: %s", hook, j.id, err, out)
			}
		}()
	}
	wg.Wait()
	for k := range jobs {
		if killed[k] {
			n.killed++
		} else {
			took = append(took, times[k])
		}
	}
	return killed, took, errors.Join(errs...)
}

// node is a node without slurmd: simulated GPUs, a real agent, a ledger whose
// changes are logged.
type node struct {
	dir, config string
	agent       *exec.Cmd
	audit       *sql.DB
	killed      int
}

const configText = `
[slurm]
bin_dir = "DIR/slurm"
[partition.gpu]
default = true
share = true
gpus_per_node = 8
gpu_mem_mib = 81559
[nvml]
library = "ROOT/lib/simgpu/libnvidia-ml.so.1"
[placement]
settle = "0s"
[mps]
enabled = false
[hooks]
wait = "0s"
deadline = "1m"
[paths]
run_dir = "DIR/run"
db = "DIR/carma.db"
log = "DIR/hooks.log"
`

func newNode() (*node, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "carma-placement")
	if err != nil {
		return nil, err
	}
	n := &node{dir: dir, config: filepath.Join(dir, "carma.toml")}
	text := strings.NewReplacer("DIR", dir, "ROOT", root).Replace(configText)
	if err := os.WriteFile(n.config, []byte(text), 0o644); err != nil {
		return nil, err
	}
	// No slurmctld here: jobs are not known, and the node's Gres is as it was set.
	if err := os.Mkdir(filepath.Join(dir, "slurm"), 0o755); err != nil {
		return nil, err
	}
	for name, body := range map[string]string{"squeue": "echo Invalid job id specified >&2; exit 1", "sinfo": `cd "${0%/*}"
sep=${*##*Gres:}; sep=${sep%%,*}
case "$*" in
*--nodes=*) echo "$(cat extra)$sep" ;;
*) exit 1 ;;
esac`, "scontrol": `cd "${0%/*}"
case "$*" in
update*Extra=*) echo "${*##*Extra=}" >extra ;;
--version) echo slurm 24.11.5 ;;
esac`} {
		if err := os.WriteFile(filepath.Join(dir, "slurm", name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "slurm", "extra"), []byte("{}\n"), 0o644); err != nil {
		return nil, err
	}
	for _, words := range [][]string{
		{"go", "build", "-tags", "failpoints", "-o", filepath.Join(dir, "carma-node"), "./cmd/carma-node"},
		{"bin/simgpu", "create", filepath.Join(dir, "simgpu"), "--model", "h100"},
	} {
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
		}
	}
	return n, n.start()
}

func (n *node) env() []string {
	return []string{"PATH=/usr/bin:/bin", "SIMGPU_STATE=" + filepath.Join(n.dir, "simgpu")}
}

// start starts the agent and has SQLite log each change of a lease in the
// transaction that makes it.
func (n *node) start() error {
	log, err := os.Create(filepath.Join(n.dir, "agent.log"))
	if err != nil {
		return err
	}
	n.agent = exec.Command(filepath.Join(n.dir, "carma-node"), "--config", n.config, "--node", "n1", "agent")
	n.agent.Env, n.agent.Stderr = n.env(), log
	if err := n.agent.Start(); err != nil {
		return err
	}
	if n.audit, err = sql.Open("sqlite3", "file:"+filepath.Join(n.dir, "run",
		"leases.db")+"?_busy_timeout=5000"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		var gpus int
		if err := n.audit.QueryRow("SELECT count(*) FROM gpu").Scan(&gpus); err == nil && gpus == 8 {
			break
		}
		if ctx.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the agent has read no GPUs: %s", bytes.TrimSpace(text))
		}
		time.Sleep(50 * time.Millisecond)
	}
	_, err = n.audit.Exec(`
CREATE TABLE audit (seq INTEGER PRIMARY KEY, job_id, uuid, reserve_mib, exclusive);
CREATE TRIGGER lease_in AFTER INSERT ON lease BEGIN INSERT INTO audit VALUES (NULL, new.job_id, new.uuid, new.reserve_mib, new.exclusive); END;
CREATE TRIGGER lease_out AFTER DELETE ON lease BEGIN INSERT INTO audit VALUES (NULL, old.job_id, old.uuid, -old.reserve_mib, old.exclusive); END;`)
	return err
}

func (n *node) close() error {
	n.audit.Close()
	err := n.agent.Process.Signal(syscall.SIGTERM)
	return errors.Join(err, n.agent.Wait(), os.RemoveAll(n.dir))
}
