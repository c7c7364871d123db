// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rogpeppe/go-internal/testscript"

	"carma/db"
	"carma/db/figure"
	"carma/estimator/history"
	"carma/slurmbridge/jobenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"carma-report": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("CARMA_CONF", filepath.Join(e.WorkDir, "carma.toml"))
			return fill(filepath.Join(e.WorkDir, "carma.db"))
		},
	})
}

func at(s float64) time.Time { return time.Unix(0, int64((1.7e9+s)*1e9)) }

// fill makes a database in which every kind of job occurs.
func fill(path string) error {
	d, err := db.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	gpu := func(uuid string, peak int64, smact, joules figure.Measured, leaseS, sharedS float64) db.AttemptGPU {
		f := figure.Figures{PeakMiB: peak, PeakFrom: figure.MemoryProcess, MeanMiB: peak * 9 / 10, SMActPct: smact,
			SMActMax: smact + 5, SMActFrom: figure.SourceGPM,
			EnergyJ: joules, IdleJ: joules / 4, LeaseS: leaseS, SharedS: sharedS, HeldS: leaseS - sharedS/2,
			AloneS: figure.Measured(leaseS - sharedS/10)}
		return db.AttemptGPU{UUID: uuid, Model: "NVIDIA A100-SXM4-40GB", Figures: f}
	}
	for _, a := range []db.Attempt{
		{JobID: 101, User: "alice", State: "COMPLETED", Mode: "shared", Method: "user", EstMiB: 10240, ReserveMiB: 10240,
			Submit: at(0), Start: at(2), End: at(3602),
			Neighbours: []uint32{102, 103, 104, 105, 106}, GPUs: []db.AttemptGPU{gpu("GPU-a", 9216, 62, 421000, 3600, 1800)}},
		{JobID: 102, User: "bob", State: "REQUEUED", Mode: "shared", Method: "user", EstMiB: 8192, ReserveMiB: 8192,
			Submit: at(1), Start: at(4), End: at(34), ExitCode: 1,
			Neighbours: []uint32{101}, OOM: "pytorch", RequeuedTo: "gpu-recovery",
			GPUs: []db.AttemptGPU{gpu("GPU-a", 8100, 70, 3000, 30, 30)}},
		{JobID: 102, Restart: 1, User: "bob", State: "COMPLETED", Mode: "exclusive", Method: "user", EstMiB: 8192,
			ReserveMiB: 40503, Submit: at(1), Start: at(160), End: at(90160),
			GPUs: []db.AttemptGPU{gpu("GPU-b", 12288, 35, 15e6, 90000, 0)}},
		{JobID: 103, User: "bob", State: "FAILED", Mode: "exclusive", Method: "none", ReserveMiB: 40503, Start: at(5),
			End: at(5.2), ExitCode: 1,
			GPUs: []db.AttemptGPU{{UUID: "GPU-c", Figures: figure.NoFigures()}}},
		{JobID: 104, User: "alice", State: "OUT_OF_MEMORY", Mode: "shared", Method: "user", EstMiB: 2048, ReserveMiB: 2048,
			Submit: at(5), Start: at(5), End: at(65), ExitCode: 1,
			OOM: "cuda", OOMNote: "requeue refused: Requested operation is presently disabled",
			GPUs: []db.AttemptGPU{gpu("GPU-a", 2000, 5, 900, 60, 60)}},
		{JobID: 105, User: "alice", State: "COMPLETED", Mode: "exclusive", Method: "none", ReserveMiB: 40503, Submit: at(5),
			Start: at(5), End: at(65), Node: "n1",
			GPUs: []db.AttemptGPU{gpu("GPU-d", 30000, 80, 20000, 60, 0), gpu("GPU-e", 31000, 90, 21000, 60, 0)}},
		{JobID: 105, User: "alice", State: "COMPLETED", Mode: "exclusive", Method: "none", ReserveMiB: 40503, Submit: at(5),
			Start: at(5), End: at(65), Node: "n2",
			GPUs: []db.AttemptGPU{gpu("GPU-f", 30500, 85, 20500, 60, 0)}},
	} {
		a.Cluster, a.Partition, a.Account, a.Name = "c", "gpu", "ml", fmt.Sprintf("train %d, \"x\"", a.JobID)
		if a.JobID != 103 && a.JobID != 105 {
			a.Key = history.Key(a.JobID).String()
		}
		if a.JobID == 104 {
			a.ArrayJobID, a.ArrayTask = 103, "2"
		}
		if a.Node == "" {
			a.Node = "n1"
		}
		if err := d.Put(context.Background(), a); err != nil {
			return err
		}
	}
	var samples []db.Sample
	add := func(uuid string, i int, smact figure.Measured, memory map[uint32]int64) {
		s := db.Sample{UUID: uuid, At: at(float64(i * 10)).Truncate(10 * time.Second), Length: 10 * time.Second,
			UsedMiB: 400, SMActPct: smact, SMActMax: 90, SMActS: 10, EnergyJ: 1500, EnergyS: 10, Jobs: len(memory)}
		for _, job := range slices.Sorted(maps.Keys(memory)) {
			s.UsedMiB += memory[job]
			s.Memory = append(s.Memory, db.JobSample{UUID: uuid, At: s.At, Length: s.Length, JobID: job, UsedMiB: memory[job]})
		}
		samples = append(samples, s)
	}
	for i := range 360 {
		if i >= 200 && i < 220 {
			continue
		}
		memory := map[uint32]int64{101: int64(min(200+i*200, 9216))}
		if i < 3 {
			memory[102] = 8100
		}
		if i < 6 {
			memory[104] = 2000
		}
		add("GPU-a", i, figure.Measured(30+i%50), memory)
	}
	for i := range 7 {
		for k, uuid := range []string{"GPU-d", "GPU-e", "GPU-f"} {
			add(uuid, i, figure.Measured(80+i), map[uint32]int64{105: int64(30000 + 500*k)})
		}
	}
	meter := func(uuid, node string, index int) db.Meter {
		return db.Meter{UUID: uuid, Index: index, Model: "NVIDIA A100-SXM4-40GB", TotalMiB: 40503, Node: node, CounterJ: 1,
			At: at(0), FloorWatts: 58}
	}
	return d.AddSamples(context.Background(), samples, []db.Meter{meter("GPU-a", "n1", 0), meter("GPU-d", "n1", 1),
		meter("GPU-e", "n1", 2), meter("GPU-f", "n2", 0)})
}

// What a history file holds is found again by the key that job_submit makes.
func TestHistoryOfRecords(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "carma.db")
	if err := fill(path); err != nil {
		t.Fatal(err)
	}
	file, config := filepath.Join(dir, "history"), filepath.Join(dir, "carma.toml")
	if err := os.WriteFile(config, []byte("[history]\nfile = \""+file+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"history", "--write", "--db", path, "--config", config}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	h, err := history.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if n := h.Len(); n != 2 {
		t.Errorf("%d keys", n)
	}
	if v, ok := h.Find(101); !ok || v.PeakMiB != 9216 || v.Runs != 1 || v.SMActPct != 62 {
		t.Errorf("%+v, %v", v, ok)
	}
	if v, ok := h.Find(102); !ok || v.PeakMiB != 12288 { // the run that was requeued
		t.Errorf("%+v, %v", v, ok)
	}
	if _, ok := h.Find(104); ok { // outgrown
		t.Error("a job that died of memory is known")
	}
}

// What users call their jobs moves no cursor, breaks no line and ends no string, in whatever
// form it is shown.
func TestTextsOfUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	d, err := db.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	hostile := "\x1b[2J\u009b31m\u202ex\u200b\xff\x7f\n</td>\"&|'"
	f := figure.NoFigures()
	f.LeaseS = 100
	a := db.Attempt{JobID: 7, ArrayJobID: 7, ArrayTask: "1" + hostile, Cluster: "c" + hostile, Node: "n" + hostile,
		Name: strings.Repeat("N", 300) + hostile, Account: "a" + hostile,
		User: "u<script>" + hostile, Partition: "p" + hostile, State: "S" + hostile,
		Mode: jobenv.Mode("m" + hostile), Method: "M" + hostile,
		Key: "k" + hostile, OOM: "o" + hostile, OOMNote: "O" + hostile, RequeuedTo: "r" + hostile,
		EstMiB: 1, Start: at(0), End: at(100), GPUs: []db.AttemptGPU{{UUID: "GPU-a" + hostile, Model: "model" + hostile,
			Figures: f}, {UUID: "GPU-b", Figures: f}}}
	err = d.AddSamples(t.Context(), []db.Sample{{UUID: "GPU-b" + hostile, At: at(0), Length: 10 * time.Second},
		{UUID: "GPU-b", At: at(0), Length: 10 * time.Second}},
		[]db.Meter{{UUID: "GPU-b", TotalMiB: 40503, Node: "n1", At: at(0)},
			{UUID: "GPU-b" + hostile, TotalMiB: 40503, Node: "n" + hostile, Model: "m" + hostile, At: at(0)}})
	if err != nil {
		t.Fatal(err)
	}
	for restart := range uint32(2) {
		a.Restart = restart
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("CARMA_CONF", "")
	time.Local = time.UTC
	var all bytes.Buffer
	for _, args := range [][]string{{"7"}, {"-t", "7"}, {"-o", "all"}, {"-P", "-o", "all"}, {"--csv", "-o", "all"},
		{"--json"}, {"--html", "7"}, {"--html"}, {"--svg", "7"}, {"--svg"},
		{"summary"}, {"summary", "--json"}, {"summary", "--html"}, {"summary", "--svg"}, {"history"},
		{"gpus", "--html"}, {"gpus", "--svg"}, {"gpus"}, {"gpus", "--json"}} {
		var out bytes.Buffer
		if err := run(context.Background(), append(args, "--db", path, "-S", "2020-01-01"), &out); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		for _, r := range out.String() {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%v prints %q:\n%q", args, r, out.String())
				break
			}
		}
		if slices.Contains(args, "--json") && !json.Valid(out.Bytes()) {
			t.Errorf("%v: no JSON:\n%s", args, out.Bytes())
		}
		if slices.Contains(args, "--html") && strings.Contains(strings.ReplaceAll(out.String(), "</td>\n", ""), `</td>"`) {
			t.Errorf("%v: HTML of a user's", args)
		}
		if (slices.Contains(args, "--html") || slices.Contains(args, "--svg")) &&
			strings.Contains(out.String(), "<script") {
			t.Errorf("%v: a user's script", args)
		}
		if args[0] == "gpus" && len(args) == 2 && args[1] != "--json" && strings.Count(out.String(), "&lt;script&gt;") < 2 {
			t.Errorf("%v: no jobs:\n%s", args, out.String())
		}
		fmt.Fprintf(&all, "==== %s\n%s", strings.Join(args, " "), out.Bytes())
	}
	compare(t, "hostile.txt", all.Bytes())
}

// compare holds what was printed to a golden file.
func compare(t *testing.T, name string, got []byte) {
	t.Helper()
	golden := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
}

func TestGolden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	if err := fill(path); err != nil {
		t.Fatal(err)
	}
	empty, err := db.Open(filepath.Join(t.TempDir(), "empty.db"))
	if err != nil {
		t.Fatal(err)
	}
	empty.Close()
	t.Setenv("CARMA_CONF", "")
	time.Local = time.UTC
	from, to := "2023-11-14T00:00", "2023-11-14T23:59"
	for name, args := range map[string][]string{
		"table.txt":        {"-S", from},
		"units.txt":        {"-S", from, "--units=M", "-n", "-o", "JobID%-8,User%4,EstMem,PeakMem,JobName%9,+State"},
		"units.psv":        {"-S", from, "-P", "--units=G", "-n", "-o", "JobID,PeakMem"},
		"all.psv":          {"-S", from, "-P", "-o", "all"},
		"parsable.psv":     {"-S", from, "-p", "--delimiter=;", "-n", "-u", "bob"},
		"jobs.csv":         {"-S", from, "--csv", "-o", "JobID,JobName,PeakMem,Neighbours,Start,GPUs"},
		"jobs.json":        {"-S", from, "--json"},
		"shared.txt":       {"101"},
		"one.txt":          {"-j", "102"},
		"nothing.txt":      {"slurm-103.out"},
		"two-nodes.txt":    {"105"},
		"array.txt":        {"103_2"},
		"one.html":         {"--html", "101"},
		"one.svg":          {"--svg", "101"},
		"several.html":     {"--html", "105"},
		"table.html":       {"--html", "-S", from},
		"table.svg":        {"--svg", "-S", from},
		"summary.txt":      {"-S", from, "summary"},
		"summary-user.txt": {"-S", from, "--by=user", "summary"},
		"summary.json":     {"-S", from, "summary", "--json"},
		"summary.html":     {"-S", from, "summary", "--html"},
		"summary.svg":      {"-S", from, "summary", "--svg"},
		"history.txt":      {"history"},
		"gpus.txt":         {"gpus", "-S", from, "-E", to},
		"gpus.json":        {"gpus", "-S", from, "-E", to, "--json"},
		"gpus.html":        {"gpus", "-S", from, "-E", to, "--html"},
		"gpus.svg":         {"gpus", "-S", from, "-E", to, "--svg"},
		"help.txt":         {"--help"},
		"helpformat.txt":   {"-e"},
		"empty.txt":        {"-S", from, "-u", "nobody"},
		"empty.json":       {"--json", "-S", "now-1hour"},
		"empty-sum.txt":    {"summary", "-S", "now-1hour"},
	} {
		args = append(args, "--db", path)
		var out bytes.Buffer
		if err := run(context.Background(), args, &out); err != nil && name != "help.txt" {
			t.Errorf("%s: %v", name, err)
		}
		compare(t, name, out.Bytes())
	}
}
