// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A user reaches no process that root starts for a job, passes no process off as one
// of another user's job, and no file that others can open is on the way of a job.
func TestAttackProcesses(t *testing.T) {
	c := up(t, "--nodes", "1", "--time-scale", "10")
	attackHooks(t, c)
	attackOwner(t, c)
	attackLocks(t, c)
	c.noDrain()
}

// fails is a job of alice that root looks at before and after it runs.
const fails = "#SBATCH --gres=gpu:1\n#CARMA mem=2G\necho out of something >&2\nexit 1\n"

// From outside of the job, its user can neither stop nor trace nor read what the hooks
// start, also where it reads the user's file.
func attackHooks(t *testing.T, c *cluster) {
	stop := c.background(alice, "exec "+c.client("reach")+" try 600 "+c.dir)
	for range map[bool]int{false: 3, true: 20}[long] {
		var ids []string
		for range 4 {
			ids = append(ids, c.sbatch(alice, "", fails))
		}
		for _, id := range ids {
			c.ends(id, "FAILED")
		}
	}
	said := stop()
	attacked(t, "processes of the hooks", regexp.MustCompile(`looks=.*`).FindString(said))
	if !regexp.MustCompile(`looks=[1-9]`).MatchString(said) {
		t.Fatalf("no look into a file was seen, so nothing is shown: %s", said)
	}
	if strings.Contains(said, "reached ") {
		t.Errorf("alice reached processes of root's hooks:\n%.2000s", said)
	}
}

// What another user's processes call themselves, and where they put themselves, changes
// nothing in what a job is said to use.
func attackOwner(t *testing.T, c *cluster) {
	// In cgroup v2 alice moves processes within the cgroup that is delegated to her, and none into the cgroup.
	delegated, below := filepath.Join(c.dir, "cgroup/pids/delegated"), "job_ID/step_0"
	if cgroup2() {
		delegated, below = filepath.Join("/sys/fs/cgroup", filepath.Base(c.dir)), "system.slice/n1_slurmstepd.scope/job_ID/step_0"
	}
	if err := os.Mkdir(delegated, 0o755); err != nil {
		delegated = ""
	} else {
		c.sh("", "chown "+alice+" "+delegated+" "+delegated+"/cgroup.procs")
		t.Cleanup(func() { c.run("", "find "+delegated+" -depth -type d -exec rmdir {} +") })
	}
	const gpu = "simjob --mem 10G --smact 20 --ramp 0s --duration 10h"
	// A process with a title of its own, and the one on the GPU below it.
	titled := func(program, dir, then string) string {
		return fmt.Sprintf("mkdir -p %s; ln -sf $(command -v %s) %[1]s/slurmstepd; ", dir, program) + then
	}
	disguises := map[string]string{
		"a cgroup job_ID": fmt.Sprintf("mkdir -p %s/%s && echo $$ >%[1]s/%[2]s/cgroup.procs && exec %s", delegated, below, gpu),
		"a variable":      "SLURM_JOB_ID=ID exec " + gpu,
		"below a sleep with a title": titled("sleep", "tID",
			gpu+" & exec -a 'slurmstepd: [ID.batch]' ./tID/slurmstepd 1h"),
		"below a set-uid program with a title": titled("su", "uID",
			"sleep 1h | ("+gpu+" & exec -a 'slurmstepd: [ID.batch]' ./uID/slurmstepd)"),
	}
	type victim struct{ id, disguise string }
	var victims []victim
	var stops []func() string
	for disguise, command := range disguises {
		if strings.Contains(disguise, "cgroup") && delegated == "" {
			attacked(t, disguise, "no cgroup that can be written: not tried")
			continue
		}
		id := c.sbatch(bob, "", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\necho gpu=$CUDA_VISIBLE_DEVICES\n"+
			"exec simjob --mem 3G --smact 10 --ramp 0s --duration 10h\n")
		c.gpu(id)
		command = fmt.Sprintf("export SIMGPU_STATE=%s/simgpu/n1 CUDA_VISIBLE_DEVICES=%d; %s", c.dir, c.index(id),
			strings.ReplaceAll(command, "ID", id))
		if cgroup2() && strings.Contains(disguise, "cgroup") {
			stops = append(stops, c.background("", "echo $$ >"+delegated+"/cgroup.procs && "+
				"exec setpriv --reuid "+alice+" --regid "+alice+" --init-groups bash -c "+quote(command)))
		} else {
			stops = append(stops, c.background(alice, command))
		}
		// It is there, and is read.
		c.eventually(func() string { return c.sh("", fmt.Sprintf("SIMGPU_STATE=%s/simgpu/n1 simgpu show", c.dir)) }, `10240`)
		victims = append(victims, victim{id, disguise})
	}
	for _, v := range victims { // the agent has read both on the victim's GPU
		c.eventually(func() string {
			for _, g := range c.status("n1") {
				for _, l := range g.Leases {
					if fmt.Sprint(l.JobID) == v.id && g.UsedMiB >= 13<<10 {
						return "read"
					}
				}
			}
			return "not read"
		}, "^read$")
	}
	time.Sleep(5 * time.Second)
	leases := c.leases("n1")
	for _, v := range victims {
		if !regexp.MustCompile(`\b` + v.id + `\b`).MatchString(leases) {
			t.Errorf("%s: the lease of job %s has gone: %s", v.disguise, v.id, leases)
		}
		c.sh("", "scancel "+v.id)
	}
	for _, v := range victims {
		c.ends(v.id, "CANCELLED")
		r := c.report(v.id)
		attacked(t, "a process on the GPU: "+v.disguise,
			fmt.Sprintf("the other user's job had 3072 MiB, its record says %d", r.PeakMiB))
		if r.PeakMiB != 3072 {
			t.Errorf("%s: job %s has used 3072 MiB, its record says %d", v.disguise, v.id, r.PeakMiB)
		}
	}
	c.eventually(func() string { return c.leases("n1") }, "^$")
	for _, stop := range stops { // or their GPUs stay closed
		stop()
	}
}

// Locks of others on files that they can open keep no job waiting, lose no record and
// let no log grow.
func attackLocks(t *testing.T, c *cluster) {
	locker := c.client("lock")
	const script = "#SBATCH --gres=gpu:1\n#CARMA mem=2G\n[ \"$CUDA_VISIBLE_DEVICES\" ] && sleep 1\n"
	logged := func() int {
		out := c.sh("", "cat "+c.dir+"/log/hooks.n1.log "+c.dir+"/log/agent.n1.log | grep -cE 'locked|busy' || true")
		n, _ := strconv.Atoi(out)
		return n
	}
	for _, first := range []int{120, 121} { // with the writer's lock, and without
		before := logged()
		stop := c.background(bob, fmt.Sprint("exec ", locker, " ", first, " 600 ", c.dir, "/run ", c.dir, "/var"))
		time.Sleep(time.Second)
		start := time.Now()
		var ids []string
		for range 4 {
			ids = append(ids, c.sbatch(alice, "", script))
		}
		for _, id := range ids {
			c.ends(id, "COMPLETED")
			c.eventually(func() string { out, _, _ := c.run("", "carma-report -n -j "+id); return out }, id)
		}
		took := time.Since(start)
		if n := logged(); n > before {
			t.Errorf("bytes from %d locked: %d messages of locks", first, n-before)
		}
		for _, file := range []string{"run/n1/leases.db", "var/carma.db"} {
			c.checkpoints(filepath.Join(c.dir, file), first)
		}
		said := stop()
		attacked(t, fmt.Sprintf("bytes from %d locked", first),
			fmt.Sprintf("4 jobs in %s; %s", took.Round(time.Second), strings.Join(strings.Fields(said), " ")))
	}
}

// checkpoints requires that SQLite can empty the log of a database. Else the log grows
// with each change.
func (c *cluster) checkpoints(path string, first int) {
	c.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+path+"?_busy_timeout=2000")
	if err != nil {
		c.t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	busy := 1
	for busy != 0 && ctx.Err() == nil {
		var pages, done int
		if err := db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &pages, &done); err != nil {
			busy = 1
		}
	}
	if busy != 0 {
		c.t.Errorf("bytes from %d locked: the log of %s cannot be emptied and grows", first, filepath.Base(path))
	}
}
