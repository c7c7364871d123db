// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"testing"
)

// The alerts fire when they should, and only then.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("no promtool; make deps-test-unit installs it")
	}
	for _, args := range [][]string{{"check", "rules", "carma.rules.yml"}, {"test", "rules", "carma.test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = root + "/contrib/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

// The dashboard and the alert rules ask for metrics that the agent writes.
func TestDashboardAndRules(t *testing.T) {
	source, err := os.ReadFile(root + "/gres/export/testdata/node.prom") // what it writes
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`\bcarma_[a-z_]+\b`)
	written := map[string]bool{}
	for _, m := range name.FindAllString(string(source), -1) {
		written[m] = true
	}
	for _, path := range []string{"/contrib/grafana/carma.json", "/contrib/prometheus/carma.rules.yml"} {
		text, err := os.ReadFile(root + path)
		if err != nil {
			t.Fatal(err)
		}
		asked := name.FindAllString(string(text), -1)
		if len(asked) < 5 {
			t.Errorf("%s asks for %v only", path, asked)
		}
		for _, m := range asked {
			if !written[m] {
				t.Errorf("%s asks for %s, which nobody writes", path, m)
			}
		}
		if path[len(path)-5:] == ".json" && !json.Valid(text) {
			t.Errorf("%s is no JSON", path)
		}
	}
}
