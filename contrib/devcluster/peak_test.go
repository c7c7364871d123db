// SPDX-License-Identifier: Apache-2.0

//go:build integration || abuse

package devcluster_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "github.com/mattn/go-sqlite3"
)

// untilPeak follows simjob's options: simjob runs until an agent has noted so many MiB as the job's peak, or until simjob
// fails. When an agent looks depends on the machine. Tests that submit otherwise than by (*cluster).sbatch call
// notePeaks.
func untilPeak(mib string) string { return untilNoted("", mib) }

// untilPeakOfNode is for a task of a job on several nodes: simjob runs until the agent of the task's own node has
// noted the peak, for each node has a record of its own.
func untilPeakOfNode(mib string) string { return untilNoted(".$SLURMD_NODENAME", mib) }

func untilNoted(node, mib string) string {
	return " --ramp 0s --duration 10h &\n" +
		"until [ \"$(cat $SLURM_SUBMIT_DIR/peak-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" + node +
		" 2>/dev/null || echo 0)\" -ge " + mib + " ] || ! kill -0 $! 2>/dev/null; do sleep 0.2; done\n" +
		"status=0; kill $! 2>/dev/null || true; wait $! || status=$?; [ $status = 143 ] || exit $status\n"
}

// notePeaks writes the peaks in the nodes' ledgers to files beside the jobs' scripts, until the test ends.
func (c *cluster) notePeaks() { c.notePeaksIn(filepath.Join(c.dir, "jobs")) }

// notePeaksIn does so for jobs that were submitted in a directory of another cluster.
func (c *cluster) notePeaksIn(dir string) {
	c.peaks.Do(func() {
		t, quit, done := c.t, make(chan struct{}), make(chan struct{})
		t.Cleanup(func() { close(quit); <-done })
		go func() {
			defer close(done)
			for noted := map[string]int64{}; ; {
				ledgers, err := filepath.Glob(filepath.Join(c.dir, "run", "n*", "leases.db"))
				for _, path := range ledgers {
					err = errors.Join(err, noteLedger(path, dir, noted))
				}
				if err != nil {
					t.Logf("peaks: %v", err) // the next look may do
				}
				select {
				case <-quit:
					return
				case <-time.After(200 * time.Millisecond):
				}
			}
		}()
	})
}

func noteLedger(path, dir string, noted map[string]int64) error {
	ledger, err := sql.Open("sqlite3", "file:"+path+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer ledger.Close()
	rows, err := ledger.Query("SELECT job_id || '.' || restart, max(peak_mib) FROM usage WHERE peak_mib > 0 GROUP BY 1")
	if err != nil {
		return err
	}
	defer rows.Close()
	node := filepath.Base(filepath.Dir(path))
	for rows.Next() {
		var attempt string
		var mib int64
		if err := rows.Scan(&attempt, &mib); err != nil {
			return err
		}
		for _, name := range []string{attempt, attempt + "." + node} {
			if mib <= noted[name] {
				continue
			}
			file := filepath.Join(dir, "peak-"+name)
			if err := os.WriteFile(file+".new", fmt.Append(nil, mib), 0o644); err != nil {
				return err
			}
			if err := os.Rename(file+".new", file); err != nil {
				return err
			}
			noted[name] = mib
		}
	}
	return rows.Err()
}
