// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"carma/slurmbridge/schedule"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The fields are squeue's of Slurm 22.05.8.
func TestQueue(t *testing.T) {
	c := client(t, map[string]string{"squeue": rows(
		[]string{"2", "1001", "PENDING", "gpu", "Resources", "4294901759", "1795257543", "1826813645", "NONE", "", "",
			"(null)", "2", "N/A", "(null)", "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072", "0", "1795257543", "1",
			"normal"},
		[]string{"1", "1001", "RUNNING", "gpu", "None", "4294901760", "1795257500", "1795257543", "1795261143", "n1", "",
			"(null)", "1", "N/A", "(null)", "gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240", "2", "1795257480", "1",
			"normal"},
		[]string{"9", "1002", "PENDING", "gpu", "Priority", "4294901750", "1795257543", "N/A", "N/A", "", "n[1-2]", "maint",
			"9", "3", "bigmem", "gres:gpu:1", "0", "1795257543", "2-4", "normal"},
		[]string{"8", "1001", "PENDING", "gpu", "None", "4294901754", "1795257543", "N/A", "NONE", "", "", "(null)", "6",
			"2", "(null)", "gres:gpu:1", "0", "1795257543", "1", "normal"},
		[]string{"x", "1001", "PENDING", "gpu", "Priority", "4294901750", "N/A", "N/A", "N/A", "", "", "", "x", "N/A",
			"(null)", "gres:gpu:1", "0", "1795257543", "1", "normal"},
		[]string{"7", "x", "PENDING", "gpu", "Priority", "1", "N/A", "N/A", "N/A", "", "", "", "7", "N/A", "(null)",
			"gres:gpu:1", "0", "1795257543", "1", "normal"},
	)})
	got, err := c.Queue(t.Context(), []string{"gpu", "recovery"})
	want := []schedule.Job{
		{ID: 2, UID: 1001, State: "PENDING", Partition: "gpu", Reason: "Resources", Priority: 4294901759,
			Eligible: time.Unix(1795257543, 0), Start: time.Unix(1826813645, 0),
			TresPerNode: "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072", Submitted: time.Unix(1795257543, 0),
			NodeCount: 1, QOS: "normal"},
		{ID: 1, UID: 1001, State: "RUNNING", Partition: "gpu", Reason: "None", Priority: 4294901760,
			Eligible: time.Unix(1795257500, 0), Start: time.Unix(1795257543, 0), End: time.Unix(1795261143, 0), Nodes: "n1",
			TresPerNode: "gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240", Restarts: 2,
			Submitted: time.Unix(1795257480, 0), NodeCount: 1, QOS: "normal"},
		{ID: 9, UID: 1002, State: "PENDING", Partition: "gpu", Reason: "Priority", Priority: 4294901750,
			Eligible: time.Unix(1795257543, 0), ReqNodes: "n[1-2]", Reservation: "maint", ArrayJobID: 9, ArrayTask: 3,
			Features: "bigmem", TresPerNode: "gres:gpu:1", Submitted: time.Unix(1795257543, 0), NodeCount: 2, QOS: "normal"},
		{ID: 8, UID: 1001, State: "PENDING", Partition: "gpu", Reason: "None", Priority: 4294901754,
			Eligible: time.Unix(1795257543, 0), ArrayJobID: 6, ArrayTask: 2, TresPerNode: "gres:gpu:1",
			Submitted: time.Unix(1795257543, 0), NodeCount: 1, QOS: "normal"},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for i, unsplit := range []bool{false, false, true, false} {
		if got[i].Unsplit() != unsplit {
			t.Errorf("job %d: unsplit %v", got[i].ID, !unsplit)
		}
	}
	if text := calls(t, c); !strings.Contains(text, "--partition=gpu,recovery ") {
		t.Errorf("calls: %s", text)
	}
	for what, squeue := range map[string]string{"squeue failed": "exit 1",
		"text without fields": "echo text without fields", "cut short": rows([]string{"2", "1001"})} {
		if got, err := client(t, map[string]string{"squeue": squeue}).Queue(t.Context(), nil); err == nil {
			t.Errorf("%s: %+v", what, got)
		}
	}
}

func TestSplit(t *testing.T) {
	const books = "gres:gpu:1,gres:carmau0:1,gres:carmatotal:1"
	j := schedule.Job{ID: 6, UID: 1001, ArrayJobID: 6, ArrayTask: 2, TresPerNode: books}
	good := []string{"8", "1001", "6", "2", "PENDING", books}
	c := client(t, map[string]string{"scontrol": "", "squeue": rows(good)})
	if id, err := c.Split(t.Context(), j); err != nil || id != 8 {
		t.Errorf("got %d, %v", id, err)
	}
	if text := calls(t, c); !strings.Contains(text, "JobId=6_2 Gres="+books) || !strings.Contains(text, "--jobs=6_2") {
		t.Errorf("calls: %s", text)
	}
	for what, squeue := range map[string]string{
		"no squeue":     "exit 1",
		"no number":     rows([]string{"x", "1001", "6", "2", "PENDING", books}),
		"no such task":  rows(),
		"two rows":      rows(good, good),
		"another user":  rows([]string{"8", "1002", "6", "2", "PENDING", books}),
		"another array": rows([]string{"8", "1001", "7", "2", "PENDING", books}),
		"another task":  rows([]string{"8", "1001", "6", "3", "PENDING", books}),
		"runs":          rows([]string{"8", "1001", "6", "2", "RUNNING", books}),
		"other GRES":    rows([]string{"8", "1001", "6", "2", "PENDING", "gres:gpu:2"}),
	} {
		c := client(t, map[string]string{"scontrol": "", "squeue": squeue})
		if id, err := c.Split(t.Context(), j); err == nil {
			t.Errorf("%s: got %d", what, id)
		}
		if text := calls(t, c); strings.Contains(text, "update") {
			t.Errorf("%s: changed all the same: %s", what, text)
		}
	}
	if id, err := client(t, map[string]string{"scontrol": "exit 1", "squeue": rows(good)}).Split(t.Context(),
		j); err == nil {
		t.Errorf("the update is refused: got %d", id)
	}
}

func TestNodes(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "", "sinfo": showRows(
		"carma-anchor%gpu*%down%gpu:16,carmau0:40536%(null)%(null)%",
		"n1%gpu*%mixed+planned%gpu:a100:16(S:0),carmau0:10K,carma2:40536%a100,nvlink%carma-hold=7:2:0:1795257543%",
		"n1%recovery%mixed+planned%gpu:a100:16(S:0),carmau0:10K,carma2:40536%a100,nvlink%carma-hold=7:2:0:1795257543%",
		"n2%gpu*%idle+not_responding%gpu:16%(null)%(null)%",
		"n3%gpu*%idle+reserved%gpu:16%(null)%a | b%")})
	got, err := c.Nodes(t.Context(), []string{"gpu", "recovery"})
	want := []schedule.Node{
		{Name: "carma-anchor", Partitions: []string{"gpu"}, GPUs: 1, Comment: "(null)"},
		{Name: "n1", Partitions: []string{"gpu", "recovery"}, Lives: true, Up: true, GPUs: 2, Features: "a100,nvlink",
			Comment: "carma-hold=7:2:0:1795257543"},
		{Name: "n2", Partitions: []string{"gpu"}, Comment: "(null)"},
		{Name: "n3", Partitions: []string{"gpu"}, Lives: true, Comment: "a | b"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := c.SetNodeComment(t.Context(), "n1", "rack 4"); err != nil {
		t.Error(err)
	}
	if text := calls(t, c); !strings.Contains(text, "scontrol update NodeName=n1 Comment=rack 4 ") {
		t.Errorf("calls: %s", text)
	}
}

// Never a node that slurmctld did not list.
func FuzzNodes(f *testing.F) {
	f.Add("gpu:1", "nvlink", "rack 4")
	f.Add("gpu:16\nn9|gpu|idle|gpu:16||", "a|b\nn9|gpu|idle|gpu:16||", "x\nn9|gpu|idle|gpu:16|(null)|carma-hold=7:2:0:1")
	f.Fuzz(func(t *testing.T, gres, features, comment string) {
		sep := newSeparator()
		var b strings.Builder
		for _, row := range [][]string{{"n1", "gpu*", "idle", gres, features, comment},
			{"n2", "gpu*", "idle", "gpu:1", "", ""}} {
			for _, s := range row {
				b.WriteString(s + string(sep))
			}
			b.WriteByte('\n')
		}
		var nodes []schedule.Node
		_, err := sep.scan(strings.NewReader(b.String()), len(nodeFields), func(row []string) { nodes = addNode(nodes, row) })
		if err != nil || len(nodes) != 2 || nodes[0].Name != "n1" || nodes[1].Name != "n2" {
			t.Errorf("%v, %+v", err, nodes)
		}
	})
}

// BenchmarkQueue reads the answer about 10,000 waiting tasks of an array and as many
// running jobs as nodes.
func BenchmarkQueue(b *testing.B) {
	sep := newSeparator()
	var text strings.Builder
	for i := range 15000 {
		for _, f := range []string{"7", "1001", "PENDING", "gpu", "Resources", "4294901753", "1795257605", "N/A", "N/A", "",
			"", "", "7", strconv.Itoa(i), "",
			"gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240", "0", "1795257600", "1"} {
			text.WriteString(f + string(sep))
		}
		text.WriteByte('\n')
	}
	for b.Loop() {
		rows, err := sep.cut(text.String(), len(queueFields))
		if err != nil || len(rows) != 15000 {
			b.Fatal(len(rows), err)
		}
		for _, row := range rows {
			if _, ok := parseQueued(row); !ok {
				b.Fatal(row)
			}
		}
	}
}

// Never a job that slurmctld did not list, and none by another's text.
func FuzzQueue(f *testing.F) {
	f.Add("gpu", "x", "gres:gpu:1", "N/A")
	f.Add("a|b\n13|0|PENDING", "x\n", "gres:gpu:x\n13|PENDING|gpu", "0,7")
	f.Add("@@", "\x1f\x1e", "N/A", "4294967296")
	f.Fuzz(func(t *testing.T, features, reservation, tres, task string) {
		sep := newSeparator()
		var b strings.Builder
		for _, row := range [][]string{
			{"11", "1000", "PENDING", "gpu", "None", "1", "0", "0", "0", "", "", "", "11", "N/A", "", "gres:gpu:1", "0", "0",
				"1", "normal"},
			{"12", "1001", "PENDING", "gpu", "None", "1", "0", "0", "0", "", "", reservation, "10", task, features, tres, "0",
				"0", "1", "normal"},
		} {
			for _, s := range row {
				b.WriteString(s + string(sep))
			}
			b.WriteByte('\n')
		}
		var jobs []schedule.Job
		rows, err := sep.cut(b.String(), len(queueFields))
		for _, row := range rows {
			if j, ok := parseQueued(row); ok {
				jobs = append(jobs, j)
			}
		}
		if err != nil || len(jobs) == 0 || len(jobs) > 2 || jobs[0].ID != 11 || jobs[0].ArrayJobID != 0 {
			t.Fatalf("%v, %+v", err, jobs)
		}
		if len(jobs) == 2 && (jobs[1].ID != 12 || jobs[1].UID != 1001 || jobs[1].ArrayJobID != 0 &&
			jobs[1].ArrayJobID != 10) {
			t.Errorf("%+v", jobs[1])
		}
	})
}

func TestNamesOf(t *testing.T) {
	const text = "PartitionName=gpu AllowGroups=ALL Nodes=n[9-10],carma-anchor PriorityTier=1\n" +
		"PartitionName=cpu Nodes=c[1-2]\nPartitionName=gpu-recovery Nodes=n[8-9]\nPartitionName=none Nodes=(null)\n"
	got, err := namesOf(text, []string{"gpu", "gpu-recovery", "none"})
	if want := []string{"carma-anchor", "n10", "n8", "n9"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := namesOf("PartitionName=gpu Nodes=n[1-\n", []string{"gpu"}); err == nil {
		t.Error("a list that cannot be read is none")
	}
}
