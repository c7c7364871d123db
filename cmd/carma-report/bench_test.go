// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"carma/db"
	"carma/db/figure"
)

// BenchmarkMillion runs every view over a million jobs. CARMA_BENCH_DB keeps the
// database, 700 MB, for the next time.
func BenchmarkMillion(b *testing.B) {
	bound()
	path := os.Getenv("CARMA_BENCH_DB")
	if path == "" {
		path = filepath.Join(b.TempDir(), "carma.db")
	}
	if _, err := os.Stat(path); err != nil {
		b.Logf("writing a million jobs to %s", path)
		if err := million(path, 1e6); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"summary", []string{"summary"}}, {"table", nil}, {"parsable2", []string{"-P"}}, {"csv", []string{"--csv"}},
		{"json", []string{"--json"}},
		{"failed", []string{"-s", "F"}}, {"one", []string{"-j", "500000"}}, {"user", []string{"-u", "user3", "summary"}},
		{"html", []string{"--html"}}, {"history", []string{"history"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			before := cpu()
			defer func() { b.ReportMetric((cpu()-before).Seconds()/float64(b.N), "cpu-s/op") }()
			for b.Loop() {
				if err := run(context.Background(), append([]string{"--db", path, "-S", "2020-01-01"}, c.args...),
					io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// cpu is the time that this process has had of all cores, which says more than the
// clock where others work, too.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// million writes n jobs as a busy cluster has them in a year.
func million(path string, n int) error {
	d, err := db.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	begin := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	list := make([]db.Attempt, 0, 20000)
	for i := range n {
		submit := begin.Add(time.Duration(i) * 30 * time.Second)
		peak := int64(2000 + rng.IntN(30000))
		run := time.Duration(60+rng.IntN(20000)) * time.Second
		a := db.Attempt{Cluster: "carma", JobID: uint32(i + 1), Node: fmt.Sprintf("gpu%d", rng.IntN(50)), Name: "train.sh",
			Account: fmt.Sprintf("lab%d", rng.IntN(20)),
			User:    fmt.Sprintf("user%d", rng.IntN(200)), UID: 1000, Partition: "gpu", Submit: submit,
			Start: submit.Add(time.Minute), End: submit.Add(time.Minute + run),
			State: []string{"COMPLETED", "COMPLETED", "COMPLETED", "FAILED", "TIMEOUT"}[rng.IntN(5)], Mode: "shared",
			Method: []string{"user", "history", "analytic"}[rng.IntN(3)],
			Key:    "0123456789abcdef", EstMiB: peak + 500, ReserveMiB: peak + 1000, Neighbours: []uint32{uint32(i + 2)},
			GPUs: []db.AttemptGPU{{UUID: fmt.Sprintf("GPU-%08x-1111-2222-3333-444455556666", rng.IntN(200)),
				Model: "NVIDIA A100-SXM4-40GB", Figures: figure.Figures{
					PeakMiB: peak, PeakFrom: figure.MemoryMPS, MeanMiB: peak, SMActPct: 40, SMActMax: 60, SMActFrom: figure.SourceDCGM,
					EnergyJ: figure.Measured(run.Seconds() * 120), IdleJ: 1000,
					LeaseS: run.Seconds(), HeldS: run.Seconds() / 2, SharedS: run.Seconds(),
					AloneS: figure.Measured(run.Seconds() * 0.9)}}}}
		if list = append(list, a); len(list) == cap(list) || i == n-1 {
			if err := d.PutAll(context.Background(), list); err != nil {
				return err
			}
			list = list[:0]
		}
	}
	return nil
}
