// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A user who gives CARMA much to do, at submission or on a node, takes no booking from
// others and fills no disk.
func TestAttackLoad(t *testing.T) {
	c := up(t, "--nodes", "2", "--time-scale", "10")
	attackSubmissions(t, c)
	c.eventually(func() string { // it may still be at those
		id := c.sbatch(bob, "-H", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\ntrue\n")
		defer c.sh("", "scancel "+id)
		return c.job(id, "%b")
	}, "carma:4096")
	attackServer(t, c)
	attackExclusive(t, c)
	c.noDrain()
}

// modelText is a script with a summary of about a megabyte that is in no memory of
// libcarma.
func modelText(n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA batch=%d input=3x224x224 optim=adam\n", n%4096+1)
	b.WriteString("#CARMA| Net(\n")
	for i := 0; b.Len() < 1<<20-100; i++ {
		fmt.Fprintf(&b, "#CARMA|   (%d): Linear(in_features=%d, out_features=%d, bias=True)\n", i, 64+n%512, 64+n%512)
	}
	return b.String() + "#CARMA| )\nsleep 1\n"
}

// wordsText is a script of 508 KB of words where libcarma took them one by one, behind the first
// command, and of as many behind one key.
func wordsText(n int) string {
	head := fmt.Sprintf("#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA batch=%d\n", n%4096+1)
	if n%2 == 0 {
		return head + "#CARMA input=" + strings.Repeat("x", 508<<10) + "\n"
	}
	return head + "sleep 1\n#CARMA" + strings.Repeat(" x", 254<<10) + "\n"
}

// Beside users whose scripts are as long as Slurm takes them, as many jobs are booked as
// without. On a machine that is busy elsewhere these are not all, for an answer may come
// late; so the attack must fail once in three tries. It takes no processor time that
// anybody else wants: login nodes are other machines.
func attackSubmissions(t *testing.T, c *cluster) {
	small := c.file(bob, "small.sh", "#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsleep 1\n")
	const jobs = 40
	booked := func() int {
		ids := strings.Fields(c.sh(bob, fmt.Sprintf("for i in $(seq %d); do sbatch --parsable -H %s; done", jobs, small)))
		n, _ := strconv.Atoi(c.sh("", "squeue -h -j "+strings.Join(ids, ",")+" -o %b | grep -c carma:8192 || true"))
		c.sh("", "scancel "+strings.Join(ids, " "))
		return n
	}
	var got, alone int
	for try := range 3 {
		alone = booked()
		var stops []func() string
		for loop := range 3 {
			for i := range 4 {
				text := modelText
				if i >= 2 {
					text = wordsText
				}
				c.file(alice, fmt.Sprintf("model%d.%d.sh", loop, i), text(1000*try+100*loop+i))
			}
			// A text that libcarma has seen costs nothing: each is another one.
			stops = append(stops, c.background(alice, fmt.Sprintf("renice -n 19 $$ >/dev/null; n=0;"+
				" while :; do n=$((n + 1)); for i in 0 1 2 3; do"+
				" sed \"s/batch=/seq=$n batch=/\" model%d.$i.sh >now%[1]d.sh; sbatch -H -Q now%[1]d.sh; done; done", loop)))
		}
		time.Sleep(time.Second)
		got = booked()
		for _, stop := range stops {
			stop()
		}
		late := c.sh("", "grep -cE '"+unanswered+"' ../log/slurmctld.log || true")
		attacked(t, "long scripts in three loops",
			fmt.Sprintf("%d of %d jobs of another user booked, %d without the loops; %s in the log", got, jobs, alone, late))
		c.sh("", "scancel -u "+alice)
		if got*10 >= alone*9 && got > 0 {
			return
		}
	}
	t.Errorf("%d of %d jobs of another user are booked, %d without the attack", got, jobs, alone)
}

// What clients of an MPS daemon may leave in a node's run directory, which lies in
// memory, and on its disk.
const (
	mostInMemory = 1 << 20
	mostOnDisk   = 64 << 20
)

// Clients that come and go at an MPS daemon fill no file system.
func attackServer(t *testing.T, c *cluster) {
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1\n#CARMA mem=4G\n"+
		"echo pipe=$CUDA_MPS_PIPE_DIRECTORY end >pipe.$SLURM_JOB_ID\nexec sleep 1h\n")
	var pipe string
	c.eventually(func() string {
		pipe = c.sh("", "sed -n 's/^pipe=\\(.*\\) end/\\1/p' pipe."+id+" 2>/dev/null || true")
		return pipe
	}, "/")
	used := func(where string) (bytes int64) {
		out := c.sh("", "find "+c.dir+where+" -type f ! -name 'leases.db*' ! -name 'carma.db*' ! -path '*/jobs/*'"+
			" -printf '%s\\n' | awk '{ n += $1 } END { print n + 0 }'")
		bytes, _ = strconv.ParseInt(out, 10, 64)
		return bytes
	}
	memory, disk := used("/run"), used("")
	stop := c.background(alice, "exec "+c.client("connect")+" "+pipe+"/control")
	time.Sleep(map[bool]time.Duration{false: 10 * time.Second, true: 2 * time.Minute}[long])
	stop()
	memory, disk = used("/run")-memory, used("")-disk
	attacked(t, "a connect loop at an MPS daemon",
		fmt.Sprintf("%d more bytes in the run directory, %d in all", memory, disk))
	if memory > mostInMemory || disk > mostOnDisk {
		t.Errorf("clients of an MPS daemon left %d bytes in the run directory, %d in all", memory, disk)
	}
	c.sh("", "scancel "+id)
}

// Forged lines where root holds a job that asks for more GPUs than its node has: for
// all slots of it.
func attackExclusive(t *testing.T, c *cluster) {
	before, common, _ := victims(c, 1, "-w n2")
	f := newForgery(c, "#!/bin/bash\n#CARMA mem=2G\nexec sleep 1h\n")
	forged := func(id string) string { return c.forged(id, common...) }
	if id := f.atSubmit("account of a job with --exclusive", "account", forged, "req_nodes=n1", "shared=0"); id != "" {
		c.sh(alice, "scontrol release "+id)
		c.eventually(func() string { return c.hookLog(id) }, "leased|held|failed|returned")
	}
	time.Sleep(3 * time.Second)
	c.unchanged(func(string) string { return "forged lines of a job with --exclusive" }, before)
}
