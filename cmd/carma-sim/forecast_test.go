// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"carma/cmd/internal/cli"
	"carma/db"
	"carma/db/figure"
)

// week writes a database with the records of n jobs that waited for two GPUs in each of two
// partitions; one user's texts are hostile. Every tenth job has no samples.
func week(path string, n int) error { return weekOfRuns(path, n, 20*time.Minute, 600, 4800) }

// weekOfRuns is week with a submission every so often, of jobs that run from leastS on.
func weekOfRuns(path string, n int, every time.Duration, leastS, spreadS int) error {
	d, err := db.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	begin := time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"train.sh", "tune", "<script>alert(1)</script>", "eval\x1b[31m|%s"}
	free := map[string]time.Time{} // by GPU
	var list []db.Attempt
	for i := range n {
		submit := begin.Add(time.Duration(i) * every)
		partition := []string{"gpu", "gpu", "test"}[i%3]
		uuid := ""
		for _, g := range []string{"GPU-0", "GPU-1"} {
			if g = partition + "-" + g; uuid == "" || free[g].Before(free[uuid]) {
				uuid = g
			}
		}
		start := submit.Add(2 * time.Second)
		if free[uuid].After(start) {
			start = free[uuid]
		}
		runS := float64(leastS + r.IntN(spreadS))
		smact := 10 + r.Float64()*60
		f := figure.Figures{PeakMiB: 3000 + r.Int64N(16000), PeakFrom: figure.MemoryProcess, SMActPct: figure.Measured(smact),
			SMActMax: 90, SMActFrom: figure.SourceDCGM, EnergyJ: figure.Measured(runS * (70 + 2*smact)),
			LeaseS: runS, HeldS: runS, AloneS: figure.Measured(runS)}
		f.MeanMiB = f.PeakMiB * 9 / 10
		if i%10 == 9 {
			f = figure.NoFigures()
			f.LeaseS, f.HeldS = runS, runS
		}
		free[uuid] = start.Add(time.Duration(runS) * time.Second)
		list = append(list, db.Attempt{Cluster: "c", JobID: uint32(i + 1), Node: partition + "1", Name: names[i%len(names)],
			User: fmt.Sprintf("secret%d", i%3), UID: uint32(5001 + i%3), Partition: partition, Submit: submit, Start: start,
			End: free[uuid], State: "COMPLETED", Mode: "exclusive", Method: "none", FullMiB: 40536, ReserveMiB: 40536,
			GPUs: []db.AttemptGPU{{UUID: uuid, Model: "NVIDIA A100", Figures: f}}})
		if len(list) == 5000 || i == n-1 {
			if err := d.PutAll(context.Background(), list); err != nil {
				return err
			}
			list = nil
		}
	}
	return nil
}

func weekOf(t testing.TB, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carma.db")
	if err := week(path, n); err != nil {
		t.Fatal(err)
	}
	return path
}

// advised is a week of an agent that advises on two of three jobs.
func advised(t *testing.T) string {
	t.Helper()
	path := weekOf(t, 150)
	d, err := db.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	list, err := d.Attempts(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		a := &list[i]
		switch a.JobID % 6 {
		case 0, 1: // mem=
			a.Method, a.EstMiB, a.AdvisedMiB = "user", 20480, 20480
		case 2: // a summary, of which much is guessed
			a.Method, a.EstMiB, a.AdvisedMiB = "analytic", 15000, 21128
		case 3: // a lower bound: a GPU of its own
			a.Method, a.EstMiB, a.AdvisedMiB = "analytic", 12000, 40536
		default: // no line
			a.Method, a.AdvisedMiB = "none", 40536
		}
	}
	if err := d.PutAll(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return path
}

func forecastArgs(path string, more ...string) []string {
	return append([]string{"forecast", "--db", path, "-S", "2026-01-01", "-E", "2027-01-01", "--repeats", "3"}, more...)
}

func TestForecast(t *testing.T) {
	time.Local = time.UTC
	t.Setenv("CARMA_CONF", "")
	path := weekOf(t, 150)
	page := filepath.Join(t.TempDir(), "page.html")
	golden(t, "forecast.txt", output(t, forecastArgs(path, "--html", page)...))
	golden(t, "forecast.json", output(t, forecastArgs(path, "--json")...))
	golden(t, "forecast.psv", output(t, forecastArgs(path, "-P")...))
	golden(t, "forecast-one.txt", output(t, forecastArgs(weekOf(t, 1), "--repeats", "1", "--gpus", "8", "--gpu-mem", "80G",
		"--nodes", "2")...))
	short := filepath.Join(t.TempDir(), "carma.db")
	if err := weekOfRuns(short, 12, 5*time.Second, 3, 10); err != nil {
		t.Fatal(err)
	}
	golden(t, "forecast-short.txt", output(t, forecastArgs(short)...))
	// Of an agent that advises: what the plugin would have booked.
	golden(t, "forecast-advised.txt", output(t, forecastArgs(advised(t))...))
	html, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "forecast.html", string(html))
	_, body, _ := strings.Cut(string(html), "<body>")
	body, _, _ = strings.Cut(body, "</body>")
	if err := xml.Unmarshal([]byte("<x>"+body+"</x>"), new(struct{})); err != nil {
		t.Error(err)
	}
	for _, file := range []string{"forecast.txt", "forecast.json", "forecast.psv", "forecast.html"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"secret", "5001", "train", "alert", "<script", "http", "NaN", "Inf", "\x1b"} {
			if bytes.Contains(text, []byte(bad)) {
				t.Errorf("%s has %q", file, bad)
			}
		}
	}
}

// Figures that cannot be neither stop the forecast nor get into its figures.
func TestForecastOfNonsense(t *testing.T) {
	path := weekOf(t, 20)
	d, err := db.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	begin := time.Date(2026, 1, 5, 9, 0, 0, 0, time.UTC).Unix()
	for i, a := range []db.Attempt{
		{Submit: at(1), Start: at(2), End: at(253_402_000_000)},
		{Submit: at(253_402_000_000), Start: at(begin), End: at(begin + 60)},
		{Submit: at(-60_000_000_000), Start: at(begin), End: at(begin)},
		{Submit: at(begin), Start: at(begin + 9), End: at(begin + 1)},
		{Submit: at(begin), Start: at(begin), End: at(begin + 1)},
	} {
		a.Cluster, a.JobID, a.Node, a.Partition, a.FullMiB = "c", uint32(1000+i), "gpu1", "gpu", 1<<62
		f := figure.Figures{PeakMiB: 1 << 62, MeanMiB: -1 << 62, SMActPct: 1e300, EnergyJ: 1e300, LeaseS: 1e-9, HeldS: 1e9,
			SharedS: 1e9, AloneS: -1}
		a.GPUs = []db.AttemptGPU{{UUID: "gpu-GPU-0", Figures: f}}
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	text := output(t, forecastArgs(path, "--gpu-mem", "40536")...)
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || !strings.Contains(text, "left out") {
		t.Errorf("got\n%s", text)
	}
}

func TestForecastUsage(t *testing.T) {
	path := weekOf(t, 2)
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{forecastArgs(path, "-S", "2030-01-01", "-E", ""), cli.ExitNotFound,
			"nothing to forecast: no job with GPUs has a record in this time; see --starttime"},
		{forecastArgs(path, "-S", "someday"), cli.ExitUsage, `"someday"`},
		{forecastArgs(path, "--gpu-mem", "x"), cli.ExitUsage, `--gpu-mem: "x": `},
		{forecastArgs(path, "--from", "x"), cli.ExitUsage, "--from=x: must be sqlite or slurmdbd"},
		{forecastArgs(path, "--repeats", "0"), cli.ExitUsage, "repeats 0: "},
		{[]string{"forecast", "--db", filepath.Join(t.TempDir(), "none.db")}, cli.ExitUnavailable, "none.db"},
		{forecastArgs(path, "more"), cli.ExitUsage, `unexpected argument "more"; see carma-sim forecast --help`},
	} {
		err := execute(c.args, &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), c.want) || cli.Status(err) != c.status {
			t.Errorf("%v: %v (status %d)\nwant %s (%d)", c.args, err, cli.Status(err), c.want, c.status)
		}
	}
	if _, err := os.Stat("none.db"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("made a database: %v", err)
	}
}

// BenchmarkForecast is of 10,000 jobs.
func BenchmarkForecast(b *testing.B) {
	path := weekOf(b, 10000)
	for b.Loop() {
		if err := execute(slices.Concat(forecastArgs(path), []string{"--repeats", "1"}), &bytes.Buffer{}); err != nil {
			b.Fatal(err)
		}
	}
}

// slurmdbd is a carma.toml whose sacct prints these records, and the names of their jobs.
func slurmdbd(t *testing.T, list []db.Attempt) (config string) {
	t.Helper()
	dir := t.TempDir()
	var jobs, names string
	for _, a := range list {
		text, err := db.MergeComment(a.JobID, db.Comment{}, []db.Attempt{a})
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprint(a.JobID)
		jobs += strings.Join([]string{a.Cluster, id, id, fmt.Sprint(a.UID), a.User, a.Partition, a.State, "1767600000", text},
			"\x1f") + "\n"
		names += strings.Join([]string{a.Cluster, id, a.Account, a.Name}, "\x1f") + "\n"
	}
	sacct := `#!/bin/sh
for a; do case $a in --delimiter=*) sep=${a#*=};; --format=*AdminComment) file=jobs;; --format=*) file=names;; esac; done
sed "s/\x1f/$sep/g; s/\$/$sep/" '` + dir + `'/$file
`
	for name, content := range map[string]string{"jobs": jobs, "names": names, "sacct": sacct,
		"carma.toml": "[slurm]\nbin_dir = \"" + dir + "\"\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "carma.toml")
}

// anHour is a job of one hour on a GPU.
func anHour(id uint32) db.Attempt {
	start := time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC).Add(time.Duration(id) * time.Hour)
	return db.Attempt{Cluster: "east", JobID: id, Node: "n1", UID: 1001, User: "secret", Account: "thesis", Name: "train",
		Partition: "gpu", Submit: start, Start: start, End: start.Add(time.Hour), State: "COMPLETED", Mode: "exclusive",
		Method: "none", FullMiB: 40536,
		GPUs: []db.AttemptGPU{{UUID: fmt.Sprintf("GPU-%d", id%2), Figures: figure.Figures{PeakMiB: 4000, MeanMiB: 3600,
			SMActPct: 30, SMActMax: 50, SMActFrom: figure.SourceDCGM, EnergyJ: 4e5, LeaseS: 3600, HeldS: 3600,
			AloneS: 3600}}}}
}

// Of records in slurmdbd the GPUs are those that jobs had, and their memory is the record's.
func TestForecastFromSlurmdbd(t *testing.T) {
	time.Local = time.UTC
	config := slurmdbd(t, []db.Attempt{anHour(1), anHour(2), anHour(3)})
	got := output(t, "forecast", "--from", "slurmdbd", "--config", config, "-S", "2026-01-01", "--repeats", "1")
	if !strings.HasPrefix(got, "3 jobs ran from 2026-01-05 09:00 to 2026-01-05 12:00 on 1 node with 2 GPUs.\n") ||
		!strings.Contains(got, "the first run of each of 1 new script has whole GPUs") {
		t.Errorf("got\n%s", got)
	}
}

// Texts of a record neither end a tag nor steer a terminal; users, accounts and names of jobs
// are not shown at all.
func TestForecastOfHostileTexts(t *testing.T) {
	t.Setenv("CARMA_CONF", "")
	const evil = "<script>a&\"'\x1b[31m\u009b\xff\a\r\u202e\u200b|%s"
	path := filepath.Join(t.TempDir(), "carma.db")
	d, err := db.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []db.Attempt
	for id := uint32(1); id <= 4; id++ {
		a := anHour(id)
		for _, text := range []*string{&a.Cluster, &a.Node, &a.User, &a.Account, &a.Name, &a.Partition, &a.State, &a.Method,
			&a.Key, &a.ArrayTask, &a.OOM, &a.OOMNote, &a.RequeuedTo, &a.GPUs[0].UUID, &a.GPUs[0].Model} {
			*text += evil
		}
		if a.Mode += evil; id == 4 { // two pools: their partitions are named
			a.Partition, a.Node = "b"+a.Partition, "b"+a.Node
		}
		list = append(list, a)
	}
	if err := d.PutAll(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	meters := []db.Meter{{UUID: "GPU-9" + evil, Node: "n9" + evil, Model: evil, TotalMiB: 40536, At: list[3].End}}
	if err := d.AddSamples(t.Context(), nil, meters); err != nil {
		t.Fatal(err)
	}
	d.Close()
	for i := range list { // sacct's lines end at \r, too
		list[i].Cluster, list[i].State = "east", "COMPLETED"
	}
	check := func(what, text string, bad ...string) {
		t.Helper()
		if !utf8.ValidString(text) {
			t.Errorf("%s is not UTF-8", what)
		}
		for _, bad := range append(bad, "\x1b", "\u009b", "\a", "\r", "\u202e", "\u200b", "secret", "train", "thesis") {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %q:\n%s", what, bad, text)
			}
		}
	}
	for _, source := range [][]string{{"--db", path}, {"--from", "slurmdbd", "--config", slurmdbd(t, list)}} {
		args := slices.Concat([]string{"forecast", "-S", "2026-01-01", "--repeats", "1"}, source)
		page := filepath.Join(t.TempDir(), "page.html")
		text := output(t, append(args, "--html", page)...)
		if !strings.Contains(text, "partition gpu<script>a&") {
			t.Errorf("no name of a partition:\n%s", text)
		}
		check("text", text)
		check("JSON", output(t, append(args, "--json")...), "<script")
		check("parsable", output(t, append(args, "-P")...), "<script")
		html, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		check("the page", strings.Replace(string(html), "<html", "", 1), "<script", "a&\"")
		for _, wrong := range [][]string{{"--nodes", "3"}, {"--gpu-mem", "2G"}, {"-S", "2030-01-01"}} {
			if err := execute(append(args, wrong...), &bytes.Buffer{}); err != nil {
				check(strings.Join(wrong, " "), err.Error())
			}
		}
	}
}
