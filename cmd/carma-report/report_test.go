// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"carma/db"
	"carma/gres"
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
	nan := gres.Unknown
	gpu := func(uuid string, peak int64, smact, joules gres.Measured) db.AttemptGPU {
		return db.AttemptGPU{UUID: uuid, PeakMiB: peak, SMActPct: smact, SMActMax: smact, EnergyJ: joules}
	}
	for _, a := range []db.Attempt{
		{JobID: 101, User: "alice", State: "COMPLETED", Mode: "shared", Method: "user", EstMiB: 10240, ReserveMiB: 10240, Submit: at(0), Start: at(2), End: at(3602),
			Neighbours: []uint32{102, 103, 104, 105, 106}, GPUs: []db.AttemptGPU{gpu("GPU-a", 9216, 62, 421000)}},
		{JobID: 102, User: "bob", State: "REQUEUED", Mode: "shared", Method: "user", EstMiB: 8192, ReserveMiB: 8192, Submit: at(1), Start: at(4), End: at(34), ExitCode: 1,
			Neighbours: []uint32{101}, OOM: "pytorch", RequeuedTo: "gpu-recovery", GPUs: []db.AttemptGPU{gpu("GPU-a", 8100, 70, 3000)}},
		{JobID: 102, Restart: 1, User: "bob", State: "COMPLETED", Mode: "exclusive", Method: "user", EstMiB: 8192, ReserveMiB: 40503, Submit: at(1), Start: at(160), End: at(90160),
			GPUs: []db.AttemptGPU{gpu("GPU-b", 12288, 35, 15e6)}},
		{JobID: 103, User: "bob", State: "FAILED", Mode: "exclusive", Method: "none", ReserveMiB: 40503, Start: at(5), End: at(5.2), ExitCode: 1,
			GPUs: []db.AttemptGPU{gpu("GPU-c", 0, nan, nan)}},
		{JobID: 104, User: "alice", State: "OUT_OF_MEMORY", Mode: "shared", Method: "user", EstMiB: 2048, ReserveMiB: 2048, Submit: at(5), Start: at(5), End: at(65), ExitCode: 1,
			OOM: "cuda", OOMNote: "requeue refused: Requested operation is presently disabled", GPUs: []db.AttemptGPU{gpu("GPU-a", 2000, 5, 900)}},
		{JobID: 105, User: "alice", State: "COMPLETED", Mode: "exclusive", Method: "none", ReserveMiB: 40503, Submit: at(5), Start: at(5), End: at(65), Node: "n1",
			GPUs: []db.AttemptGPU{gpu("GPU-d", 30000, 80, 20000), gpu("GPU-e", 31000, 90, 21000)}},
		{JobID: 105, User: "alice", State: "COMPLETED", Mode: "exclusive", Method: "none", ReserveMiB: 40503, Submit: at(5), Start: at(5), End: at(65), Node: "n2",
			GPUs: []db.AttemptGPU{gpu("GPU-f", 30500, 85, 20500)}},
	} {
		a.Cluster, a.Partition = "c", "gpu"
		if a.Node == "" {
			a.Node = "n1"
		}
		if err := d.Put(context.Background(), a); err != nil {
			return err
		}
	}
	return nil
}

func TestGolden(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	if err := fill(path); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"table.txt":  nil,
		"one.txt":    {"-j", "102"},
		"jobs.json":  {"--json"},
		"help.txt":   {"--help"},
		"empty.json": {"--json", "--db", filepath.Join(filepath.Dir(path), "empty.db")},
	} {
		if name == "empty.json" {
			d, err := db.Open(args[2])
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
		} else {
			args = append(args, "--db", path)
		}
		var out bytes.Buffer
		t.Setenv("CARMA_CONF", "")
		if err := run(context.Background(), args, &out); err != nil && name != "help.txt" {
			t.Errorf("%s: %v", name, err)
		}
		golden := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(out.Bytes(), want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, out.Bytes(), want)
		}
	}
}
