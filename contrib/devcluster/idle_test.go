// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// A job that holds a GPU and does not use it is shown, its user is told, and it
// is cancelled where the site says so; one that works is left alone.
func TestIdleJobs(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"idle.after": `"5s"`, "idle.action": `"notify"`})
	const head = "#SBATCH --gres=gpu:1\n#CARMA mem=8G\n"
	none := c.sbatch(alice, "", head+"sleep 1h\n")
	still := c.sbatch(bob, "", head+"exec simjob --mem 4G --smact 0.02 --ramp 0s --duration 1h\n")
	works := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA policy=exclusive\nexec simjob --mem 4G --smact 50 "+
		"--ramp 0s --duration 1h\n")
	c.eventually(func() string { return c.job(works, "%T") }, "RUNNING")
	for _, id := range []string{none, still} {
		c.eventually(func() string { return c.idle() }, `\b`+id+`\b`)
		c.eventually(func() string { return c.output(id) }, `carma: job `+id+` holds GPUs and has not used them for \S+s\n`)
		if got := c.sh("", "carma-node --node n1 status"); !regexp.MustCompile(id +
			` carma-\w+ 8.0G idle \d+s of \d+s`).MatchString(got) {
			t.Errorf("status:\n%s", got)
		}
	}
	c.settings(map[string]string{"idle.action": `"cancel"`})
	for _, id := range []string{none, still} {
		c.ends(id, "CANCELLED")
		c.eventually(func() string { return c.sh("", "carma-report -j "+id) }, `cancelled: it used none of its GPUs for \S+s`)
		if got := c.report(id); got.OOM || got.Attempts != 1 {
			t.Errorf("report %+v", got)
		}
	}
	if got := c.job(works, "%T"); got != "RUNNING" || strings.Contains(c.idle(), works) {
		t.Errorf("the job that works is %s; idle: %s", got, c.idle())
	}
	c.noDrain()
}

// idle lists the jobs that carma-node status calls idle.
func (c *cluster) idle() string {
	var ids []string
	for _, g := range c.status("n1") {
		for _, l := range g.Leases {
			if l.Idle {
				ids = append(ids, fmt.Sprint(l.JobID))
			}
		}
	}
	return strings.Join(ids, " ")
}
