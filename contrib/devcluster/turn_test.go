// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/tres"
)

const whole = "#SBATCH --gres=gpu:1\n#CARMA off\n"

// What a user asks of the queue takes nothing from others that it does not give to
// everybody: no GPU that is not booked, no place before those who wait, no GPU that
// is kept for a job which does not want to start.
func TestAttackQueue(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1", "--time-scale", "20")
	c.settings(map[string]string{"capacity.compare": `"2s"`, "hooks.wait": `"1s"`})
	attackBooking(t, c)
	attackRecoveryPartition(t, c)
	attackIdle(t, c)
	if long {
		attackSlot(t, c)
	}
	attackGivenBack(t, c)
	if c.publishes() { // else there is no steward, and slurmctld starts who names a node whatever that can give
		attackKept(t, c)
		attackTurn(t, c)
	}
	c.nothingLeft()
}

// A job has as many GPUs as are booked for it, whatever its user makes of its
// request while it waits, and recovery can still raise its booking.
func attackBooking(t *testing.T, c *cluster) {
	request := c.client("request")
	for _, change := range []string{
		"scontrol update JobId=%s Gres=gpu:3", "scontrol update JobId=%s Gres=gpu:1",
		"scontrol update JobId=%s TresPerNode=gres:gpu:2", "scontrol update JobId=%s Gres=",
		request + " update %s tres_per_node=gres:gpu:2", request + " update %s tres_per_job=gres:gpu:2",
		request + " update %s tres_per_task=gres:gpu:2", request + " update %s tres_per_socket=gres:gpu:2",
	} {
		id := c.sbatch(alice, "-H", "#SBATCH --gres=gpu:1\n#CARMA mem=2G\nexec sleep 1h\n")
		_, stderr, _ := c.run(alice, fmt.Sprintf(change, id))
		c.sh(alice, "scontrol release "+id)
		c.eventually(func() string { return c.job(id, "%T %r") }, "^(RUNNING None|PENDING .*(Held|BadConstraints|Invalid))")
		request := c.job(id, "%b")
		booked := int(tres.Read(request).GPUs)
		leased := len(regexp.MustCompile(`\b`+id+`\b`).FindAllString(c.leases("n1"), -1))
		attacked(t, change,
			fmt.Sprintf("%d GPUs booked, %d leased; %s", booked, leased, strings.Join(strings.Fields(stderr), " ")))
		if leased > booked {
			t.Errorf(change+": %d GPUs leased, %d booked by %s", id, leased, booked, request)
		}
		c.sh("", "scancel "+id)
	}
	id := c.sbatch(alice, "-H", oomOnce)
	c.run(alice, "scontrol update JobId="+id+" Gres=gpu:1")
	c.sh(alice, "scontrol release "+id)
	c.eventually(func() string { return c.job(id, "%T") }, "COMPLETED|FAILED")
	if r := c.report(id); !r.OOM || r.Attempts != 2 || r.State != "COMPLETED" {
		t.Errorf("a job whose booking its user has tried to change: %+v", r)
	}
}

// The recovery partition comes before all others: no user gets a job into it.
func attackRecoveryPartition(t *testing.T, c *cluster) {
	inside := func() map[string]bool {
		ids := map[string]bool{}
		for line := range strings.Lines(c.sh("", "squeue -h -t all -o '%A|%P' | grep gpu-recovery || true")) {
			id, _, _ := strings.Cut(line, "|")
			ids[id] = true
		}
		return ids
	}
	before := inside()
	held := c.sbatch(alice, "-H -p plain", "true\n")
	array := c.sbatch(alice, "-H --array=0-1", whole+"true\n")
	script := c.file(alice, "recovery.sh", "#!/bin/bash\n#SBATCH --gres=gpu:1\ntrue\n")
	request := c.client("request")
	for _, attack := range []string{
		"sbatch -p gpu-recovery " + script, "sbatch -p gpu,gpu-recovery " + script, "sbatch -p gpu-recovery,plain " + script,
		"SBATCH_PARTITION=gpu-recovery sbatch " + script, "sbatch -p gpu-recovery --array=0-1 " + script,
		"sbatch -p gpu-recovery -o /dev/null --wrap true", "sbatch -p gpu " + script + " : -p gpu-recovery " + script,
		"timeout 20 srun -p gpu-recovery --gres=gpu:1 true", "timeout 20 srun -p plain,gpu-recovery true",
		"timeout 20 salloc -p gpu-recovery true", "timeout 20 salloc -p gpu,gpu-recovery --gres=gpu:1 true",
		"scontrol update JobId=" + held + " Partition=gpu-recovery",
		"scontrol update JobId=" + held + " Partition=plain,gpu-recovery",
		"scontrol update JobId=" + array + " Partition=gpu-recovery",
		"scontrol update JobId=" + array + "_1 Partition=gpu,gpu-recovery",
		request + " submit " + script + " partition=gpu-recovery",
		request + " submit " + script + " partition=gpu,gpu-recovery",
		request + " update " + held + " partition=gpu-recovery",
	} {
		_, _, err := c.run(alice, attack)
		now := inside()
		result := "refused, or somewhere else"
		for id := range now {
			if !before[id] {
				result = "a job is there"
				t.Errorf("%s: %v, and job %s is in the recovery partition", attack, err, id)
			}
		}
		attacked(t, attack, result)
		c.sh("", "scontrol update JobId="+held+" Partition=plain; scontrol update JobId="+array+" Partition=gpu || true")
		before = inside()
	}
	id := c.sbatch(alice, "", oomOnce)
	c.ends(id, "COMPLETED")
	if r := c.report(id); !r.OOM || r.RequeuedTo != "gpu-recovery" {
		t.Errorf("CARMA's own way there: %+v", r)
	}
	c.sh("", "scancel "+held+" "+array)
}

// oneTask is a script for an array of two: the first task has ended when root looks at
// the second, and squeue prints it first.
const oneTask = "#!/bin/bash\n#CARMA mem=2G%s\n[ \"$SLURM_ARRAY_TASK_ID\" != 0 ] || exit 0\nexec sleep 1h\n"

// forgedArray submits such an array of alice that waits, with forged lines in its name.
func (c *cluster) forgedArray(what, keys string, targets []string) (id string) {
	c.t.Helper()
	f := newForgery(c, fmt.Sprintf(oneTask, keys))
	id, err := f.submit(what, "array=0-1")
	if err != nil {
		c.t.Fatal(err)
	}
	f.change(id, "name", "x"+c.forged(id, targets...))
	return id
}

// Forged lines where root cancels a job that uses no GPU.
func attackIdle(t *testing.T, c *cluster) {
	before, common, _ := victims(c, 1, "")
	c.seen(1) // the victim's process is on its GPU: else the victim is idle, too
	id := c.forgedArray("name of an idle job", "", common)
	c.settings(map[string]string{"idle.after": `"4s"`, "idle.action": `"cancel"`})
	c.sh(alice, "scontrol release "+id)
	c.eventually(func() string { return c.idle() + " " + c.job(id+"_1", "%T") }, `\b`+id+`\b|CANCELLED`)
	time.Sleep(8 * time.Second)
	c.unchanged(func(string) string { return "forged lines of a job that is idle" }, before)
	c.settings(map[string]string{"idle.action": `"none"`})
	c.empty()
}

// Forged lines where root requeues a job at the end of its time slot.
func attackSlot(t *testing.T, c *cluster) {
	c.settings(map[string]string{"partition.gpu.time_slot": `"1m"`})
	time.Sleep(5 * time.Second) // libcarma looks every 2 s
	before, common, _ := victims(c, 1, "-t 60")
	id := c.forgedArray("name of a job in a time slot", " requeue=timeout", common)
	c.sh(alice, "scontrol release "+id)
	c.eventually(func() string { return c.job(id+"_1", "%T") }, "RUNNING")
	c.eventually(func() string { return c.job(id+"_1", "%T") }, "PENDING|TIMEOUT|COMPLETED")
	time.Sleep(3 * time.Second)
	delete(before, common[len(common)-1]) // in the slot of a minute too
	c.unchanged(func(string) string { return "forged lines of a job whose time slot is over" }, before)
	c.settings(map[string]string{"partition.gpu.time_slot": `"0s"`})
	c.empty()
}

// Forged lines where root returns a job to the queue that finds no GPU.
func attackGivenBack(t *testing.T, c *cluster) {
	c.settings(map[string]string{"placement.max_jobs": "1"})
	_, common, _ := victims(c, 1, "")
	for range 3 { // one is there
		id := c.sbatch(bob, "", shares("4G"))
		c.waiting([]string{id}, "%T %r", "RUNNING None")
		common = append(common, id)
	}
	before := c.shown(common...)
	f := newForgery(c, "#!/bin/bash\n#CARMA mem=2G\nexec sleep 1h\n")
	forged := func(id string) string { return c.forged(id, common...) }
	if id := f.atSubmit("account of a job that is returned to the queue", "account", forged, "req_nodes=n1"); id != "" {
		c.sh(alice, "scontrol release "+id)
		c.eventually(func() string { return c.hookLog(id) + c.job(id, "%r") }, "returned|failed|Resources|ReqNodeNotAvail|Constraints")
	}
	time.Sleep(3 * time.Second)
	c.unchanged(func(string) string { return "forged lines of a job that is returned to the queue" }, before)
	c.settings(map[string]string{"placement.max_jobs": "3"})
	c.empty()
}

// empty cancels all jobs and waits until they have gone.
func (c *cluster) empty() {
	c.t.Helper()
	c.sh("", "scancel -u "+alice+"; scancel -u "+bob)
	c.eventually(func() string { return c.sh("", "squeue -h") + c.leases("n1") }, "^$")
}

// Jobs of all GPUs, a job on each node, keep the GPUs of a single node from everybody, not the cluster.
func TestAttackHoldsOnAllNodes(t *testing.T) {
	c := up(t, "--time-scale", "20")
	if c.publishes() {
		t.Skip("from Slurm 24.11 on such a job waits in the queue, and the steward holds for one job of a user")
	}
	// The jobs' Prologs last as long as the test looks.
	c.settings(map[string]string{"hooks.wait": `"1s"`, "hooks.wait_interactive": `"100s"`})
	for _, node := range []string{"n1", "n2"} {
		for range 4 { // as booked, the node has room; no GPU has
			id := c.sbatch(bob, "-w "+node, shares("20G"))
			c.waiting([]string{id}, "%T %r", "RUNNING None")
		}
	}
	var large []string
	for _, node := range []string{"n1", "n2"} {
		id := c.sbatch(alice, "--no-requeue -w "+node, "#SBATCH --gres=gpu:4\n#CARMA mem=19G\nexec sleep 1h\n")
		c.eventually(func() string { return c.job(id, "%r") }, "Prolog")
		large = append(large, id)
	}
	c.eventually(c.keptFor, "^10$")
	time.Sleep(30 * time.Second)
	if got := c.keptFor(); got != "10" {
		t.Errorf("jobs for which GPUs are held on n1 and n2: %s, want 10", got)
	}
	c.sh("", "scancel "+large[0])
	c.eventually(c.keptFor, "^01$")
	c.empty()
	c.nothingLeft()
}

// keptFor is, of n1 and of n2, how many jobs GPUs are kept for.
func (c *cluster) keptFor() (nodes string) {
	for _, node := range []string{"n1", "n2"} {
		var kept int
		if err := c.ledger(node).QueryRow("SELECT count(DISTINCT job_id) FROM hold").Scan(&kept); err != nil {
			c.t.Fatal(err)
		}
		nodes += fmt.Sprint(kept)
	}
	return nodes
}

// So do jobs that were out of memory, truly or by their own account alone, and do not come back.
func TestAttackHoldsAfterOOM(t *testing.T) {
	c := up(t)
	c.settings(map[string]string{"capacity.compare": `"2s"`})
	four := func(script string) string { return strings.Replace(script, "gpu:1", "gpu:4", 1) }
	says := "#SBATCH --gres=gpu:4\n#CARMA mem=8G\n(" + nearLimit + ")\necho '" + oomText + "' >&2; exit 1\n"
	requeued := func(node, other, script string) (id string) {
		id = c.sbatch(alice, "-x "+other, script)
		c.eventually(func() string { out, _, _ := c.run("", "cat "+c.dir+"/log/hooks."+node+".log"); return out },
			`msg=released .*job="?`+id+`\b`)
		return id
	}
	for _, node := range []string{"n1", "n2"} { // no job gets the whole node now
		c.waiting([]string{c.sbatch(alice, "-w "+node, four(shares("4G")))}, "%T %r", "RUNNING None")
	}
	first := requeued("n1", "n2", four(oomOnce))
	c.eventually(c.keptFor, "^10$")
	requeued("n2", "n1", says)
	if got := c.keptFor(); got != "10" {
		t.Errorf("jobs for which GPUs are held on n1 and n2: %s, want 10", got)
	}
	c.sh(alice, "scontrol update JobId="+first+" ExcNodeList=n1")
	c.eventually(c.keptFor, "^00$")
	c.sh("", "scancel --state=PENDING -u "+alice)
	third := requeued("n2", "n1", says)
	c.eventually(c.keptFor, "^01$")
	c.sh(alice, "scontrol update JobId="+third+" ExcNodeList= ReqNodeList=n1")
	c.eventually(c.keptFor, "^00$")
	c.empty()
	c.nothingLeft()
}

// No GPU is kept on for a job whose user has changed the job so that the job cannot run on the node any more, even
// where slurmctld says that the job waits for its turn.
func TestAttackHoldsOfChangedJobs(t *testing.T) {
	holdsEnd(t, "Features=b", "Partition=other", "ReservationName=other", "NumNodes=3-3")
}

// Two tests, a cluster for each: with a single cluster, no short test takes longer.
func TestAttackHoldsOfLargerJobs(t *testing.T) {
	holdsEnd(t, "MinMemoryNode=200000", "MinCPUsNode=65", "MinTmpDiskNode=1000", "Dependency=afterok:1")
}

// holdsEnd requires that a hold ends with each change after which the job cannot run on the node.
func holdsEnd(t *testing.T, changes ...string) {
	t.Helper()
	c := up(t)
	c.settings(map[string]string{"capacity.compare": `"2s"`})
	c.sh("", "scontrol update NodeName=n1 Features=a; scontrol update NodeName=n2 Features=b")
	c.sh("", "scontrol create PartitionName=other Nodes=n2 State=UP")
	c.managed("other", true)
	c.known("other")
	four := func(script string) string { return strings.Replace(script, "gpu:1", "gpu:4", 1) }
	says := "#SBATCH --gres=gpu:4\n#CARMA mem=8G\n(" + nearLimit + ")\necho '" + oomText + "' >&2; exit 1\n"
	for _, node := range []string{"n1", "n2"} { // no job gets the whole node now
		c.waiting([]string{c.sbatch(alice, "-w "+node, four(shares("4G")))}, "%T %r", "RUNNING None")
	}
	c.sh("", "scontrol create reservation ReservationName=other StartTime=now Duration=60 Flags=IGNORE_JOBS Nodes=n2 Users="+
		alice)
	for _, change := range changes {
		id := c.sbatch(alice, "-w n1", says)
		c.eventually(c.keptFor, "^10$")
		c.sh(alice, "scontrol update JobId="+id+" ReqNodeList=")
		c.update(alice, "JobId="+id+" "+change)
		start := time.Now()
		c.eventually(c.keptFor, "^00$") // far less than a hold lasts
		attacked(t, change, fmt.Sprintf("held for %s more; %s", time.Since(start).Round(time.Second), c.job(id, "%T %r")))
		c.sh("", "scancel "+id)
		c.eventually(c.keptFor, "^00$")
	}
	c.empty()
	c.nothingLeft()
}

// Two users whose jobs call their GPU broken close the GPU for ten minutes, and not again while others wait.
func TestAttackQuarantine(t *testing.T) {
	c := up(t, "--nodes", "1")
	var running []string
	for range 3 {
		running = append(running, c.sbatch(carol, "", whole+"exec sleep 1h\n"))
	}
	c.waiting(running, "%T %r", "RUNNING None")
	fail := func(users ...string) {
		for _, user := range users {
			id := c.sbatch(user, "", "#SBATCH --gres=gpu:1\n#CARMA mem=2G\n"+
				"echo 'CUDA error: an illegal memory access was encountered' >&2; exit 1\n")
			c.ends(id, "FAILED")
			c.eventually(func() string { return c.leases("n1") }, `^\d+ \d+ \d+$`) // the Epilog has ended
		}
	}
	closed := func() (list string) {
		for _, g := range c.status("n1") {
			if g.Quarantine == "jobs" {
				list += fmt.Sprint(" ", g.Index)
			}
		}
		return list
	}
	fail(alice, alice, bob)
	attacked(t, "three jobs of two users fail", "closed:"+closed())
	if got := closed(); !regexp.MustCompile(`^ \d$`).MatchString(got) {
		t.Errorf("jobs of two users have failed on a GPU, closed are GPUs:%s", got)
	}
	for _, gpu := range strings.Fields(closed()) { // as in ten minutes
		c.sh("", "carma-node --node n1 readmit "+gpu)
	}
	waits := c.sbatch(carol, "", "#SBATCH --gres=gpu:2\n#CARMA off\nexec sleep 1h\n")
	c.waiting([]string{waits}, "%T", "PENDING")
	fail(alice, bob, alice)
	attacked(t, "three more, while a third user waits", "closed:"+closed())
	if got := closed(); got != "" {
		t.Errorf("GPUs closed by the same two users again:%s", got)
	}
	c.sh("", "scancel "+running[0])
	c.waiting([]string{waits}, "%T %r", "RUNNING None")
	c.sh("", "scancel -u "+carol)
	c.empty()
	c.nothingLeft()
}

// GPUs are not kept for a job whose user has it wait.
func attackKept(t *testing.T, c *cluster) {
	most := patience / 2 // far less than a hold lasts
	c.settings(map[string]string{"hold.after": `"1s"`})
	running := c.sbatch(bob, "", whole+"exec sleep 1h\n")
	c.eventually(func() string { return c.job(running, "%T") }, "RUNNING")
	for _, wait := range []string{"scontrol hold %s", "scontrol update JobId=%s StartTime=now+5hours"} {
		large := c.sbatch(alice, "", "#SBATCH --gres=gpu:4\n#CARMA off\nexec sleep 1h\n")
		c.eventually(func() string {
			var kept int
			if err := c.ledger("n1").QueryRow("SELECT count(*) FROM hold WHERE job_id=?", large).Scan(&kept); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprint(kept)
		}, "^[1-4]$")
		c.sh(alice, fmt.Sprintf(wait, large))
		start := time.Now()
		id := c.sbatch(bob, "", whole+"exec sleep 1h\n")
		for c.job(id, "%T") != "RUNNING" && time.Since(start) < most {
			time.Sleep(100 * time.Millisecond)
		}
		attacked(t, fmt.Sprintf(wait, large),
			fmt.Sprintf("another user's job is %s after %s", c.job(id, "%T"), time.Since(start).Round(time.Second)))
		if c.job(id, "%T") != "RUNNING" {
			t.Errorf("%s: another user's job has waited %s for a GPU that is kept for it", fmt.Sprintf(wait, large), most)
		}
		c.sh("", "scancel "+large+" "+id)
	}
	c.settings(map[string]string{"hold.after": `"2h"`})
	c.empty()
}

// Nobody comes before a batch job that has waited for the same GPU: no job of srun that names its node, none of a
// partition that carma.toml does not name, none that has got its GPU by a later update, though it cannot return
// to the queue. The batch job's Prolog begins late, as on a busy node.
func attackTurn(t *testing.T, c *cluster) {
	prolog := c.dir + "/hooks/prolog"
	c.sh("", "cp -p "+prolog+" "+prolog+".own; sed -i '1a [ \"$SLURM_JOB_USER\" != "+bob+" ] || { date +%s.%N >"+c.dir+
		"/log/began.$SLURM_JOB_ID.$SLURM_JOB_RESTART_COUNT; sleep 0.5; }' "+prolog)
	defer c.sh("", "mv "+prolog+".own "+prolog)
	for what, passes := range map[string]string{
		"srun -w":                           "exec srun -J passes -w n1 --gres=gpu:1 sleep 1h",
		"srun in a partition of no concern": "exec srun -J passes -p plain --gres=gpu:1 sleep 1h",
		"a GPU by a later update": "id=$(sbatch -J passes --parsable -H -p plain --no-requeue --wrap 'sleep 1h'); " +
			"scontrol update JobId=$id Gres=gpu:1; scontrol release $id",
	} {
		// On a slow machine a Prolog may begin later than another job's waits for it (two seconds).
		for try := 1; ; try++ {
			passed, late := attackTurnBy(t, c, what, passes)
			if passed && late > time.Second && try < 3 {
				t.Logf("%s: the batch job's Prolog began %s after the job: once more", what, late)
				continue
			}
			if passed {
				t.Errorf("%s came before a batch job that had waited for the same GPU", what)
			}
			break
		}
	}
}

// attackTurnBy tells whether the command's job came first, and how long after the batch job's start its Prolog began.
func attackTurnBy(t *testing.T, c *cluster, what, command string) (passed bool, late time.Duration) {
	var fill []string
	for range 4 { // room on the node, and no GPU that is idle
		id := c.sbatch(alice, "", shares("10G"))
		c.waiting([]string{id}, "%T %r", "RUNNING None")
		fill = append(fill, id)
	}
	// Else slurmctld may still start the next job there, whose Prolog returns it for a while.
	c.wantCounts("n1", "^carma1:0 ")
	waits := c.sbatch(bob, "", whole+"exec sleep 1h\n")
	c.eventually(func() string { return c.job(waits, "%T %r") }, "PENDING [^N]")
	time.Sleep(5 * time.Second)
	c.background(alice, command)
	var passes string
	c.eventually(func() string { passes = c.sh("", "squeue -h -n passes -o %A"); return passes }, "^[0-9]+$")
	time.Sleep(5 * time.Second)
	c.sh("", "scancel "+fill[0])
	either := regexp.MustCompile(`\b(` + waits + "|" + passes + `)\b`)
	c.eventually(func() string { return c.leases("n1") }, either.String())
	first := either.FindString(c.leases("n1"))
	came := map[string]string{waits: "the batch job came first", passes: "it came first"}
	attacked(t, what+" after a batch job that waits", came[first])
	if passed = first != waits; passed {
		late = c.prologLate(waits)
	}
	c.empty()
	return passed, late
}

// prologLate is how long after slurmctld had started a job attackTurn's Prolog began; none where slurmctld has not.
func (c *cluster) prologLate(id string) time.Duration {
	c.t.Helper()
	log, _, _ := c.run("", "grep -E '(Allocate|Started) JobId="+id+" ' "+c.dir+"/log/slurmctld.log")
	starts := strings.Split(strings.TrimSpace(log), "\n")
	last := len(starts) - 1 // the attempt's restart count
	if starts[last] == "" {
		return 0
	}
	at, _, _ := strings.Cut(strings.TrimPrefix(starts[last], "["), "]")
	started, err := time.ParseInLocation("2006-01-02T15:04:05.000", at, time.Local)
	if err != nil {
		c.t.Fatal(err)
	}
	var began float64
	c.eventually(func() string {
		text, _ := os.ReadFile(fmt.Sprintf("%s/log/began.%s.%d", c.dir, id, last))
		began, _ = strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		return fmt.Sprint(began > 0)
	}, "true")
	return time.Unix(0, int64(began*1e9)).Sub(started)
}

// A job that needs less does not pass one that came before it and waits for a whole GPU, in the moment in which the
// GPU's last reading still has the memory of the job that has ended.
func TestWholeGPUIsFirst(t *testing.T) {
	c := up(t, "--nodes", "1")
	if !c.publishes() {
		t.Skip("before Slurm 24.11 a job starts by slots, and waits in its Prolog")
	}
	alone := func(duration string) string {
		return "#SBATCH --gres=gpu:1\nexec simjob --mem 15G --smact 5 --ramp 0s --duration " + duration + "\n"
	}
	for range 3 {
		c.waiting([]string{c.sbatch(bob, "", alone("10h"))}, "%T", "RUNNING")
	}
	for round := range 4 {
		last := c.sbatch(bob, "", alone("10h"))
		c.waiting([]string{last}, "%T", "RUNNING")
		c.wantCounts("n1", "^carma1:0 ") // else slurmctld may start the next job, which its Prolog returns
		first := c.sbatch(bob, "", alone("10h"))
		c.waiting([]string{first}, "%T", "PENDING")
		later := c.sbatch(alice, "", shares("4G"))
		c.waiting([]string{later}, "%T", "PENDING")
		for i := range 4 { // the last reading has the jobs' memory
			c.eventually(func() string { return fmt.Sprint(c.status("n1")[i].UsedMiB >= 15<<10) }, "true")
		}
		c.sh("", "scancel "+last)
		c.eventually(func() string { return c.job(first, "%T") + " " + c.job(later, "%T") }, "RUNNING")
		if got := c.job(first, "%T") + " " + c.job(later, "%T"); got != "RUNNING PENDING" {
			t.Errorf("round %d: the job for a whole GPU and the one that came later: %s", round, got)
		}
		c.sh("", "scancel "+first+" "+later)
		c.eventually(func() string { return c.job(first, "%T") + c.job(later, "%T") }, "^CANCELLEDCANCELLED$")
	}
	c.empty()
	c.nothingLeft()
}
