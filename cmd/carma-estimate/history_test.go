// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"carma/estimator"
	"carma/estimator/history"
)

// What slurmctld will know of a script from earlier runs, its caller's own, is said.
func TestHistory(t *testing.T) {
	golden, err := filepath.Abs("testdata/golden")
	if err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile("testdata/carma.toml")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/job/on.sh")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, text []byte) {
		t.Helper()
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("on.sh", script)
	write("carma.toml", append(conf, "\n[history]\nfile = \""+dir+"/history\"\n"...))
	run := func(args ...string) []byte {
		t.Helper()
		var out, errs bytes.Buffer
		p := program{in: strings.NewReader(""), out: &out, errs: &errs, estimate: fixed}
		if err := p.run(append([]string{"on.sh", "--config=carma.toml"}, args...)); err != nil || errs.Len() > 0 {
			t.Errorf("%v %s", err, errs.String())
		}
		return out.Bytes()
	}
	if out := run(); bytes.Contains(out, []byte("history")) {
		t.Errorf("before there is a file:\n%s", out)
	}
	ask := history.Ask{UID: uint32(os.Getuid()), Script: script, GPUs: 1, FullMiB: 40536}
	mine := history.KeyOf(ask)
	ask.UID++
	other := history.KeyOf(ask)
	values := map[history.Key]history.Value{
		mine:  {PeakMiB: 14336, MeanMiB: 14000, SpreadMiB: 200, RunS: 127, SMActPct: 41.3, Runs: 3},
		other: {PeakMiB: 9, RunS: 9, Runs: 9},
	}
	ask.UID--
	ask.Args = "resnet50\x1f--lr\x1f3\x1f" // as the shim writes them (slurmbridge/shim, join_args)
	called := history.KeyOf(ask)
	values[called] = history.Value{PeakMiB: 7000, RunS: 60, Runs: 1}
	write("history", history.Make([]history.Key{mine, other, called}, values, nil))
	if out := run("--", "resnet50", "--lr", "3"); !bytes.Contains(out,
		[]byte("history    1 run, peak 7000 MiB, 60 s each\n")) {
		t.Errorf("with arguments:\n%s", out)
	}
	compare(t, filepath.Join(golden, "history.txt"), run())
	apart := values[mine]
	apart.SpreadMiB = 10000
	write("history", history.Make([]history.Key{mine}, map[history.Key]history.Value{mine: apart}, nil))
	if out := run(); !bytes.Contains(bytes.Join(bytes.Fields(out), []byte(" ")),
		[]byte("127 s each; the runs differ, and the largest is booked: vars= or job= tells them apart")) {
		t.Errorf("of runs that differ:\n%s", out)
	}
	write("history", history.Make([]history.Key{mine, other, called}, values, nil))
	compare(t, filepath.Join(golden, "history.json"), run("--json"))
	write("history", history.Make([]history.Key{other}, values, nil))
	if out := run(); bytes.Contains(out, []byte("history")) {
		t.Errorf("another user's runs:\n%s", out)
	}
	write("history", []byte("CARMAHI1 and no more"))
	if out := run(); !bytes.Contains(out, []byte("history    it is not a history file")) {
		t.Errorf("a spoiled file:\n%s", out)
	}
}

// The example of --cases in the user's page is what the program answers.
func TestCasesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../docs/user.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^(\{"id": .*\})\n(\{"id":.*),"us":.*\}$`).FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/user.md has no case and answer")
	}
	t.Chdir("../../estimator/testdata")
	var out bytes.Buffer
	p := program{in: bytes.NewReader(append(found[1], '\n')), out: &out, estimate: estimator.ByMethod}
	if err := p.run([]string{"--cases=-"}); err != nil || !bytes.HasPrefix(out.Bytes(), found[2]) {
		t.Errorf("%v, %s\nwant %s", err, out.Bytes(), found[2])
	}
}
