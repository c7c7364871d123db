// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Each target that takes packages has its line in the list, and each line is of a
// target; a target's name is not taken for another's beginning.
func TestDeps(t *testing.T) {
	list, err := exec.Command(root+"/contrib/deps.sh", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	known := targets(t)
	listed := map[string]string{}
	for line := range strings.Lines(string(list)) {
		target, packages, _ := strings.Cut(line, " ")
		listed[target] = packages
	}
	long, err := os.ReadFile(root + "/contrib/long.sh")
	if err != nil {
		t.Fatal(err)
	}
	asking := regexp.MustCompile(`\bdeps-([a-z0-9-]+)`).FindAllStringSubmatch(string(makefile), -1)
	asking = append(asking, regexp.MustCompile(`(?m)^([a-z0-9-]+)\).*\n\tdeps$`).FindAllStringSubmatch(string(long), -1)...)
	if len(asking) < 20 {
		t.Errorf("%d targets ask for packages", len(asking))
	}
	for _, m := range asking {
		if m[1] != "list" && listed[m[1]] == "" {
			t.Errorf("%s asks for packages, contrib/deps.sh has no line for it", m[1])
		}
	}
	for target, packages := range listed {
		if target != "cluster" && !known[target] {
			t.Errorf("contrib/deps.sh has packages for %s, which is no target", target)
		}
		for _, m := range regexp.MustCompile(`@(\S+)`).FindAllStringSubmatch(packages, -1) {
			if listed[m[1]] == "" {
				t.Errorf("%s needs those of %s, which has no line", target, m[1])
			}
		}
	}
	out, err := exec.Command(root+"/contrib/deps.sh", "no-such-target").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no target 'no-such-target'") {
		t.Errorf("%v: %s", err, out)
	}
}
