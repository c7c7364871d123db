// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// stall is something that keeps what CARMA does for a job from ending.
type stall struct {
	name  string
	begin func(c *cluster, d time.Duration) (end func())
}

// stalls are what a user does to what root starts, and what a machine does to both:
// a frozen child stands for one that hangs on a file server which does not answer.
var stalls = []stall{
	{"stopped children", reach("stop", alice)},
	{"slow children", reach("slow", bob)},
	{"frozen children", frozen},
	{"a pipe for stderr", pipes},
	{"a locked ledger", lockedLedger},
	{"a stopped slurmctld", func(c *cluster, d time.Duration) func() {
		// Longer than a request to it may take, and it comes back in between.
		d = min(d/2, 20*time.Second)
		pid := c.slurmctldPID()
		c.background("", fmt.Sprintf("trap 'kill -CONT %s' EXIT; trap exit TERM; sleep 1; kill -STOP %[1]s; sleep %.0f",
			pid, d.Seconds()))
		return func() {}
	}},
}

func reach(how, user string) func(*cluster, time.Duration) func() {
	return func(c *cluster, d time.Duration) func() {
		stop := c.background(user, fmt.Sprint("exec ", c.client("reach"), " ", how, " ", d.Seconds(), " ", c.dir))
		return func() { attacked(c.t, how+" by "+user, regexp.MustCompile(`looks=.*`).FindString(stop())) }
	}
}

func frozen(c *cluster, d time.Duration) func() {
	above, file, freeze, unfreeze := "/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"
	if cgroup2() {
		above, file, freeze, unfreeze = "/sys/fs/cgroup", "cgroup.freeze", "1", "0"
	}
	group := filepath.Join(above, filepath.Base(c.dir))
	if err := os.Mkdir(group, 0o755); err != nil {
		attacked(c.t, "frozen children", "no freezer that can be written: not tried")
		return func() {}
	}
	set := func(state string) {
		if err := os.WriteFile(filepath.Join(group, file), []byte(state), 0); err != nil && !os.IsNotExist(err) {
			c.t.Error(err)
		}
	}
	thaw := func() { // those in it were killed, and end now
		set(unfreeze)
		c.eventually(func() string { return fmt.Sprint(os.Remove(group)) }, "nil|no such")
	}
	c.t.Cleanup(thaw)
	set(freeze)
	stop := c.background("", fmt.Sprint("exec ", c.client("reach"), " freeze ", d.Seconds(), " ", c.dir, " ", group))
	return func() {
		attacked(c.t, "frozen", regexp.MustCompile(`looks=.*`).FindString(stop()))
		thaw()
	}
}

// pipes has jobs' stderr be a pipe that somebody has open and nobody reads. It stays
// so: slurmstepd waits for a reader (open(2)), with CARMA and without.
func pipes(c *cluster, d time.Duration) func() {
	c.background(alice, fmt.Sprintf("rm -f pipe; mkfifo -m 666 pipe; exec 3<>pipe; exec sleep %.0f", d.Seconds()+1200))
	c.eventually(func() string { return c.sh("", "[ -p pipe ] && echo there || true") }, "there")
	return func() {}
}

func lockedLedger(c *cluster, d time.Duration) func() {
	conn, err := c.ledger("n1").Conn(context.Background())
	if err == nil {
		_, err = conn.ExecContext(context.Background(), "BEGIN IMMEDIATE")
	}
	if err != nil {
		c.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		time.Sleep(d)
		_, err := conn.ExecContext(context.Background(), "ROLLBACK")
		done <- errors.Join(err, conn.Close())
	}()
	return func() {
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	}
}

func (c *cluster) slurmctldPID() string {
	return strings.Fields(c.sh("", "cat "+c.dir+"/pid/slurmctld"))[0]
}

// Children, ledgers and a slurmctld that are stopped, frozen and slow while jobs start
// fail no job, lose none and drain no node, whether the site wants a node with a fault
// drained or not: a stall is no fault of the node.
func TestAttackStalls(t *testing.T) { attackStalls(t, "false") }

func TestAttackStallsStrict(t *testing.T) { attackStalls(t, "true") }

func attackStalls(t *testing.T, strict string) {
	c := up(t, "--nodes", "1", "--gpu-model", "h100", "--time-scale", "20")
	// Less than the stalls last.
	c.settings(map[string]string{"hooks.wait": `"1s"`, "hooks.wait_interactive": `"1s"`, "hooks.deadline": `"4s"`,
		"hooks.strict": strict})
	if !long {
		c.stalled(10, 15*time.Second, stalls...)
		return
	}
	for _, s := range stalls {
		c.stalled(50, time.Minute, s)
	}
	c.stalled(50, time.Minute, stalls...)
}

// stalled starts jobs of two users beside stalls.
func (c *cluster) stalled(jobs int, d time.Duration, by ...stall) {
	c.t.Helper()
	what := fmt.Sprintf("%d stalls", len(by))
	if len(by) == 1 {
		what = by[0].name
	}
	// A job that has no GPU fails.
	const script = "#SBATCH --gres=gpu:1\n#CARMA mem=2G\nsimjob --mem 1G --smact 5 --ramp 0s --duration 1s\n"
	var ids []string
	var ends []func()
	for _, s := range by {
		ends = append(ends, s.begin(c, d))
	}
	if len(by) == 1 && by[0].name != "a pipe for stderr" {
		ends = append(ends, pipes(c, d))
	}
	start := time.Now()
	for i := range jobs {
		options := ""
		if i%4 == 2 { // alice's
			options = "-o /dev/null -e pipe"
		}
		ids = append(ids, c.submitted([]string{alice, bob}[i%2], options, script))
	}
	time.Sleep(time.Until(start.Add(d)))
	for _, end := range ends {
		end()
	}
	bad := regexp.MustCompile(`FAILED|CANCELLED|NODE_FAIL|TIMEOUT|OUT_OF_MEMORY|DEADLINE|BOOT_FAIL`)
	states := map[string]int{}
	for _, id := range ids {
		c.eventually(func() string { return c.job(id, "%T") }, "^COMPLETED$|"+bad.String())
		state := c.job(id, "%T")
		if states[state]++; bad.MatchString(state) {
			c.t.Errorf("%s: job %s ended %s\n%s", what, id, state, c.story(id))
		}
	}
	attacked(c.t, what,
		fmt.Sprintf("%d jobs, %s: %v, the last after %s", jobs, d, states, time.Since(start).Round(time.Second)))
	out := c.sh("", "sinfo -N -h -p plain -o '%N %T %E';"+
		" grep -i drain ../log/slurmctld.log || true")
	if regexp.MustCompile(`(?i)drain|down|fail|inval`).MatchString(out) {
		c.t.Errorf("%s: nodes\n%s", what, out)
	}
}

// submitted is sbatch, again and again while slurmctld does not answer.
func (c *cluster) submitted(user, options, script string) (id string) {
	c.t.Helper()
	file := c.file(user, fmt.Sprintf("s%d.sh", time.Now().UnixNano()), "#!/bin/bash\n"+script)
	c.eventually(func() string {
		out, stderr, err := c.run(user, "sbatch --parsable "+options+" "+file)
		if err != nil {
			return stderr
		}
		id = strings.TrimSpace(out)
		return "submitted"
	}, "^submitted$")
	return id
}
