// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"slices"
	"strings"
	"testing"
)

// detail is what scontrol prints of a job on node n1, around its line about the node.
func detail(name, line, comment string) string {
	return "JobId=7 JobName=" + name + "\n   UserId=alice(1000) GroupId=alice(1000) MCS_label=N/A\n" +
		"   JOB_GRES=gpu:2\n     " + line + "\n   MinCPUsNode=1 MinTmpDiskNode=0\n   Comment=" +
		comment + "\n\n"
}

func TestGPUsIn(t *testing.T) {
	const two = "Nodes=n1 CPU_IDs=0-1 Mem=200 GRES=gpu:a100:2(IDX:0-1)"
	for _, c := range []struct {
		name, text string
		want       []int
	}{
		{"a range", detail("x", two, ""), []int{0, 1}},
		{"a list", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:3(IDX:0,2-3)", ""), []int{0, 2, 3}},
		{"of two types", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:0),gpu:v100:1(IDX:4)", ""), []int{0, 4}},
		{"beside another GRES", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:2(1/4),gpu:1(IDX:3)", ""), []int{3}},
		{"several nodes", detail("x", "Nodes=n[1-2] CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:1)", ""), []int{1}},
		{"a line for each node", detail("x", "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:1)\n     "+two, ""), []int{0, 1}},
		{"another node's", detail("x", "Nodes=n2 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:1)", ""), nil},
		{"no GPU", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=", ""), nil},
		{"shards alone", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:2(2/4,0/4)", ""), nil},
		{"without an index", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1", ""), nil},
		{"an index beyond all", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:0-4000000000)", ""), nil},
		{"no number", detail("x", "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:x)", ""), nil},
		{"a name that says so too", detail("x\n     Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:4(IDX:0-3)", two, ""), nil},
		{"a comment that says so too", detail("x", two, "\nNodes=n1 CPU_IDs=0 GRES=gpu:4(IDX:2-3)"), nil},
		{"nothing", "", nil},
	} {
		if got := gpusIn(c.text, "n1"); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func FuzzGPUsIn(f *testing.F) {
	f.Add(detail("x", "Nodes=n1 CPU_IDs=0-1 Mem=200 GRES=gpu:a100:2(IDX:0-1)", ""))
	f.Fuzz(func(t *testing.T, text string) {
		for _, i := range gpusIn(text, "n1") {
			if i < 0 || i > mostIndex {
				t.Errorf("index %d", i)
			}
		}
	})
}

func TestFinder(t *testing.T) {
	row := func(id, state, nodes string) []string { return fields(map[int]string{0: id, 6: state, 16: nodes}) }
	c := client(t, map[string]string{
		"squeue": rows(row("7", "RUNNING", "n[1-2]"), row("8", "COMPLETING", "n1"), row("11", "RESIZING", "n1"),
			row("9", "PENDING", ""),
			row("10", "RUNNING", "n2")),
		"scontrol": "echo 'Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:2)'"})
	jobs, err := Finder(c).OnNode(t.Context(), "n1")
	if err != nil || len(jobs) != 3 || jobs[0].ID != 7 || jobs[1].ID != 8 || jobs[2].ID != 11 {
		t.Fatalf("got %+v, %v", jobs, err)
	}
	got, err := Finder(c).GPUs(t.Context(), jobs[0], "n1")
	if err != nil || !slices.Equal(got, []int{2}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := Finder(c).OnNode(t.Context(), "n1 --states=all"); err == nil {
		t.Error("a node of two words")
	}
	if text := calls(t, c); !strings.Contains(text, "scontrol --details show job 7 ") ||
		!strings.Contains(text, "--nodelist=n1 ") {
		t.Errorf("asked\n%s", text)
	}
}

func TestDescribe(t *testing.T) {
	row := func(id, state, name string) []string {
		return slices.Concat(fields(map[int]string{0: id, 6: state}), []string{id, name, "ml", "N/A", "(null)", "N/A"})
	}
	c := client(t, map[string]string{"squeue": rows(row("7", "RUNNING", "a\nb"), row("8", "FAILED", "x"),
		row("12", "PENDING", "y"))})
	got, err := Finder(c).Describe(t.Context(), []uint32{7, 8, 7, 9})
	if err != nil || len(got) != 2 || got[7].State != "RUNNING" || got[7].Name != "a\nb" || got[8].State != "FAILED" ||
		got[8].Account != "ml" {
		t.Errorf("got %+v, %v", got, err)
	}
	if text := calls(t, c); !strings.Contains(text, "--states=all --jobs=7,8,9 ") {
		t.Errorf("asked\n%s", text)
	}
	c = client(t, map[string]string{"squeue": "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"})
	if got, err := Finder(c).Describe(t.Context(), []uint32{9}); err != nil || len(got) > 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	c = client(t, map[string]string{"squeue": rows(row("7", "a state", "x"), row("8", "FAILED", "x"))})
	got, err = Finder(c).Describe(t.Context(), []uint32{7, 8})
	if err == nil || len(got) != 1 || got[8].State != "FAILED" {
		t.Errorf("a job that cannot be read: %+v, %v", got, err)
	}
	c = client(t, map[string]string{"squeue": rows(row("7", "RUNNING", "x"), row("7", "FAILED", "x"))})
	if got, err := Finder(c).Describe(t.Context(), []uint32{7}); err == nil {
		t.Errorf("two rows of a job: %+v", got)
	}
}
