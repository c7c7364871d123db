// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A job that writes checkpoints is warned before its time slot ends, is requeued,
// and goes on from its checkpoint; its step gets the signal, or its batch shell.
// One that did not ask to be requeued has ended.
func TestTimeSlots(t *testing.T) {
	takesMinutes(t)
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"partition.gpu.time_slot": `"1m"`})
	c.eventually(func() string { // slurmctld reads carma.toml when it has a moment
		id := c.sbatch(alice, "-H --gres=gpu:1", "true\n")
		defer c.sh("", "scancel "+id)
		return c.job(id, "%l")
	}, "^1:00$")
	const script = `#SBATCH --gres=gpu:1 --open-mode=append
#CARMA mem=8G requeue=timeout signal=SIGNAL
echo restart=$SLURM_RESTART_COUNT reason=$CARMA_RETRY_REASON from=$(cat $SLURM_JOB_ID.ckpt 2>/dev/null | wc -l)
[ -s $SLURM_JOB_ID.ckpt ] && exit 0
RUN simjob --mem 4G --smact 10 --duration 1h --checkpoint $SLURM_JOB_ID.ckpt
`
	step := c.sbatch(alice, "", strings.NewReplacer("SIGNAL", "USR1@10", "RUN", "srun").Replace(script))
	batch := c.sbatch(alice, "", strings.NewReplacer("SIGNAL", "B:USR1@10", "RUN", "exec").Replace(script))
	c.sh("", "printf '#!/bin/sh\n#CARMA mem=8G\nexec sleep 1h\n' >"+c.dir+"/jobs/long.sh")
	out, stderr, err := c.answered(alice, "sbatch --parsable --gres=gpu:1 -t 10 long.sh")
	if err != nil || !strings.Contains(stderr,
		"carma: jobs of partition gpu run in slots of 0:01:00: the time limit is cut to that") {
		t.Fatalf("sbatch says %q %q %v", out, stderr, err)
	}
	long := strings.TrimSpace(out)
	for _, id := range []string{step, batch} {
		c.ends(id, "COMPLETED")
		if got := c.output(id); !regexp.MustCompile(`(?s)^restart= reason= from=0\n.*restart=1 reason=timeslot from=1\n$`).MatchString(got) {
			t.Errorf("job %s says\n%s", id, got)
		}
		if text, err := os.ReadFile(filepath.Join(c.dir, "jobs", id+".ckpt")); err != nil ||
			!strings.HasPrefix(string(text), "checkpoint ") {
			t.Errorf("job %s left %q %v", id, text, err)
		}
		if r := c.report(id); r.Attempts != 2 || r.OOM || r.RequeuedTo != "" || r.State != "COMPLETED" {
			t.Errorf("report %+v", r)
		}
		if got := c.sh("", "carma-report -j "+id); !strings.Contains(got, "requeued after its time slot") {
			t.Errorf("report:\n%s", got)
		}
		if got := strings.TrimSpace(c.adminComment(id)); !strings.HasSuffix(got,
			`carma-retry={"reason":"timeslot","restart":1}`) {
			t.Errorf("AdminComment %s", got)
		}
	}
	c.ends(long, "TIMEOUT")
	c.noDrain()
}
