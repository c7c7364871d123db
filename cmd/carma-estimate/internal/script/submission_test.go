// SPDX-License-Identifier: Apache-2.0

package script

import (
	"strings"
	"testing"

	"carma/estimator"
	"carma/estimator/history"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// carma-estimate takes the variables of vars= from its own environment, as sbatch does.
func TestJudgeVars(t *testing.T) {
	where, err := LoadSite("/nonexistent", false, Ask{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	key := func(model string) history.Key {
		t.Setenv("MODEL", model)
		s, d, err := Judge(Ask{Carma: "vars=MODEL"}, where, []byte("#!/bin/sh\n#SBATCH -G1\n#CARMA on\ntrue\n"))
		if err != nil || s.Refused != nil || len(d.Vars) != 1 || !s.Learn {
			t.Fatalf("%+v, %v, learns %v, %v", d, s.Refused, s.Learn, err)
		}
		return s.Key
	}
	small, large, none := key("small"), key("large"), key("")
	if small == large || small == none || small != key("small") {
		t.Errorf("small %v, large %v, none %v", small, large, none)
	}
}

// What becomes of a script, and why, where there is no carma.toml: the example partition.
func TestJudge(t *testing.T) {
	where, err := LoadSite("testdata/none.toml", false, Ask{}, estimator.ByMethod)
	if err != nil || where.Path != "" {
		t.Fatal(where.Path, err)
	}
	for name, c := range map[string]struct {
		lines     string
		ask       Ask
		partition string
		gpus      int
		why       string // or why sbatch fails
	}{
		"no GPU":             {"#CARMA on\n", Ask{}, "example", 0, "the job asks for no GPU"},
		"says off":           {"#SBATCH -G1\n#CARMA off\n", Ask{}, "example", 1, "line 3 says off"},
		"nothing is known":   {"#SBATCH -G1\n#CARMA on\n", Ask{}, "example", 1, "nothing says how much memory it takes"},
		"shared":             {"#SBATCH -G1\n#CARMA mem=7G\n", Ask{}, "example", 1, ""},
		"the option wins":    {"#SBATCH -G1 -p a\n#CARMA mem=7G\n", Ask{Partition: "b", GPUs: 2}, "b", 2, ""},
		"several partitions": {"#SBATCH -G1 -p a,b\n#CARMA mem=7G\n", Ask{}, "a,b", 1, ""},
		"--carma":            {"#SBATCH -G1\n#CARMA off\n", Ask{Carma: "on,mem=7G", CarmaEnv: "off"}, "example", 1, ""},
		"CARMA": {"#SBATCH -G1\n#CARMA mem=7G\n", Ask{CarmaEnv: "off"}, "example", 1,
			"the variable CARMA says off"},
		"#SBATCH --carma": {"#SBATCH -G1 --carma=off\n", Ask{CarmaEnv: "mem=7G"}, "example", 1, "--carma says off"},
		"eight GPUs":      {"#SBATCH -N2 --gpus-per-node=8\n#CARMA mem=7G\n", Ask{}, "example", 8, ""},
		"too many GPUs": {"#SBATCH --gres=gpu:32\n", Ask{}, "example", 0,
			"carma: partition example: the job can get 32 GPUs on one node, but a node has 16"},
		"eight GPUs, a wrong key": {"#SBATCH --gres=gpu:8\n#CARMA mem=banana\n", Ask{}, "example", 0,
			"carma: line 3: mem=banana"},
		"a wrong option": {"#SBATCH -G1\n", Ask{Carma: "x"}, "example", 0, "carma: --carma: x: unknown key"},
		"a wrong key":    {"#SBATCH -G1\n#CARMA mem=banana\n", Ask{}, "example", 0, "carma: line 3: mem=banana"},
	} {
		s, _, _ := Judge(c.ask, where, []byte("#!/bin/sh\n"+c.lines))
		why := s.Why
		if s.Refused != nil {
			why = s.Refused.Error()
		}
		if s.Partition != c.partition || s.GPUs != c.gpus || !strings.HasPrefix(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%s: partition %s, %d GPUs, %q", name, s.Partition, s.GPUs, why)
		}
	}
	if _, err := LoadSite("testdata/none.toml", true, Ask{}, nil); err == nil {
		t.Error("a carma.toml that has to be is not there, and that is no error")
	}
}

// A job that names several partitions is judged by what fits in all of CARMA's, whichever
// stands first.
func TestJudgeSeveralPartitions(t *testing.T) {
	where, err := LoadSite("testdata/none.toml", false, Ask{}, estimator.ByMethod)
	if err != nil {
		t.Fatal(err)
	}
	large, alone := ExamplePartition, ExamplePartition
	large.GPUMemMiB, alone.Share = 2*large.GPUMemMiB, false
	where.Path = "carma.toml"
	where.Partitions = map[string]config.Partition{"small": ExamplePartition, "large": large, "alone": alone}
	for names, c := range map[string]struct {
		memMiB int64
		mode   jobenv.Mode
		why    string
	}{
		"large":       {large.GPUMemMiB, jobenv.ModeShared, ""},
		"large,small": {ExamplePartition.GPUMemMiB, jobenv.ModeShared, ""},
		"other,small": {ExamplePartition.GPUMemMiB, jobenv.ModeShared, ""},
		"small,alone": {ExamplePartition.GPUMemMiB, jobenv.ModeExclusive,
			"not all of the partitions small,alone share their GPUs"},
		"other,none": {0, "", "none of the partitions other,none is in carma.toml; CARMA manages alone, large, small"},
	} {
		s, _, _ := Judge(Ask{BaseMiB: 500}, where, []byte("#!/bin/sh\n#SBATCH -G1 -p "+names+"\n#CARMA mem=7G\n"))
		if s.Part.GPUMemMiB != c.memMiB || s.Mode != c.mode || s.Why != c.why || c.memMiB > 0 && s.Part.BaseCuDNNMiB != 500 {
			t.Errorf("%s: %s, %q, %+v", names, s.Mode, s.Why, s.Part)
		}
	}
	if where.Partitions["small"].BaseCuDNNMiB == 500 {
		t.Error("a judgement changed the site")
	}
}
