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

// refuses requires that a user's command fails and that why is said, to the user or,
// where Slurm before 23.02 has no way for that, in slurmctld's log.
func (c *cluster) refuses(command, why string) {
	c.t.Helper()
	logs := filepath.Join(c.dir, "log", "slurmctld.log")
	before, _ := os.ReadFile(logs)
	_, stderr, err := c.answered(alice, command)
	after, _ := os.ReadFile(logs)
	if err == nil || !strings.Contains(stderr+string(after[min(len(before), len(after)):]), why) {
		c.t.Errorf("%s: %v, %q; want %q", command, err, stderr, why)
	}
}

// held submits a job that does not start and returns its id.
func (c *cluster) held(options string) string {
	c.t.Helper()
	asks := strings.Contains(options, "--gres") || strings.Contains(options, "--gpus")
	booked := regexp.MustCompile("carma=|Partition=plain")
	for range 5 {
		id := c.sbatch(alice, "-H "+options, "sleep 100\n")
		shown := c.show(id)
		if !asks || booked.MatchString(shown) {
			return id
		}
		// slurmctld says so once a minute.
		if c.sh("", "grep -cE '"+unanswered+"' "+c.dir+"/log/slurmctld.log || true") == "0" {
			c.t.Fatalf("job %s is not booked, and no answer was late:\n%s", id, shown)
		}
		c.t.Logf("job %s: no answer in time, and so as its user wrote: submitted again", id)
		c.sh(alice, "scancel "+id)
	}
	c.t.Fatalf("libcarma booked nothing for five jobs in turn: %s", options)
	return ""
}

func (c *cluster) show(id string) string { return c.sh("", "scontrol show job "+id) }

// A text with a control character is refused in any partition, at submission and
// when a job is changed; UTF-8 is text.
func TestControlCharacters(t *testing.T) {
	c := up(t, "--nodes", "1")
	raw := c.client("rawjob")
	const line, escape = `$'x\n1|1|0,7|running|gpu|'`, `$'x\e[2J'`
	for _, partition := range []string{"gpu", "plain"} {
		p := "-p " + partition
		c.refuses("sbatch "+p+" --comment="+line+" --wrap true",
			"carma: the job's comment has a control character (byte 10); remove it")
		c.refuses("sbatch "+p+" -J "+line+" --wrap true",
			"carma: the job's name has a control character (byte 10); remove it")
		c.refuses("sbatch "+p+" -A "+escape+" --wrap true",
			"carma: the job's account has a control character (byte 27); remove it")
		c.refuses("srun "+p+" --wckey="+line+" true", "carma: the job's wckey has a control character (byte 10)")
		c.refuses("salloc "+p+" -J "+line+" true", "carma: the job's name has a control character (byte 10)")
		c.refuses("sbatch "+p+" -o "+line+" --wrap true", "carma: the job's path of stdout has a control character (byte 10)")
		for field, what := range map[string]string{"tres_per_node": "GRES of a node", "tres_per_task": "GRES of a task",
			"features": "constraint", "mail_user": "mail address"} {
			c.refuses(raw+" submit "+partition+" "+field+` $'gres:gpu:a\nb'`,
				"carma: the job's "+what+" has a control character (byte 10)")
		}
		id := c.held(p)
		for field, what := range map[string]string{"name": "name", "comment": "comment", "account": "account",
			"tres_per_node": "GRES of a node", "partition": "partition"} {
			c.refuses(raw+" update "+id+" "+field+" "+line, "carma: the job's "+what+" has a control character (byte 10)")
		}
		c.refuses("scontrol update JobId="+id+" Comment="+escape,
			"carma: the job's comment has a control character (byte 27)")
		c.sh(alice, "scontrol update JobId="+id+" Comment='größer, 数 €' JobName=ñandú")
		if got := c.show(id); !strings.Contains(got, "Comment=größer, 数 €") || !strings.Contains(got, "JobName=ñandú") {
			t.Errorf("UTF-8: %s", got)
		}
	}
	// sbatch --wrap and arguments may have lines.
	c.ends(c.sh(alice, `sbatch --parsable --wrap $'true\ntrue'`), "COMPLETED")
	// An administrator who has switched CARMA off has Slurm as it was.
	c.sh("", "touch "+c.dir+"/etc/carma.disable")
	c.sh(alice, "for i in $(seq 50); do sbatch -H --comment="+line+" --wrap true && exit; sleep 0.2; done; false")
	c.sh("", "rm -f "+c.dir+"/etc/carma.disable")
	c.noDrain()
}

// The recovery partition is tried before all others, so users do not get in.
func TestRecoveryPartitionIsClosed(t *testing.T) {
	c := up(t, "--nodes", "1")
	raw := c.client("rawjob")
	const why = "carma: partition gpu-recovery accepts jobs only from CARMA; name another"
	for _, command := range []string{
		"sbatch -p gpu-recovery --wrap true", "sbatch -p gpu,gpu-recovery --wrap true",
		"sbatch -p gpu-recovery,plain --gres=gpu:1 --wrap true",
		"SBATCH_PARTITION=gpu-recovery sbatch --wrap true", "srun -p gpu-recovery true", "salloc -p plain,gpu-recovery true",
		"sbatch -p gpu : -p gpu-recovery --wrap true",
		raw + " submit gpu-recovery name x",
	} {
		c.refuses(command, why)
	}
	id := c.held("--gres=gpu:1")
	c.refuses("scontrol update JobId="+id+" Partition=gpu-recovery", why)
	c.refuses("scontrol update JobId="+id+" Partition=plain,gpu-recovery", why)
	c.sh("", "scontrol update PartitionName=gpu-recovery Default=YES")
	c.refuses("sbatch --wrap true", why)
	c.sh("", "scontrol update PartitionName=gpu Default=YES")
	// CARMA, as root, moves jobs there; its user may change what is left to users. From
	// 25.11 on slurmctld refuses by chance (ADR 5); CARMA tries again, too.
	c.eventually(func() string {
		_, stderr, err := c.run("", "scontrol update JobId="+id+" Partition=gpu-recovery")
		if err != nil && !strings.Contains(stderr, "temporarily unavailable") {
			t.Fatalf("%v: %s", err, stderr)
		}
		return c.job(id, "%P")
	}, "^gpu-recovery$")
	c.sh(alice, "scontrol update JobId="+id+" TimeLimit=7 Comment=mine")
	if got := c.job(id, "%P %l"); got != "gpu-recovery 7:00" {
		t.Errorf("job %s", got)
	}
	c.sh("", "scontrol release "+id)
	c.eventually(func() string { return c.job(id, "%T") }, "RUNNING")
	c.sh(alice, "scancel "+id)
	c.sh("", "sbatch -p gpu-recovery -H --wrap true")
}

// The GPUs of a booked job are what was booked: its user does not change them. Those
// of a job in a partition of others are Slurm's business.
func TestGPUsOfABookedJobStay(t *testing.T) {
	c := up(t, "--nodes", "1")
	raw := c.client("rawjob")
	const why = "carma: GPU memory is booked at submission; submit the job again"
	booked := c.held("--gres=gpu:1")
	before := c.job(booked, "%b")
	for _, change := range []string{"Gres=gpu:3", "TresPerNode=gres:gpu:3", "TresPerJob=gres:gpu:3",
		"TresPerTask=gres:gpu:3", "TresPerSocket=gres:gpu:3", "Gres=gpu:1", "CpusPerTres=gres:gpu:2"} {
		c.refuses("scontrol update JobId="+booked+" "+change, why)
	}
	for _, field := range []string{"tres_per_node", "tres_per_job", "cpus_per_tres", "mem_per_tres"} {
		c.refuses(raw+" update "+booked+" "+field+" gres:gpu:2", why)
	}
	c.refuses(raw+" update "+booked+" tres_per_node ''", why)
	// slurmctld makes GPUs of the tasks, also for a job that asked for none.
	for _, id := range []string{booked, c.held("-n4"), c.held("--ntasks-per-gpu=2 -n4")} {
		c.refuses(raw+" update "+id+" ntasks_per_tres 1", why)
	}
	c.sh(alice, "scontrol update JobId="+booked+" TimeLimit=9 NumNodes=1 Comment=x")
	if got := c.job(booked, "%b"); got != before || !strings.Contains(got, "carma") {
		t.Errorf("booked %s, before %s", got, before)
	}
	// Where the GPUs of a node follow from nodes and tasks, these stay too.
	for _, options := range []string{"--gpus=2 -N2", "--gpus-per-task=1 -n2 -N1"} {
		id := c.held(options)
		c.refuses("scontrol update JobId="+id+" NumNodes=1", why)
		c.refuses("scontrol update JobId="+id+" NumTasks=3", why)
		c.sh(alice, "scontrol update JobId="+id+" TimeLimit=9")
	}
	// A task of an array, and a job that slurmctld has read from its files.
	array := c.held("--array=1-3 --gres=gpu:1")
	c.refuses("scontrol update JobId="+array+"_2 Gres=gpu:3", why)
	c.restart("slurmctld")
	c.refuses("scontrol update JobId="+booked+" Gres=gpu:3", why)
	c.refuses("scontrol update JobId="+array+" Gres=gpu:3", why)
	c.sh("", "scontrol update JobId="+booked+" Gres=gpu:2") // the administrator may

	plain := c.held("-p plain --gres=gpu:1")
	c.sh(alice, "scontrol update JobId="+plain+" Gres=gpu:2")
	if got := c.job(plain, "%b"); !strings.HasSuffix(got, "gpu:2") {
		t.Errorf("in another partition: %s", got)
	}
	// What a client sends as SPANK environment does not harm who asks for it.
	for _, text := range []string{"A=1", "no value", "SPANK_CARMA_V=1", "=", ""} {
		id := c.sh(alice, raw+" submit plain spank "+"'"+text+"'")
		c.sh(alice, "scontrol update JobId="+id+" Gres=gpu:2")
	}
	c.sh("", "scontrol ping")
}
