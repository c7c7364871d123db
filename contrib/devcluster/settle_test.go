// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lockLedger keeps everybody from writing to a node's ledger until unlock is called.
func (c *cluster) lockLedger(node string) (unlock func()) {
	c.t.Helper()
	db, err := sql.Open("sqlite3", filepath.Join(c.dir, "run", node, "leases.db")+"?_txlock=immediate")
	if err != nil {
		c.t.Fatal(err)
	}
	tx, err := db.Begin()
	if err != nil {
		c.t.Fatal(err)
	}
	return func() { tx.Rollback(); db.Close() }
}

// A job of srun that can be neither leased a GPU in its Prolog's time nor returned to the queue
// waits in its tasks; a batch job returns to the queue. A strict site's node does not
// drain, and a job that its user ends meanwhile leaves nothing behind.
func TestTasksWaitForTheirGPU(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"hooks.wait": `"1s"`, "hooks.wait_interactive": `"1s"`, "hooks.deadline": `"1s"`,
		"hooks.strict": "true"})
	unlock := c.lockLedger("n1")
	defer unlock()
	batch := c.sbatch(bob, "--gres=gpu:1 --requeue", "#CARMA mem=1G\ntrue")
	type result struct {
		out string
		err error
	}
	srun := func(name string) chan result {
		ends := make(chan result, 1)
		go func() {
			out, _, err := c.run(alice, "srun -J "+name+" --gres=gpu:1 bash -c 'echo got $CUDA_VISIBLE_DEVICES'")
			ends <- result{out, err}
		}()
		return ends
	}
	stays, goes := srun("stays"), srun("goes")
	waiting := func() string {
		files, err := filepath.Glob(filepath.Join(c.dir, "run/n1/jobs/*.json"))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, f := range files {
			if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), `"undecided":true`) {
				n++
			}
		}
		return strings.Repeat("w", n)
	}
	c.eventually(waiting, "ww")
	c.eventually(func() string { return c.job(batch, "%T") }, "PENDING")
	c.sh(alice, "scancel -n goes")
	if r := <-goes; r.err == nil || strings.Contains(r.out, "got") {
		t.Errorf("a cancelled job ran: %q, %v", r.out, r.err)
	}
	select {
	case r := <-stays:
		t.Errorf("ran before it could be leased a GPU: %q, %v", r.out, r.err)
	case <-time.After(time.Second):
	}
	unlock()
	if r := <-stays; r.err != nil || !strings.Contains(r.out, "got GPU-") {
		t.Errorf("got %q, %v", r.out, r.err)
	}
	c.eventually(waiting, "^$")
	c.noDrain()
}

// A job that cannot return to the queue says once on the user's terminal for which GPUs the job waits; a job in the
// queue has Slurm's own line.
func TestInteractiveWaits(t *testing.T) {
	c := up(t, "--nodes", "1", "--spank")
	c.settings(map[string]string{"hooks.wait": `"1s"`, "hooks.wait_interactive": `"2s"`, "hooks.deadline": `"5s"`})
	c.restart("slurmctld")
	for range 4 {
		c.gpu(c.sbatch(bob, "", train("30G", "10h")))
	}
	c.wantCounts("n1", "^carma1:0 ")                                                 // else slurmctld may start another job yet
	const alone = "carma: the job waits on node n1 for 1 GPU that no other job uses" // plain has no line in carma.toml
	shares := "carma: the job waits on node n1 for 1 GPU with room for 12288 MiB"
	if c.publishes() {
		shares = "queued and waiting for resources"
	}
	waits := map[string]string{"srun -p plain --gres=gpu:1 true": alone, "salloc -p plain --gres=gpu:1 srun true": alone,
		"srun --gres=gpu:1 --carma=mem=12G true": shares}
	ends, words := make(chan error), map[string]string{}
	for command, want := range waits {
		words[command] = c.file(alice, fmt.Sprintf("words%d", len(words)), "")
		go func() {
			_, _, err := c.run(alice, command+" 2>>"+words[command])
			ends <- err
		}()
		c.eventually(func() string { return c.sh("", "cat "+words[command]) }, want)
	}
	time.Sleep(5 * time.Second) // another process goes on for the jobs' Prologs
	c.sh("", "scancel -u "+bob)
	for range waits {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	for command, want := range waits {
		if said := c.sh("", "cat "+words[command]); strings.Count(said, want) != 1 {
			t.Errorf("%s: %q, want %q once", command, said, want)
		}
	}
	c.nothingLeft()
}
