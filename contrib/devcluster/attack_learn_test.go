// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// One user's jobs teach nobody else: eight that take 20 MiB of what a model summary promises
// lowered everybody's estimates by 1 GiB.
func TestAttackLearning(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "2", "--time-scale", "10")
	model, err := os.ReadFile("../../estimator/testdata/resnet.txt")
	if err != nil {
		t.Fatal(err)
	}
	summary := "#SBATCH --gres=gpu:1\n#CARMA batch=32 optim=adamw\n#CARMA| " +
		strings.ReplaceAll(strings.TrimSpace(string(model)), "\n", "\n#CARMA| ") + "\n"
	estimate := func(user string) string {
		id := c.sbatch(user, "-H", summary+"true\n")
		defer c.sh("", "scancel "+id)
		return c.adminComment(id)
	}
	before := map[string]string{}
	for _, user := range []string{alice, bob, carol} {
		if before[user] = estimate(user); !strings.Contains(before[user], `"method":"analytic"`) {
			t.Fatalf("%s: %s", user, before[user])
		}
	}
	var ids []string
	for range 8 {
		ids = append(ids, c.sbatch(alice, "", summary+"simjob --mem 20M --smact 3"+untilPeak("20")))
	}
	for _, id := range ids {
		c.ends(id, "COMPLETED")
	}
	c.complete(ids...)
	c.sh("", "carma-report history --write")
	c.eventually(func() string { // slurmctld reads the file: else the user's own jobs teach nothing
		return fmt.Sprint(estimate(alice) != before[alice])
	}, "true")
	for _, user := range []string{bob, carol} {
		after := estimate(user)
		attacked(t, "eight jobs of another user that take far less", before[user]+" -> "+after)
		if after != before[user] {
			t.Errorf("%s is estimated at %s, and at %s before another user's jobs", user, after, before[user])
		}
	}
}
