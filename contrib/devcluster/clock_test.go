// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"os"
	"strings"
	"testing"
	"time"
)

// The clock of a machine jumps by an hour: of the controller and of the node at once, as both
// are one here. Only a machine of its own (make test-cgroup2) has a clock that may be set.
func TestClockJumps(t *testing.T) {
	if line, err := os.ReadFile("/proc/cmdline"); err != nil || !strings.Contains(string(line), "carma.seen=") {
		t.Skip("it sets the machine's clock: make test-cgroup2")
	}
	c := up(t, "--nodes", "1")
	stays := c.sbatch(alice, "-t 1-0", train("10G", "10h"))
	c.gpu(stays)
	overshoots := "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem 12G --smact 10 --ramp 0s --duration 1s\n"
	for _, jump := range []string{"+1 hour", "-1 hour", "+1 hour"} {
		c.sh("", "date -s '"+jump+"' >/dev/null")
		if strings.HasPrefix(jump, "-") {
			// slurmctld starts nothing before its clock is where it was, also without a GPU.
			plain := c.sbatch(alice, "-p plain", "true\n")
			time.Sleep(20 * time.Second)
			t.Logf("after %s and 20 s a job without GPUs is %s", jump, c.job(plain, "%T"))
			c.restart("slurmctld")
			c.ends(plain, "COMPLETED")
		}
		for _, script := range []string{train("10G", "2s"), overshoots} {
			id := c.sbatch(bob, "", script)
			c.ends(id, "COMPLETED")
			if r := c.report(id); r.OOM != (script == overshoots) || r.RunS > 1000 || r.RunS < 0 {
				t.Errorf("after %s: %+v", jump, r)
			}
		}
		c.eventually(func() string { return c.leases("n1") }, "^"+stays+"$")
		if got := c.job(stays, "%T") + " " + c.restarts(stays); got != "RUNNING 0" {
			t.Errorf("after %s the job that was there is %s", jump, got)
		}
	}
	c.sh(alice, "scancel "+stays)
	c.ends(stays, "CANCELLED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.nothingLeft()
}
