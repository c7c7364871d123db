// SPDX-License-Identifier: Apache-2.0

package script

import (
	"strings"
	"testing"

	"carma/estimator"
)

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
		"several partitions": {"#SBATCH -G1 -p a,b\n", Ask{}, "a,b", 0, "several partitions are named"},
		"a wrong key":        {"#SBATCH -G1\n#CARMA mem=banana\n", Ask{}, "example", 0, "carma: line 3: mem=banana"},
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
