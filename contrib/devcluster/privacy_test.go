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

// Users read what PrivateData lets them, never a key, and no file that hooks or agent lock.
func TestPrivateData(t *testing.T) {
	c := up(t, "--nodes", "1", "--time-scale", "10")
	script := "#SBATCH --gres=gpu:1\n#CARMA on\nsimjob --mem 3G --smact 20 --ramp 0s --duration 10s\n"
	for _, user := range []string{alice, bob} {
		c.ends(c.sbatch(user, "-o /dev/null", script), "COMPLETED")
	}
	users := func(as string) string {
		out, stderr, _ := c.run(as, "carma-report -n -P -o User,Key | sort -u")
		return strings.ReplaceAll(strings.TrimSpace(out), "\n", " ") + stderr
	}
	c.eventually(func() string { return users(alice) }, "^carma-alice.- carma-bob.-$")
	if got := users(""); !regexp.MustCompile(`^carma-alice.[0-9a-f]{16} carma-bob.[0-9a-f]{16}$`).MatchString(got) {
		t.Errorf("root reads %q", got)
	}
	conf := filepath.Join(c.dir, "etc", "slurm.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, append(text, "\nPrivateData=jobs\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	c.restart("slurmctld")
	c.restart("agent")
	c.eventually(func() string { return users(alice) }, "^carma-alice.-$")
	c.eventually(func() string { return users(bob) }, "^carma-bob.-$")
	c.eventually(func() string { return users(carol) }, "^$")
	if got := users(""); strings.Count(got, "carma-") != 2 {
		t.Errorf("root reads %q", got)
	}
	if out, stderr, err := c.run(alice, "carma-report history"); err == nil || !strings.Contains(stderr, "no keys") {
		t.Errorf("the history as a user: %s%s%v", out, stderr, err)
	}
	if out := c.sh(alice, "find "+c.dir+"/run "+c.dir+"/var -type f -readable ! -path '*.public/*' ! -name '*.json' ! "+
		"-path '*/mps/*' 2>/dev/null || true"); out != "" {
		t.Errorf("a user can open\n%s", out)
	}
}
