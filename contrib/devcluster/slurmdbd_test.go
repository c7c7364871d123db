// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// All records get to slurmdbd, each once, also the records of jobs that ended while slurmdbd was away.
func TestForward(t *testing.T) {
	needsServer(t)
	needsMySQL(t)
	c := up(t, "--nodes", "1", "--time-scale", "10", "--slurmdbd")
	// A job runs out of memory beside another and is requeued: CARMA itself
	// writes about the job in AdminComment.
	var ids []string
	for range 4 {
		id := c.sbatch(alice, "-o /dev/null", resident("5G", 20))
		c.eventually(func() string { return fmt.Sprint(c.index(id) >= 0) }, "true")
		ids = append(ids, id)
	}
	oom := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\nsimjob --mem 3900M --smact 20"+untilPeak("3900")+
		"simjob --mem 8G --smact 20 --ramp 0s --duration 10s\n")
	c.eventually(func() string { return c.job(oom, "%P") }, "gpu-recovery")
	c.sh(alice, "scancel "+strings.Join(ids, " "))
	c.ends(oom, "COMPLETED")
	run := func(n int) {
		t.Helper()
		for range n {
			ids = append(ids, c.sbatch(alice, "-o /dev/null",
				"#SBATCH --gres=gpu:1\n#CARMA mem=4G\nsimjob --mem 3G --smact 20 --ramp 0s --duration 10s\n"))
		}
		ids = append(ids, c.sbatch(bob, "-o /dev/null --array=1-2",
			"#SBATCH --gres=gpu:1\n#CARMA mem=4G\nsimjob --mem 3G --smact 20 --ramp 0s --duration 10s\n"))
		for _, id := range ids[len(ids)-n-1:] {
			c.eventually(func() string { return c.sh("", "squeue -h -j "+id+" 2>/dev/null | wc -l") }, "^0$")
		}
	}
	run(2)
	pid, err := os.ReadFile(filepath.Join(c.dir, "pid", "slurmdbd"))
	if err != nil {
		t.Fatal(err)
	}
	c.sh("", "kill "+strings.Fields(string(pid))[0])
	run(3)
	time.Sleep(15 * time.Second) // an attempt to send fails
	c.restart("slurmdbd")
	defer func() {
		if t.Failed() {
			t.Log(c.sh("", "date; sacct -a -X -n -P -o jobid,state,start,end,admincomment; sdiag | grep -i dbd"))
		}
	}()
	// Records not taken by slurmdbd are tried ever more rarely: after 10, 20, 40, 80 and 160 s.
	for start := time.Now(); len(c.accounts("--from slurmdbd")) < 14; time.Sleep(time.Second) {
		if time.Since(start) > 10*time.Minute {
			t.Fatalf("%d of 14 records are in slurmdbd", len(c.accounts("--from slurmdbd")))
		}
	}
	here, there := c.accounts(""), c.accounts("--from slurmdbd")
	for id := range here {
		x, y := fmt.Sprintf("%+v", plain(here[id])), fmt.Sprintf("%+v", plain(there[id]))
		if x != y {
			t.Errorf("job %d\nhere  %s\nthere %s", id, x, y)
		}
	}
	if n, _ := strconv.Atoi(oom); !there[uint32(n)].OOM || there[uint32(n)].Attempts != 2 {
		t.Errorf("the job that was requeued: %+v", there[uint32(n)])
	}
	if out := c.sh("", "carma-report summary -S now-1day --from slurmdbd "+
		"--by=user"); !regexp.MustCompile(`carma-alice +10 `).MatchString(out) || !regexp.MustCompile(`carma-bob +4 `).MatchString(out) {
		t.Errorf("summary:\n%s", out)
	}
	if _, stderr, err := c.run("", "carma-report gpus --from slurmdbd"); err == nil ||
		!strings.Contains(stderr, "no samples") {
		t.Errorf("gpus: %v %s", err, stderr)
	}
	c.nothingLeft()
}
