// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// imports returns what each package of the program imports itself, without tests.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if name, ok := strings.CutPrefix(words[0], "carma/"); ok {
			all[name] = words[1:]
		}
	}
	if len(all) < 30 {
		t.Fatalf("%d packages", len(all))
	}
	return all
}

// within tells whether name is one of rooms, or below one that ends with "/".
func within(name string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return name == r || strings.HasSuffix(r, "/") && strings.HasPrefix(name, r) })
}

const (
	goNVML = "github.com/NVIDIA/go-nvml/"
	sqlite = "github.com/mattn/go-sqlite3"
)

// TestRooms holds the packages to the table in architecture.md.
func TestRooms(t *testing.T) {
	pure := []string{"slurmbridge/admincomment", "slurmbridge/directive", "slurmbridge/annotate", "slurmbridge/tres", "slurmbridge/hostlist", "slurmbridge/nodestate", "slurmbridge/constraint", "slurmbridge/jobenv", "slurmbridge/launch", "slurmbridge/slurmconf",
		"slurmbridge/policy", "slurmbridge/slurmtime", "db/report/page", "db/report/texttable",
		"estimator", "estimator/allocator", "estimator/graph", "estimator/history", "estimator/method", "estimator/summary", "estimator/trace", "estimator/training", "db/figure",
		"gres/choose", "gres/window", "gres/steward", "gres/energy", "contrib/sim/chart", "prolog/oomscan"}
	adapters := []string{"gres/lease", "gres/nvml", "gres/dcgm", "gres/mps", "gres/resident", "gres/confine", "gres/export"}
	all := imports(t)
	for _, rule := range []struct {
		what string
		in   []string // empty: everywhere
		but  []string
		no   []string
	}{
		{"NVML", nil, []string{"gres/nvml"}, []string{goNVML}},
		{"the NVML adapter", nil, []string{"cmd/carma-node", "contrib/"}, []string{"carma/gres/nvml"}},
		{"SQL", nil, []string{"db", "gres/lease", "contrib/"}, []string{"database/sql", sqlite}},
		{"a pure package", pure, nil, []string{"os", "os/exec", "os/user", "io/fs", "net/", "net", "database/sql", "golang.org/x/sys/unix", "log/slog"}},
		{"processes", []string{"slurmbridge/", "estimator", "estimator/", "db"}, []string{"slurmbridge/sctl"}, []string{"os/exec"}},
		{"the network", nil, []string{"cmd/internal/sdnotify", "contrib/"}, []string{"net", "net/http"}},
		{"the commands", nil, []string{"cmd/"}, []string{"carma/cmd/"}},
		{"contrib", nil, []string{"contrib/", "cmd/carma-sim"}, []string{"carma/contrib/"}},
		{"the simulator's command", []string{"cmd/carma-sim"}, nil, []string{"carma/contrib/gpucheck", "carma/contrib/simgpu", "carma/contrib/progress"}},
		{"the hooks", nil, []string{"cmd/", "prolog", "prolog/", "contrib/"}, []string{"carma/prolog"}},
		{"controller", []string{"slurmbridge/libcarma", "slurmbridge/annotate", "slurmbridge/directive"}, nil, []string{"carma/gres/", "carma/db", "carma/slurmbridge/sctl"}},
	} {
		looked := 0
		for name, list := range all {
			if len(rule.in) > 0 && !within(name, rule.in) || within(name, rule.but) {
				continue
			}
			looked++
			for _, path := range list {
				if within(path, rule.no) && path != "net/url" {
					t.Errorf("%s imports %s: architecture.md says who may (%s)", name, path, rule.what)
				}
			}
		}
		if looked < len(rule.in) && !strings.HasSuffix(rule.in[0], "/") || looked == 0 {
			t.Errorf("%s: %d packages looked at; is one of %v gone?", rule.what, looked, rule.in)
		}
	}
	for name, list := range all {
		for _, other := range adapters {
			if within(name, adapters) && slices.Contains(list, "carma/"+other) {
				t.Errorf("%s imports %s: what is outside each is its own", name, other)
			}
		}
	}
}

// layers are the top-level folders, lowest first: a package may import its own folder
// and those before it. contrib may use all.
var layers = []string{"estimator", "slurmbridge", "db", "gres", "prolog", "cmd"}

// TestLayers: imports run one way between the top-level folders.
func TestLayers(t *testing.T) {
	top := func(name string) string { first, _, _ := strings.Cut(name, "/"); return first }
	edges := 0
	for name, list := range imports(t) {
		at := slices.Index(layers, top(name))
		for _, path := range list {
			used, ours := strings.CutPrefix(path, "carma/")
			if !ours || at < 0 || name == "cmd/carma-sim" && strings.HasPrefix(used, "contrib/sim/") {
				continue
			}
			if edges++; slices.Index(layers, top(used)) > at || top(used) == "contrib" {
				t.Errorf("%s imports %s, against the direction %s", name, used, strings.Join(layers, " <- "))
			}
		}
	}
	if edges < 50 {
		t.Errorf("%d imports looked at", edges)
	}
}

// TestLinked: the programs of the product, and libcarma, link nothing of contrib, where
// published estimators are compared with ours, and of the estimator what they need.
func TestLinked(t *testing.T) {
	for name, needs := range map[string][]string{
		"cmd/carma-node":   {"carma/estimator/history", "carma/estimator/method"},
		"cmd/carma-report": {"carma/estimator/history", "carma/estimator/method"},
		// These estimate.
		"cmd/carma-estimate":   nil,
		"slurmbridge/libcarma": nil,
	} {
		cmd := exec.Command("go", "list", "-deps", "./"+name)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list -deps ./%s: %v", name, err)
		}
		linked := strings.Fields(string(out))
		if !slices.Contains(linked, "carma/"+name) {
			t.Errorf("%s is not among its own packages", name)
		}
		for _, path := range linked {
			estimates := strings.HasPrefix(path, "carma/estimator") && needs != nil && !slices.Contains(needs, path)
			if strings.HasPrefix(path, "carma/contrib/") || estimates {
				t.Errorf("%s links %s", name, path)
			}
		}
	}
}
