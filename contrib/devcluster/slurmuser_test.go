// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Where SlurmUser is not root, as at most sites, jobs are requeued after an OOM as ever. With
// PrivateData=jobs SlurmUser reads all records and learns from them, and an operator reads
// those of others in slurmdbd alone.
func TestSlurmUser(t *testing.T) {
	needsServer(t)
	needsMySQL(t)
	c := up(t, "--nodes", "1", "--time-scale", "10", "--slurmdbd", "--slurm-user", carol)
	if got := c.sh("", "ps -o user:20= -p "+fmt.Sprint(c.slurmctldPID())); got != carol {
		t.Fatalf("slurmctld runs as %q", got)
	}
	for conf, text := range map[string]string{"slurm.conf": "PrivateData=jobs\n", "slurmdbd.conf": "PrivateData=jobs\n"} {
		f, err := os.OpenFile(filepath.Join(c.dir, "etc", conf), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	c.restart("slurmdbd")
	c.restart("slurmctld")
	c.restart("agent")

	again := c.sbatch(alice, "", oomOnce)
	c.eventually(func() string { return c.job(again, "%T") }, "COMPLETED|FAILED")
	if r := c.report(again); !r.OOM || r.Attempts != 2 || r.State != "COMPLETED" {
		t.Errorf("a job that ran out of memory: %+v", r)
	}
	runs := "simjob --mem 3G --smact 20" + untilPeak("3072")
	shortly := "#SBATCH --gres=gpu:1\n#CARMA mem=4G\n" + runs
	script := c.file(alice, "learned.sh", "#!/bin/bash\n#SBATCH --gres=gpu:1\n#CARMA on\n"+runs)
	first := c.submit(alice, "sbatch --parsable -o /dev/null "+script, false)
	c.ends(first, "COMPLETED")
	c.ends(c.sbatch(bob, "-o /dev/null", shortly), "COMPLETED")

	users := func(as, options string) string {
		out, stderr, _ := c.run(as, "carma-report -S now-1day -n -P -o User,Key "+options+" | sort -u")
		return strings.ReplaceAll(strings.TrimSpace(out), "\n", " ") + stderr
	}
	const none, any = "-", "(-|[0-9a-f]{16})"
	for _, r := range []struct{ as, options, want string }{
		{alice, "", "^carma-alice." + none + "$"},
		{bob, "", "^carma-bob." + none + "$"},
		{carol, "", "^carma-alice." + none + " carma-bob." + none + "$"},
		{alice, "--from slurmdbd", "^(carma-alice." + any + " ?)+$"},
		{carol, "--from slurmdbd", "^(carma-alice." + any + " )+carma-bob." + any + "$"},
	} {
		c.eventually(func() string { return users(r.as, r.options) }, r.want)
	}
	c.sh("", "sacctmgr -iQ modify user "+bob+" set AdminLevel=Operator")
	c.eventually(func() string { return users(bob, "--from slurmdbd") }, "^(carma-alice."+any+" )+carma-bob."+any+"$")
	if got := users(bob, ""); regexp.MustCompile(alice).MatchString(got) {
		t.Errorf("an operator reads copies that are another's: %s", got)
	}

	// As carma-history.service has it: the directory is SlurmUser's.
	dir := filepath.Join(c.dir, "var", "learned")
	c.sh("", "install -d -m 755 -o "+carol+" "+dir)
	c.settings(map[string]string{"history.file": `"` + dir + `/history"`})
	out, stderr, err := c.run(carol, "carma-report history --write")
	if err == nil || !strings.Contains(stderr, "no keys") {
		t.Errorf("the history from copies: %s%s%v", out, stderr, err)
	}
	if got := c.sh("", "stat -c '%U %a' $(setpriv --reuid "+carol+" --regid "+carol+" --init-groups"+
		" carma-report history --write --from slurmdbd >/dev/null; echo "+dir+"/history)"); got != carol+" 600" {
		t.Errorf("the history's file is %q", got)
	}
	c.eventually(func() string {
		c.sh(carol, "carma-report history --write --from slurmdbd") // the run may have reached slurmdbd only now
		id := c.sh(alice, "sbatch --parsable -H -o /dev/null "+script)
		defer c.sh("", "scancel "+id)
		return c.sh("", "scontrol show job "+id)
	}, `"method":"history"`)
	if _, stderr, err := c.run(alice, "cat "+dir+"/history"); err == nil {
		t.Errorf("a user reads the history: %s", stderr)
	}
	// SlurmUser may be in the recovery partition, others not.
	c.sh(carol, "scancel $(sbatch --parsable -H -p gpu-recovery -o /dev/null --wrap true)")
	if _, _, err := c.run(alice, "sbatch -H -p gpu-recovery -o /dev/null --wrap true"); err == nil {
		t.Error("a user submits to the recovery partition")
	}
	c.nothingLeft()
}
