// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var carmaToml = `
[partition.gpu]
default = true
share = true
gpus_per_node = 4
gpu_mem_mib = 40536

[partition.slots]
share = true
gpus_per_node = 4
gpu_mem_mib = 40536
time_slot = "4h"
`

// ask puts the fields together as the shim does.
func ask(partition, perNode, script string) []byte {
	return []byte(strings.Join([]string{partition, perNode, "", "", "", "4294967294", "4294967294", "4294967294",
		"4294967294", "1000", "4294967294", "4294967294", "0", "0", "", "", "", "", "", script}, "\x00"))
}

func configure(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carma.toml")
	if err := os.WriteFile(path, []byte(carmaToml), 0o644); err != nil {
		t.Fatal(err)
	}
	old := site
	t.Cleanup(func() { site = old })
	site = siteFile{path: path, gresPrefix: "gres:"}
	if err := site.load(); err != nil {
		t.Fatal(err)
	}
}

// With mode = "advise" an answer has nothing that changes a job; with mode = "observe" there is none.
func TestAdvise(t *testing.T) {
	defer func(text string) { carmaToml = text }(carmaToml)
	asks := []struct{ name, ask, want string }{
		{"a figure", string(ask("gpu", "gres:gpu:1", "#!/bin/sh\n#CARMA mem=10G\n")),
			`comment carma-advice={"v":1,"mode":"shared","method":"user","gpus":1,"est_mib":10240,"reserve_mib":10240,` +
				`"key":"6457f804971a3061"}` + "\n"},
		{"a line that is not read", string(ask("gpu", "gres:gpu:1", "#CARMA off\n# CARMA mem=10G\n")),
			`tell carma: line 2: "# CARMA mem=10G" is not read: #CARMA and a blank begin a line` + "\n" +
				`comment carma-advice={"v":1,"mode":"off","method":"none","gpus":1,"reserve_mib":40536,"note":"line 2: ` +
				`'# CARMA mem=10G' is not read: #CARMA and a blank begin a line","key":"6457f804971a3061","unread":2}` + "\n"},
		{"a wrong line", string(ask("gpu", "gres:gpu:1", "#CARMA mem=10X\n")),
			"tell carma: sharing would refuse this job: line 1: mem=10X: not a size; write mem=12G\n" +
				`comment carma-advice={"v":1,"note":"line 1: mem=10X: not a size; write mem=12G"}` + "\n"},
		{"too many GPUs", string(ask("gpu", "gres:gpu:5", "#CARMA on\n")),
			"tell carma: sharing would refuse this job: partition gpu: the job can get 5 GPUs on one node, but a node has 4; " +
				"ask for at most 4 per node\n" + `comment carma-advice={"v":1,"note":"partition gpu: the job can get 5 GPUs on ` +
				`one node, but a node has 4; ask for at most 4 per node"}` + "\n"},
		{"a time slot, a signal, an --extra", strings.Replace(string(ask("slots", "gres:gpu:1",
			"#CARMA signal=USR1@300 requeue=timeout\n")), "4294967294\x000\x000\x00", "4294967294\x000\x001\x00rack=7", 1),
			`comment carma-advice={"v":1,"mode":"exclusive","method":"none","gpus":1,"reserve_mib":40536,` +
				`"key":"6457f804971a3061"}` + "\n"},
		{"variables", string(ask("gpu", "gres:gpu:1", "#CARMA on vars=SIZE\n")), "vars SIZE\n"},
		{"no GPU", string(ask("gpu", "", "#CARMA on\n")), ""},
		{"another partition", string(ask("cpu", "gres:gpu:1", "#CARMA on\n")), ""},
	}
	text := carmaToml
	for _, mode := range []string{"advise", "observe"} {
		carmaToml = "mode = \"" + mode + "\"\n" + text
		configure(t)
		for _, c := range asks {
			if mode == "observe" {
				c.want = ""
			}
			if got := answerTo([]byte(c.ask)); got != c.want {
				t.Errorf("%s, %s:\ngot\n%swant\n%s", mode, c.name, got, c.want)
			}
		}
		if site.managed != "" || site.recovery != "" || site.whole != "" {
			t.Errorf("%s: the shim keeps %q, %q, %q", mode, site.managed, site.recovery, site.whole)
		}
	}
}

func TestAnswer(t *testing.T) {
	configure(t)
	for _, c := range []struct{ name, ask, want string }{
		{"annotate", string(ask("gpu", "gres:gpu:1", "#!/bin/sh\n#CARMA mem=10G\n")),
			`tres_per_node gres:gpu:1,gres:carma:10240
env V=1
env MODE=shared
env METHOD=user
env GPUS=1
env MEM_MIB=10240
env FULL=40536
env KEY=6457f804971a3061
env EST_MIB=10240
time SUBMIT
comment carma={"v":1,"mode":"shared","method":"user","gpus":1,"est_mib":10240,"reserve_mib":10240}
`},
		{"a line that is not read", string(ask("gpu", "gres:gpu:1", "#CARMA off\n# CARMA mem=10G\n")),
			`tres_per_node gres:gpu:1,gres:carma:40536
tell carma: line 2: "# CARMA mem=10G" is not read: #CARMA and a blank begin a line
env V=1
env MODE=off
env METHOD=none
env GPUS=1
env MEM_MIB=40536
env FULL=40536
env KEY=6457f804971a3061
env UNREAD=2
time SUBMIT
comment carma={"v":1,"mode":"off","method":"none","gpus":1,"reserve_mib":40536,"note":"line 2: '# CARMA mem=10G' is not read: #CARMA and a blank begin a line"}
`},
		{"time slot", strings.Replace(string(ask("slots", "gres:gpu:1", "#CARMA signal=USR1@300\n")), "1000\x004294967294",
			"1000\x001440", 1),
			`tres_per_node gres:gpu:1,gres:carma:40536
time_limit 240
signal 10 300 steps
tell carma: jobs of partition slots run in slots of 4:00:00: the time limit is cut to that; with #CARMA requeue=timeout the job is requeued after each
env V=1
env MODE=exclusive
env METHOD=none
env GPUS=1
env MEM_MIB=40536
env FULL=40536
env KEY=6457f804971a3061
env LEARN=1
time SUBMIT
comment carma={"v":1,"mode":"exclusive","method":"none","gpus":1,"reserve_mib":40536}
`},
		{"time slots", string(ask("slots", "gres:gpu:1", "#CARMA signal=B:USR1 requeue=timeout\n")),
			`tres_per_node gres:gpu:1,gres:carma:40536
time_limit 240
signal 10 60 batch
requeue 1
env V=1
env MODE=exclusive
env METHOD=none
env GPUS=1
env MEM_MIB=40536
env FULL=40536
env KEY=6457f804971a3061
env LEARN=1
env REQUEUE=timeout
time SUBMIT
comment carma={"v":1,"mode":"exclusive","method":"none","gpus":1,"reserve_mib":40536}
`},
		{"an --extra", strings.Replace(string(ask("gpu", "gres:gpu:1", "#CARMA off\n")), "4294967294\x000\x000\x00",
			"4294967294\x000\x001\x00rack=7", 1),
			`tres_per_node gres:gpu:1,gres:carma:40536
extra (rack=7)&(carma1>=40536|carma1u1000>=40536)
env V=1
env MODE=off
env METHOD=none
env GPUS=1
env MEM_MIB=40536
env FULL=40536
env KEY=6457f804971a3061
env COUNTED=1
time SUBMIT
comment carma={"v":1,"mode":"off","method":"none","gpus":1,"reserve_mib":40536}
`},
		{"variables", string(ask("gpu", "gres:gpu:1", "#CARMA on vars=SIZE,MODEL\n")), "vars MODEL,SIZE\n"},
		{"their values", strings.Replace(string(ask("gpu", "gres:gpu:1", "#CARMA vars=MODEL\n")), "\x00\x00#",
			"MODEL=a\nenv V=1\x1b[2J\x1f\x00\x00#", 1),
			`tres_per_node gres:gpu:1,gres:carma:40536
env V=1
env MODE=exclusive
env METHOD=none
env GPUS=1
env MEM_MIB=40536
env FULL=40536
env KEY=1f3a1330f3184a73
env LEARN=1
time SUBMIT
comment carma={"v":1,"mode":"exclusive","method":"none","gpus":1,"reserve_mib":40536}
`},
		{"not ours", string(ask("cpu", "gres:gpu:1", "#CARMA mem=banana\n")), ""},
		{"refuse", string(ask("gpu", "gres:gpu:1", "#CARMA mem=banana\n")),
			"refuse carma: line 1: mem=banana: not a size; write mem=12G\n"},
		{"take a booking away", string(ask("gpu", "gres:carma:5", "")), "tres_per_node \n"},
		{"an --extra that is a note", strings.Replace(string(ask("gpu", "gres:gpu:1", "#CARMA off\n")),
			"4294967294\x000\x000\x00", "4294967294\x000\x001\x00for my group", 1),
			"refuse carma: partition gpu: --extra \"for my group\" is no constraint on a node's Extra; write KEY=VALUE, " +
				"with & or |, and parentheses where both stand side by side\n"},
		{"a line break in a list", string(ask("gpu", "gres:gpu:1\nenv V=1", "")),
			"leave libcarma: control character in field 1 of ask\n"},
		{"another in the partition", string(ask("gpu\x1b[2J", "gres:gpu:1", "")),
			"leave libcarma: control character in field 0 of ask\n"},
		{"behind a number", strings.Replace(string(ask("gpu", "", "")), "1000", "1000\n", 1),
			"leave libcarma: control character in field 9 of ask\n"},
		{"a list longer than any", string(ask("gpu", strings.Repeat("gres:gpu:1,", 3000), "")),
			"refuse carma: the lists of GRES and partitions are longer than 16 KiB; shorten them\n"},
		{"UTF-8", string(ask("größe", "gres:gpu:1", "")), ""},
		{"GPUs of the job", strings.Replace(string(ask("gpu", "gres:gpu:1", "#CARMA off\n")), "gres:gpu:1\x00\x00",
			"\x00gres:gpu:1\x00", 1),
			`tres_per_node gres:gpu:1,gres:carma:40536
tres_per_job 
env V=1
env MODE=off
env METHOD=none
env GPUS=1
env MEM_MIB=40536
env FULL=40536
env KEY=6457f804971a3061
env NODES=fixed
time SUBMIT
comment carma={"v":1,"mode":"off","method":"none","gpus":1,"reserve_mib":40536}
`},
		{"too few fields", "gpu\x00gres:gpu:1\x00", "leave libcarma: ask has 2 of 19 fields\n"},
		{"nothing", "", "leave libcarma: ask has 0 of 19 fields\n"},
		{"no number", strings.Replace(string(ask("gpu", "", "")), "4294967294", "x", 1),
			"leave libcarma: read field 5 of ask: strconv.ParseUint: parsing \"x\": invalid syntax\n"},
	} {
		if got := answerTo([]byte(c.ask)); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestAnswerWithoutConfiguration(t *testing.T) {
	old := site
	defer func() { site = old }()
	site = siteFile{path: "/nonexistent/carma.toml"}
	if err := site.load(); err == nil {
		t.Error("a missing file was read")
	}
	if got := answerTo(ask("gpu", "gres:gpu:1", "")); !strings.HasPrefix(got, "leave no usable carma.toml") {
		t.Errorf("got %q", got)
	}
}

// A key that becomes readable, as where it is copied to a controller later, needs no restart.
func TestKeyThatComesLater(t *testing.T) {
	configure(t)
	key := filepath.Join(t.TempDir(), "key")
	old := strings.NewReplacer("[slurm]\n", "[slurm]\nuser_key = \""+key+"\"\n").Replace(carmaToml)
	if old == carmaToml {
		old += "\n[slurm]\nuser_key = \"" + key + "\"\n"
	}
	if err := os.WriteFile(site.path, []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := site.reload(); err == nil || !strings.Contains(err.Error(), "user_key") {
		t.Errorf("without a key: %v", err)
	}
	if err := site.reload(); err != nil {
		t.Errorf("said twice: %v", err)
	}
	if err := os.WriteFile(key, []byte("0123456789abcdef"), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := site.reload(); err != nil || string(site.site.Tags.Secret) != "0123456789abcdef" {
		t.Errorf("with a key: %v, secret %q", err, site.site.Tags.Secret)
	}
}

func TestReloadKeepsTheLastGoodConfiguration(t *testing.T) {
	configure(t)
	write := func(text string) {
		if err := os.WriteFile(site.path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		later := time.Now().Add(time.Duration(len(text)) * time.Second)
		if err := os.Chtimes(site.path, later, later); err != nil {
			t.Fatal(err)
		}
	}
	write("[smact]\nmax_pct = 0\n")
	if err := site.reload(); err == nil || !strings.Contains(err.Error(), "the previous configuration stays in force") {
		t.Errorf("got %v", err)
	}
	if got := answerTo(ask("gpu", "gres:gpu:1", "")); !strings.HasPrefix(got, "tres_per_node") {
		t.Errorf("after a bad reload: %q", got)
	}
	write("\n")
	if err := site.reload(); err == nil || !strings.Contains(err.Error(), "empty; the previous configuration stays") {
		t.Errorf("an empty file: %v", err)
	}
	if got := answerTo(ask("gpu", "gres:gpu:1", "")); !strings.HasPrefix(got, "tres_per_node") {
		t.Errorf("after an empty file: %q", got)
	}
	if err := os.Chmod(site.path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := site.reload(); err == nil {
		t.Error("a file whose mode has changed was not read again")
	}
	if err := site.reload(); err != nil {
		t.Errorf("the same file was read again: %v", err)
	}
	write(strings.Replace(carmaToml, "partition.gpu", "partition.other", 1))
	if err := site.reload(); err != nil {
		t.Fatal(err)
	}
	if got := answerTo(ask("gpu", "gres:gpu:1", "")); got != "" {
		t.Errorf("after a reload without the partition: %q", got)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(ask("gpu", "gres:gpu:1", "#CARMA mem=10G\n"))
	f.Add(ask("", "gres:gpu:2,gres:carma:1", "#!/bin/sh\n#CARMA smact=3\n"))
	f.Add(ask("gpu", "gres:gpu:1", "#CARMA vars=A,B\n"))
	f.Add(bytes.Replace(ask("gpu", "gres:gpu:1", ""), []byte("4294967294\x000\x000\x00"),
		[]byte("4294967294\x000\x001\x00"), 1))
	path := filepath.Join(f.TempDir(), "carma.toml")
	if err := os.WriteFile(path, []byte(carmaToml), 0o644); err != nil {
		f.Fatal(err)
	}
	site = siteFile{path: path, gresPrefix: "gres:"}
	if err := site.load(); err != nil {
		f.Fatal(err)
	}
	words := []string{"leave", "refuse", "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "env",
		"time", "comment", "time_limit", "signal", "requeue", "tell", "vars", "extra"}
	f.Fuzz(func(t *testing.T, in []byte) {
		answer := answerTo(in)
		if answer == "" {
			return
		}
		for line := range strings.SplitSeq(strings.TrimSuffix(answer, "\n"), "\n") {
			word, _, ok := strings.Cut(line, " ")
			if !ok || !slices.Contains(words, word) || strings.ContainsRune(line, 0) {
				t.Fatalf("line %q of the answer to %q", line, in)
			}
		}
	})
}

// slurmctld must not get a network, processes, a database or NVML with the
// library.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, banned := range []string{"database/sql", "net", "net/http", "os/exec", "os/signal", "github.com/NVIDIA/",
			"github.com/mattn/", "github.com/spf13/pflag", "golang.org/x/sys"} {
			if dep == banned || strings.HasSuffix(banned, "/") && strings.HasPrefix(dep, banned) {
				t.Errorf("libcarma depends on %s", dep)
			}
		}
	}
}

// The shim keeps users out of what carma.toml names as recovery, as last read well.
func TestRecoveryPartitions(t *testing.T) {
	configure(t)
	if site.recovery != "" {
		t.Errorf("none is named, got %q", site.recovery)
	}
	load := func(text string) {
		if err := os.WriteFile(site.path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_ = site.load()
	}
	const some = "[partition.%s]\ngpus_per_node = 4\ngpu_mem_mib = 40536\n"
	load(fmt.Sprintf(some+"recovery = \"z\"\n"+some+"recovery = \"c\"\n"+some+some+"recovery = \"z\"\n"+some, "a", "b",
		"c", "d", "z"))
	if site.recovery != "c,z" || len(strings.Split(site.managed, ",")) < 4 {
		t.Errorf("got %q of %q", site.recovery, site.managed)
	}
	load("nonsense")
	if site.recovery != "c,z" {
		t.Errorf("after a bad file: %q", site.recovery)
	}
}
