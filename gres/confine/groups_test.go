// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A job's cgroups are found by its number, and by the SLUID that the Prolog has noted; dmem is
// handed down to them where the kernel has it. The directory stands for a cgroup v2.
func TestGroups(t *testing.T) {
	for _, c := range []struct {
		name   string
		kernel string // controllers
		made   []string
		want   []string
		dmem   bool
	}{
		{"none", "cpu dmem", nil, nil, false},
		{"a kernel without dmem", "cpu memory", []string{"job_7"}, []string{"job_7"}, false},
		{"dmem", "cpu dmem memory", []string{"job_7"}, []string{"job_7"}, true},
		{"dmem is there", "cpu dmem memory", []string{"job_7/dmem.max"}, []string{"job_7"}, false},
		{"by SLUID", "cpu", []string{"job_7/carma/sC55M83S2ZNW00", "sC55M83S2ZNW00"},
			[]string{"job_7", "sC55M83S2ZNW00"}, false},
		{"others", "cpu dmem", []string{"job_77", "job_8", "sC55M83S2ZNW00"}, nil, false},
	} {
		mount := t.TempDir()
		scope := filepath.Join(mount, "system.slice", "n1_slurmstepd.scope")
		for _, dir := range append([]string{"."}, c.made...) {
			if err := os.MkdirAll(filepath.Join(scope, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(mount, "cgroup.controllers"), []byte(c.kernel+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		groups, err := Host{Node: "n1"}.groups(mount, "", 7)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var got []string
		for _, g := range groups {
			if g.Inode == 0 {
				t.Errorf("%s: %s has no inode", c.name, g.Dir)
			}
			got = append(got, filepath.Base(g.Dir))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		for _, dir := range []string{mount, filepath.Dir(scope), scope} {
			text, _ := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
			if (string(text) == "+dmem") != c.dmem {
				t.Errorf("%s: %s enables %q", c.name, dir, text)
			}
		}
	}
	if groups, err := (Host{Node: "n1"}).groups(t.TempDir(), "", 7); err != nil || groups != nil {
		t.Errorf("without a scope: %v, %v", groups, err)
	}
}
