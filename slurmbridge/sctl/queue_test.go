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

// The fields are squeue's of Slurm 24.11.5.
func TestQueue(t *testing.T) {
	c := client(t, map[string]string{"squeue": rows(
		[]string{"2", "1001", "PENDING", "gpu", "Constraints", "4294901759", "1795257543", "1826813645", "NONE", "", "",
			"(null)", "2", "N/A", "(null)", "gres/gpu:2,gres/carma:81072", "0", "1795257543", "1", "normal", "N/A", "N/A",
			"N/A", "1", "N/A"},
		[]string{"1", "1001", "RUNNING", "gpu", "None", "4294901760", "1795257500", "1795257543", "1795261143", "n1", "",
			"(null)", "1", "N/A", "(null)", "gres/gpu:1,gres/carma:10240", "2", "1795257480", "1", "normal", "N/A", "N/A",
			"N/A", "1", "N/A"},
		[]string{"9", "1002", "PENDING", "gpu", "Priority", "4294901750", "1795257543", "N/A", "N/A", "", "n[1-2]", "maint",
			"9", "3", "bigmem", "gres/carma:30720", "0", "1795257543", "2-4", "normal", "gres/gpu:4", "cpu:1", "N/A", "2",
			"N/A"},
		[]string{"8", "1001", "PENDING", "gpu", "None", "4294901754", "1795257543", "N/A", "NONE", "", "", "(null)", "6",
			"2", "(null)", "gres/carma:20480", "0", "1795257543", "1", "normal", "N/A", "gres/gpu=1", "N/A", "2", "N/A"},
		[]string{"x", "1001", "PENDING", "gpu", "Priority", "4294901750", "N/A", "N/A", "N/A", "", "", "", "x", "N/A",
			"(null)", "gres/gpu:1", "0", "1795257543", "1", "normal", "N/A", "N/A", "N/A", "1", "N/A"},
		[]string{"7", "x", "PENDING", "gpu", "Priority", "1", "N/A", "N/A", "N/A", "", "", "", "7", "N/A", "(null)",
			"gres/gpu:1", "0", "1795257543", "1", "normal", "N/A", "N/A", "N/A", "1", "N/A"},
	)})
	got, err := c.Queue(t.Context(), []string{"gpu", "recovery"})
	want := []schedule.Job{
		{ID: 2, UID: 1001, State: "PENDING", Partition: "gpu", Reason: "Constraints", Priority: 4294901759,
			Eligible: time.Unix(1795257543, 0), Start: time.Unix(1826813645, 0), GPUs: 2, MiB: 40536,
			Submitted: time.Unix(1795257543, 0), NodeCount: 1, QOS: "normal"},
		{ID: 1, UID: 1001, State: "RUNNING", Partition: "gpu", Reason: "None", Priority: 4294901760,
			Eligible: time.Unix(1795257500, 0), Start: time.Unix(1795257543, 0), End: time.Unix(1795261143, 0), Nodes: "n1",
			GPUs: 1, MiB: 10240, Restarts: 2, Submitted: time.Unix(1795257480, 0), NodeCount: 1, QOS: "normal"},
		{ID: 9, UID: 1002, State: "PENDING", Partition: "gpu", Reason: "Priority", Priority: 4294901750,
			Eligible: time.Unix(1795257543, 0), ReqNodes: "n[1-2]", Reservation: "maint", ArrayJobID: 9, ArrayTask: 3,
			Features: "bigmem", GPUs: 3, MiB: 10240, Submitted: time.Unix(1795257543, 0), NodeCount: 2, QOS: "normal"},
		{ID: 8, UID: 1001, State: "PENDING", Partition: "gpu", Reason: "None", Priority: 4294901754,
			Eligible: time.Unix(1795257543, 0), ArrayJobID: 6, ArrayTask: 2, GPUs: 2, MiB: 10240,
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

// On how many GPUs of a node a job is, as package annotate has it when it books.
func TestGPUsOf(t *testing.T) {
	for _, c := range []struct {
		asked
		gpus int
		mib  int64
	}{
		{asked{}, 0, 0},
		{asked{perNode: "gres/gpu:a100:4", nodes: 1}, 4, 0},
		{asked{perNode: "gres/gpu:2,gres/carma:20480", nodes: 3}, 2, 10240},
		{asked{perNode: "gres/carma:40960", perJob: "gres/gpu:5", nodes: 2}, 4, 10240},
		{asked{perNode: "gres/carma:10240", perJob: "gres/gpu:1", nodes: 2}, 1, 10240},
		{asked{perNode: "gres/gpu:2,gres/carma:20480", perJob: "gres/gpu:4", nodes: 1}, 2, 10240},
		{asked{perNode: "gres/carma:20480", perTask: "gres/gpu:1", tasks: 3, nodes: 2}, 2, 10240},
		{asked{perNode: "gres/carma:30720", perTask: "gres/gpu:1", tasks: 4, tasksPerNode: 3, nodes: 2}, 3, 10240},
		{asked{perNode: "gres/carma:10240", perTask: "gres/gpu:1", nodes: 1}, 1, 10240},
		{asked{perNode: "gres/gpu:1", perTask: "cpu:2", tasks: 9, nodes: 1}, 1, 0},
		{asked{perNode: "gres/carma:20480", perSocket: "gres/gpu:1", nodes: 1}, 2, 10240},
		{asked{perNode: "gres/carma:20480"}, 0, 0},
		{asked{perTask: "gres/gpu:999999999999", tasks: 4294967295, nodes: 1}, 1 << 16, 0},
	} {
		if gpus, mib := gpusOf(c.asked); gpus != c.gpus || mib != c.mib {
			t.Errorf("%+v: %d GPUs, %d MiB", c.asked, gpus, mib)
		}
	}
}

func TestSplit(t *testing.T) {
	const books = "gres/gpu:2,gres/carma:20480"
	j := schedule.Job{ID: 6, UID: 1001, ArrayJobID: 6, ArrayTask: 2, GPUs: 2, MiB: 10240}
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
		"other GRES":    rows([]string{"8", "1001", "6", "2", "PENDING", "gres/gpu:2,gres/carma:40960"}),
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

// A hold of a user's or an administrator's stays.
func TestReleaseBad(t *testing.T) {
	alone := schedule.Job{ID: 6, UID: 1001}
	task := schedule.Job{ID: 6, UID: 1001, ArrayJobID: 6, ArrayTask: 2}
	good := []string{"1001", "PENDING", "BadConstraints", "0"}
	for _, c := range []struct {
		job     schedule.Job
		row     []string
		release string // empty: no job is released
	}{
		{alone, good, "release 6 "},
		{task, good, "release 6_2 "},
		{alone, []string{"1002", "PENDING", "BadConstraints", "0"}, ""},
		{alone, []string{"1001", "RUNNING", "None", "1"}, ""},
		{alone, []string{"1001", "PENDING", "JobHeldUser", "0"}, ""},
		{alone, []string{"1001", "PENDING", "JobHeldAdmin", "0"}, ""},
		{alone, []string{"1001", "PENDING", "Constraints", "1"}, ""},
	} {
		client := client(t, map[string]string{"scontrol": "", "squeue": rows(c.row)})
		err := client.ReleaseBad(t.Context(), c.job)
		text := calls(t, client)
		if (err == nil) != (c.release != "") || strings.Contains(text, "release") != (c.release != "") ||
			!strings.Contains(text, c.release) {
			t.Errorf("%v: %v; calls: %s", c.row, err, text)
		}
	}
	client := client(t, map[string]string{"scontrol": "", "squeue": rows(good, good)})
	if err := client.ReleaseBad(t.Context(), alone); err == nil {
		t.Error("two rows are one job")
	}
}

func TestNodes(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "", "sinfo": showRows(
		`n1%gpu*%mixed+planned%a100,nvlink%{"carma1":40536,"carma2":0,"carma2u1001":5,"carmaall":4}%`,
		`n1%recovery%mixed+planned%a100,nvlink%{"carma1":40536,"carma2":0,"carma2u1001":5,"carmaall":4}%`,
		`n2%gpu*%idle+not_responding%(null)%{"rack":"a b"}%`,
		"n3%gpu*%idle+reserved%(null)%a | b%",
		"n4%gpu*%idle%(null)%(null)%")})
	got, err := c.Nodes(t.Context(), []string{"gpu", "recovery"})
	want := []schedule.Node{
		{Name: "n1", Partitions: []string{"gpu", "recovery"}, Lives: true, Up: true, GPUs: 2, Features: "a100,nvlink",
			Extra: `{"carma1":40536,"carma2":0,"carma2u1001":5,"carmaall":4}`},
		{Name: "n2", Partitions: []string{"gpu"}, Extra: `{"rack":"a b"}`},
		{Name: "n3", Partitions: []string{"gpu"}, Lives: true, Extra: "a | b"},
		{Name: "n4", Partitions: []string{"gpu"}, Lives: true, Up: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Never a node that slurmctld did not list.
func FuzzNodes(f *testing.F) {
	f.Add("nvlink", `{"carma1":7}`)
	f.Add("a|b\nn9|gpu|idle||", "x\nn9|gpu|idle|(null)|{\"carmahold\":\"7:2:0:1\"}")
	f.Fuzz(func(t *testing.T, features, extra string) {
		sep := newSeparator()
		var b strings.Builder
		for _, row := range [][]string{{"n1", "gpu*", "idle", features, extra}, {"n2", "gpu*", "idle", "", ""}} {
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
			"gres/gpu:1,gres/carma:10240", "0", "1795257600", "1", "normal", "N/A", "N/A", "N/A", "1", "N/A"} {
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
	f.Add("gpu", "x", "gres:gpu:1", "gres/gpu:4", "N/A")
	f.Add("a|b\n13|0|PENDING", "x\n", "gres:gpu:x\n13|PENDING|gpu", "gpu=1,carma:9", "0,7")
	f.Add("@@", "\x1f\x1e", "N/A", "N/A", "4294967296")
	f.Fuzz(func(t *testing.T, features, reservation, tres, perTask, task string) {
		sep := newSeparator()
		var b strings.Builder
		for _, row := range [][]string{
			{"11", "1000", "PENDING", "gpu", "None", "1", "0", "0", "0", "", "", "", "11", "N/A", "", "gres:gpu:1", "0", "0",
				"1", "normal", "", "", "", "1", ""},
			{"12", "1001", "PENDING", "gpu", "None", "1", "0", "0", "0", "", "", reservation, "10", task, features, tres, "0",
				"0", "1", "normal", tres, perTask, perTask, task, task},
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
		for _, j := range jobs {
			if j.GPUs < 0 || j.MiB < 0 || j.MiB > 0 && j.GPUs == 0 {
				t.Errorf("%+v", j)
			}
		}
	})
}

func TestNamesOf(t *testing.T) {
	const text = "PartitionName=gpu AllowGroups=ALL Nodes=n[9-10],x PriorityTier=1\n" +
		"PartitionName=cpu Nodes=c[1-2]\nPartitionName=gpu-recovery Nodes=n[8-9]\nPartitionName=none Nodes=(null)\n"
	got, err := namesOf(text, []string{"gpu", "gpu-recovery", "none"})
	if want := []string{"n10", "n8", "n9", "x"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if _, err := namesOf("PartitionName=gpu Nodes=n[1-\n", []string{"gpu"}); err == nil {
		t.Error("a list that cannot be read is none")
	}
}
