// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// untilPeak is behind the options of simjob, which runs until an agent has noted so many MiB as the job's peak, or until
// simjob fails: when an agent looks depends on the machine. A script that is not sbatch's needs notePeaks.
func untilPeak(mib string) string {
	return " --ramp 0s --duration 10h &\n" +
		"until [ \"$(cat $SLURM_SUBMIT_DIR/peak-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} 2>/dev/null || echo 0)\" -ge " + mib +
		" ] || ! kill -0 $! 2>/dev/null; do sleep 0.2; done\n" +
		"status=0; kill $! 2>/dev/null || true; wait $! || status=$?; [ $status = 143 ] || exit $status\n"
}

// notePeaks writes the peaks in the nodes' ledgers to files beside the jobs' scripts, until the test ends.
func (c *cluster) notePeaks() {
	c.peaks.Do(func() {
		quit, done := make(chan struct{}), make(chan struct{})
		c.t.Cleanup(func() { close(quit); <-done })
		go func() {
			defer close(done)
			for noted := map[string]int64{}; ; {
				for _, ledger := range glob(c.t, filepath.Join(c.dir, "run", "n*", "leases.db")) {
					if err := c.noteLedger(ledger, noted); err != nil {
						c.t.Logf("peaks: %v", err) // the next look may do
					}
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

func (c *cluster) noteLedger(path string, noted map[string]int64) error {
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
	for rows.Next() {
		var attempt string
		var mib int64
		if err := rows.Scan(&attempt, &mib); err != nil {
			return err
		}
		if mib <= noted[attempt] {
			continue
		}
		file := filepath.Join(c.dir, "jobs", "peak-"+attempt)
		if err := os.WriteFile(file+".new", fmt.Append(nil, mib), 0o644); err != nil {
			return err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return err
		}
		noted[attempt] = mib
	}
	return rows.Err()
}

// peaked waits until an agent has noted so many MiB as the peak of a job on n1.
func (c *cluster) peaked(id string, mib int64) {
	c.t.Helper()
	ledger := c.ledger("n1")
	c.eventually(func() string {
		var peak int64
		if err := ledger.QueryRow("SELECT ifnull(max(peak_mib), 0) FROM usage WHERE job_id = ?", id).Scan(&peak); err != nil {
			c.t.Fatal(err)
		}
		return fmt.Sprint(peak)
	}, fmt.Sprintf("^%d$", mib))
}
