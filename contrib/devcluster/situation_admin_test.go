// SPDX-License-Identifier: Apache-2.0

//go:build integration && situations

package devcluster_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/extra"
)

// Situations that administrators bring about (docs/situations.md).

// startCtld starts slurmctld anew, with more options; before runs while it is away.
func (c *cluster) startCtld(options string, before func()) {
	c.t.Helper()
	c.end("slurmctld")
	before()
	c.daemon("slurmctld", "slurmctld -f $SLURM_CONF "+options)
	c.eventually(func() string { return c.sh("", "scontrol ping || true") }, "UP")
}

// end ends processes of the cluster, without devcluster's help, and waits for them.
func (c *cluster) end(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.sh("", "f="+c.dir+"/pid/"+name+"; read -r pid _ <$f; kill $pid\n"+
			"while kill -0 $pid 2>/dev/null; do sleep 0.1; done; rm -f $f $f.raw")
	}
}

// daemon starts a process of Slurm that leaves its number in a file.
func (c *cluster) daemon(name, command string) {
	c.t.Helper()
	raw := c.dir + "/pid/" + name + ".raw"
	c.sh("", command+" </dev/null >>"+c.dir+"/log/"+name+".out 2>&1\n"+
		"until [ -s "+raw+" ]; do sleep 0.1; done\n"+c.remember(name, "$(cat "+raw+")"))
}

// remember is a command that tells devcluster which process runs under a name.
func (c *cluster) remember(name, pid string) string {
	return "pid=" + pid + "; echo $pid $(sed 's/.*) //' /proc/$pid/stat | cut -d' ' -f20) >" + c.dir + "/pid/" + name
}

// A suspended job keeps its GPU and its memory; that it does nothing then is not held
// against it when it runs again.
func TestSituationSuspended(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"idle.after": `"40s"`, "idle.action": `"cancel"`})
	c.restart("agent")
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=10G\necho gpu=$CUDA_VISIBLE_DEVICES\nuntil [ -e go ]; "+
		"do sleep 0.1; done\nexec simjob --mem 9G --smact 30 --ramp 0s --duration 5s\n")
	c.gpu(id)
	c.sh("", "scontrol suspend "+id)
	beside := c.sbatch(alice, "", train("20G", "1s"))
	c.ends(beside, "COMPLETED")
	c.eventually(func() string { return c.sh("", "carma-node --node n1 status") },
		id+` carma-alice 10.0G idle (4[5-9]|5\ds|1m)`)
	if got := c.job(id, "%T") + c.leases("n1"); got != "SUSPENDED"+id {
		t.Errorf("the job is %s", got)
	}
	c.sh("", "scontrol resume "+id)
	time.Sleep(8 * time.Second) // the agent looks for idle jobs every 5 s
	if got := c.job(id, "%T"); got != "RUNNING" {
		t.Fatalf("the job is %s after it was resumed\n%s", got, c.story(id))
	}
	c.sh(alice, "touch go")
	c.ends(id, "COMPLETED")

	ended := c.sbatch(alice, "", train("10G", "1h"))
	c.gpu(ended)
	c.sh("", "scontrol suspend "+ended)
	c.sh(alice, "scancel "+ended)
	c.ends(ended, "CANCELLED")
	c.eventually(func() string { return c.leases("n1") }, "^$")
	c.nothingLeft()
}

// Jobs wait for the end of a maintenance, and those of a reservation run in it. A node that
// is rebooted, and knows nothing of before, serves again; the job that ran there is requeued.
func TestSituationMaintenance(t *testing.T) {
	c := up(t)
	runs := c.sbatch(alice, "-w n1", train("10G", "1h"))
	c.gpu(runs)
	c.sh("", "scontrol create reservation=work starttime=now duration=60 flags=maint,ignore_jobs nodes=n1 users=root")
	c.sh("", "scontrol create reservation=class starttime=now duration=60 flags=ignore_jobs nodes=n2 users="+alice)
	waits := c.sbatch(bob, "-t 5", train("10G", "1s"))
	inside := c.sbatch(alice, "-t 5 --reservation=class", train("10G", "1s"))
	c.ends(inside, "COMPLETED")
	time.Sleep(5 * time.Second)
	if got := c.job(waits, "%T") + c.restarts(waits) + c.job(runs, "%T"); got != "PENDING0RUNNING" {
		t.Errorf("%s", got)
	}
	c.sh("", "scontrol delete reservation=class")
	c.ends(waits, "COMPLETED")
	c.sh("", "scontrol delete reservation=work")

	reboot := filepath.Join(c.dir, "hooks", "reboot")
	if err := os.WriteFile(reboot, []byte("#!/bin/sh\ntouch "+c.dir+"/rebooted\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.slurmConf("RebootProgram="+reboot, "ResumeTimeout=120")
	c.restart("slurmd")
	c.wantCounts("n1", "carma4:0 carmaall:4$")
	c.sh("", "scontrol reboot nextstate=resume reason=kernel n1")
	time.Sleep(3 * time.Second)
	if got := c.job(runs, "%T"); got != "RUNNING" {
		t.Errorf("scontrol reboot did not wait for the job: %s", got)
	}
	c.sh(alice, "scancel "+runs)
	c.ends(runs, "CANCELLED")
	c.eventually(func() string { return c.sh("", "ls "+c.dir+"/rebooted 2>/dev/null || true") }, "rebooted")
	// What a reboot takes away: processes, /run.
	c.sh("", `for p in slurmd.n1 agent.n1; do read -r pid _ <`+c.dir+`/pid/$p; kill -9 $pid; done
		for p in /proc/[0-9]*; do
			if grep -qaz '^CUDA_MPS_PIPE_DIRECTORY=`+c.dir+`/run/n1/' $p/environ 2>/dev/null; then kill -9 ${p#/proc/}; fi
		done; rm -rf `+c.dir+`/run/n1/* `+c.dir+`/pid/slurmd.n1*`)
	time.Sleep(2 * time.Second) // a boot takes time
	c.sh("", "slurmd -f $SLURM_CONF -N n1 -b </dev/null >>"+c.dir+"/log/slurmd.n1.out 2>&1; until [ "+
		"-s "+c.dir+"/pid/slurmd.n1.raw ]; do sleep 0.1; done; "+
		c.remember("slurmd.n1", "$(cat "+c.dir+"/pid/slurmd.n1.raw)"))
	c.restart("agent", "n1")
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	c.wantCounts("n1", idleCounts)
	c.ends(c.sbatch(alice, "-w n1", train("10G", "1s")), "COMPLETED")
	c.nothingLeft()
}

// A node comes back with fewer GPUs than it had, and nobody has changed a file yet: jobs
// that it cannot take wait or run elsewhere, the others share what it has, and the doctor
// says what to change.
func TestSituationFewerGPUs(t *testing.T) {
	c := up(t)
	c.end("slurmd.n1", "agent.n1")
	c.sh("", `rm -rf `+c.dir+`/run/n1/* `+c.dir+`/simgpu/n1*; simgpu create `+c.dir+`/simgpu/n1 --model dgx-a100 `+
		`--gpus 2`)
	c.restart("slurmd", "n1")
	c.restart("agent", "n1")
	c.wantCounts("n1", "^carma1:40536 carma2:40536 carmaall:0$")
	where := ""
	if !c.publishes() { // slurmctld sends the job to n1 again and again
		where = "-w n2"
	}
	four := c.sbatch(alice, where, "#SBATCH --gres=gpu:4\nsleep 2\n")
	var ones []string
	for range 8 {
		ones = append(ones, c.sbatch(bob, "", train("12G", "2s")))
	}
	for _, id := range append(ones, four) {
		c.ends(id, "COMPLETED")
	}
	if r := c.report(four); len(r.GPUs) != 4 || r.Attempts != 1 {
		t.Errorf("four GPUs: %+v", r)
	}
	if c.publishes() {
		there := c.sbatch(alice, "-w n1 --gres=gpu:4", "true\n")
		c.eventually(func() string { return c.job(there, "%T %r") }, "^PENDING (BadConstraints|Resources|Constraints)$")
		if r := c.restarts(there); r != "0" {
			t.Errorf("four GPUs of n1: started %s times", r)
		}
		c.sh("", "scancel "+there)
	}
	out, _, _ := c.run("", "SIMGPU_STATE="+c.dir+"/simgpu/n1 carma-node --node n1 doctor --node")
	if !strings.Contains(out, "NVML shows 2 GPUs, [partition.gpu] says 4") {
		t.Errorf("the doctor says\n%s", out)
	}
	c.nothingLeft()
}

// slurmctld has lost all that it knew: it ends the jobs that nodes report, their leases go,
// and job ids begin anew.
func TestSituationStateLost(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.agentAlone("n1")
	waits := func(mem, d string) string {
		return "#SBATCH --gres=gpu:1\n#CARMA mem=" + mem + "\necho gpu=$CUDA_VISIBLE_DEVICES\nexec sleep " + d + "\n"
	}
	first := c.sbatch(alice, "", waits("10G", "1h"))
	second := c.sbatch(bob, "", waits("10G", "1h"))
	c.gpu(first)
	c.gpu(second)
	c.startCtld("-c", func() { c.sh("", "rm -rf "+c.dir+"/state/*") })
	// They are ended, as slurmctld does not know them: no script and no step is left that slurmd would
	// report once more, for which slurmctld would end the job that has the id by then.
	c.eventually(func() string {
		return c.sh("", "cd "+c.dir+"/spool/n1; ls -d job0000* n1_* 2>/dev/null || true")
	}, "^$")
	c.restart("slurmd") // up to 22.05 it takes a new job for one of the same id that it has just run
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n1 -p plain -o %T") }, "^idle$")
	again := c.sbatch(bob, "-o again.out", waits("12G", "8s"))
	if again != first {
		t.Fatalf("job ids go on: %s after %s", again, second)
	}
	c.eventually(func() string { return c.sh("", "carma-node --node n1 status") }, " "+again+" carma-bob 12.0G")
	c.ends(again, "COMPLETED")
	c.eventually(func() string { return c.leases("n1") }, "^$") // the agent looks at leases of 30 s
	c.wantCounts("n1", idleCounts)
	if out := c.sh("", "carma-report -P -n -o JobID,User,State"); !strings.Contains(out, again+"|carma-bob|COMPLETED") {
		t.Errorf("records:\n%s", out)
	}
	c.nothingLeft()
}

// down1000 adds so many nodes that are down that the cluster has 1,000. Agents count them when they start.
func (c *cluster) down1000(nodes int) {
	c.t.Helper()
	down := fmt.Sprintf("down[1-%d]", 1000-nodes)
	c.sh("", "sed -i -E '/^PartitionName=gpu/s/ Nodes=/&"+down+",/' "+c.dir+"/etc/slurm.conf")
	c.slurmConf("NodeName=" + down + " NodeAddr=127.0.0.1 Port=1 CPUs=64 RealMemory=100000 State=DOWN Gres=" +
		c.sh("", "grep -oPm1 '^NodeName=n1 .*Gres=\\K.*' "+c.dir+"/etc/slurm.conf"))
}

// On 1,000 nodes a user's short jobs raise their node's counts often. The node tells ten of that at once and then
// one every 20 s, no lower count late, and the last within 20 s; no job is lost or returned.
func TestSituationUpdatesBounded(t *testing.T) {
	const jobs, every = 80, 20 * time.Second
	needsCounts(t)
	c := up(t, "--nodes", "1", "--time-scale", "10")
	c.down1000(1)
	c.restart("agent")
	c.wantCounts("n1", idleCounts)
	db := c.ledger("n1")
	c.eventually(func() string { // as the agent knows
		var nodes string
		db.QueryRow("SELECT nodes FROM raised").Scan(&nodes)
		return nodes
	}, "^1000$")
	if _, err := db.Exec("CREATE TABLE told (seq INTEGER PRIMARY KEY, at REAL, gres TEXT); CREATE TRIGGER tell AFTER INSERT " +
		"ON published BEGIN INSERT INTO told VALUES (NULL, julianday('now')*86400, new.gres); END"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var ids []string
	for range jobs {
		ids = append(ids, c.sbatch(alice, "-o /dev/null", "#SBATCH --gres=gpu:1\n#CARMA mem=30G\nsleep 1\n"))
	}
	for _, id := range ids {
		c.ends(id, "COMPLETED")
	}
	took := time.Since(start)
	end := time.Now()
	c.wantCounts("n1", idleCounts)
	late := time.Since(end)
	rows, err := db.Query("SELECT at, gres FROM told ORDER BY seq")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	updates, raises := 0, 0
	for last := map[string]int64(nil); rows.Next(); {
		var at float64
		var text string
		if err := rows.Scan(&at, &text); err != nil {
			t.Fatal(err)
		}
		counts, err := extra.Counts(text)
		if err != nil {
			t.Fatal(err)
		}
		if last != nil && !maps.Equal(counts, last) {
			updates++
			for key, n := range counts {
				if n > last[key] {
					raises++
					break
				}
			}
		}
		last = counts
	}
	t.Logf("%d jobs in %s, %d updates, of which %d raise; the last %s after the end", jobs, took.Round(time.Second), updates,
		raises, late.Round(time.Second))
	// A comparison, every 50 s, tells what it finds in any case.
	if most := 10 + int((took+late)/every) + 1 + int((took+late)/(50*time.Second)); raises > most || raises < 8 || rows.Err() != nil {
		t.Errorf("%d updates raise a count; at most %d may, %v", raises, most, rows.Err())
	}
	if late > every+10*time.Second {
		t.Errorf("counts are right %s after the last job has ended", late)
	}
	for _, id := range ids {
		if got := c.restarts(id); got != "0" {
			t.Errorf("job %s was returned to the queue %s times", id, got)
		}
	}
	c.nothingLeft()
}

// A node that power saving has switched off is switched on when a job needs it, takes it,
// and has right counts.
func TestSituationPowerSaving(t *testing.T) {
	c := up(t)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	// slurmctld starts them without open files (closeall(0) in power_save.c), and a slurmd
	// without its first three starts no job.
	head := "#!/bin/bash\nexec </dev/null >>" + c.dir + "/log/power.out 2>&1\nunset SLURM_JOB_ID\ncd " + here +
		"\nexport SLURM_PREFIX='" + os.Getenv("SLURM_PREFIX") + "'\neval \"$(./devcluster env " + c.dir + ")\"\n" +
		"for n in $(scontrol show hostnames $1); do\n"
	raw := c.dir + "/pid/slurmd.$n.raw"
	for name, text := range map[string]string{
		"off": "echo off $n >>" + c.dir + "/log/power\nfor p in agent slurmd; do read -r pid _ <" + c.dir +
			"/pid/$p.$n; kill $pid; rm " + c.dir + "/pid/$p.$n; done; done\n",
		// slurmctld wants to see that it has booted: -b.
		"on": "echo on $n >>" + c.dir + "/log/power; rm -f " + raw + "\nslurmd -f $SLURM_CONF -N $n -b\n" +
			"until [ -s " + raw + " ]; do sleep 0.1; done\n" + c.remember("slurmd.$n", "$(cat "+raw+")") +
			"\n./devcluster restart " + c.dir + " agent $n; done\n",
	} {
		if err := os.WriteFile(filepath.Join(c.dir, "hooks", name), []byte(head+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	doctor := func() string { out, _, _ := c.run("", "carma-node doctor --controller"); return out }
	c.slurmConf("SuspendProgram="+c.dir+"/hooks/off", "ResumeProgram="+c.dir+"/hooks/on", "SuspendTimeout=3",
		"ResumeTimeout=300", "SuspendTime=600", "SuspendExcNodes=n1")
	c.restart("slurmd")
	if out := doctor(); strings.Contains(out, "SuspendProgram") {
		t.Errorf("the doctor says\n%s", out)
	}
	power := func() string { out, _, _ := c.run("", "cat "+c.dir+"/log/power"); return out }
	c.sh("", "scontrol update NodeName=n2 State=POWER_DOWN")
	c.eventually(power, "off n2")
	c.eventually(func() string { return c.sh("", "sinfo -h -N -n n2 -p plain -o %T") }, "~")
	for range 4 { // n1 is full
		c.gpu(c.sbatch(alice, "-w n1", "#SBATCH --gres=gpu:1\n#CARMA policy=exclusive\necho gpu=$CUDA_VISIBLE_DEVICES\n"+
			"exec sleep 1h\n"))
	}
	id := c.sbatch(bob, "", train("10G", "20s"))
	c.eventually(func() string { return c.job(id, "%T %N") }, "RUNNING n2")
	c.gpu(id)
	c.wantCounts("n2", "carma4:0 carmaall:4$")
	c.ends(id, "COMPLETED")
	c.sh("", "scancel -u "+alice+"; sed -i /^Suspend/d "+c.dir+"/etc/slurm.conf")
	c.restart("slurmctld")
	c.nothingLeft()
}

// Limits on gres/gpu count what users ask for, as without CARMA: a job that is over its
// limit waits in the queue. While slurmdbd is away all goes on.
func TestSituationLimits(t *testing.T) {
	needsMySQL(t)
	c := up(t, "--nodes", "1", "--slurmdbd")
	c.slurmConf("AccountingStorageEnforce=associations,limits,qos", "AccountingStorageTRES=gres/gpu,gres/carma")
	c.sh("", "sacctmgr -iQ modify qos normal set MaxTRESPerUser=gres/gpu=2; sacctmgr -iQ modify user "+bob+
		" set GrpTRES=gres/gpu=1")
	c.wantCounts("n1", idleCounts) // slurmctld began anew with those of slurm.conf
	run := func(user string) string { return c.sbatch(user, "", train("10G", "1h")) }
	states := func(ids ...string) func() string {
		return func() string { return c.sh("", "squeue -h -j "+strings.Join(ids, ",")+" -o '%T %r %i' | sort") }
	}
	a, b := []string{run(alice), run(alice), run(alice)}, []string{run(bob), run(bob)}
	c.eventually(states(a...), `^PENDING QOSMaxGRESPerUser \d+\nRUNNING .*\nRUNNING .*$`)
	c.eventually(states(b...), `^PENDING AssocGrpGRES \d+\nRUNNING .*$`)
	for _, id := range append(a, b...) {
		if got := c.restarts(id); got != "0" {
			t.Errorf("job %s was put back %s times", id, got)
		}
	}
	c.sh("", "read -r pid _ <"+c.dir+"/pid/slurmdbd; kill -9 $pid; rm "+c.dir+"/pid/slurmdbd*")
	c.sh(alice, "scancel "+a[0])
	c.eventually(states(a[1:]...), `^RUNNING .*\nRUNNING .*$`)
	away := c.sbatch(carol, "", "#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsimjob --mem 12G --smact 10 --ramp 0s "+
		"--duration 1s\n")
	c.ends(away, "COMPLETED")
	if r := c.report(away); !r.OOM || r.Attempts != 2 {
		t.Errorf("while slurmdbd is away: %+v", r)
	}
	c.restart("slurmdbd")
	c.eventually(func() string {
		out, _, _ := c.run("", "carma-report -P -n -o JobID --from slurmdbd -j "+away)
		return out
	}, "^"+away)
	c.sh("", "scancel -u "+alice+"; scancel -u "+bob)
	c.nothingLeft()
}
