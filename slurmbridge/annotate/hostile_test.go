// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"strings"
	"testing"

	"carma/estimator"
	"carma/estimator/method"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
)

// hostileScripts take longest to read: a megabyte of print(model), and as many
// lines of a header as are read at all.
func hostileScripts() map[string]string {
	layer := "#CARMA| (l): Linear(in_features=512, out_features=512, bias=True)\n"
	return map[string]string{
		"print(model)": "#CARMA batch=32\n#CARMA| Net(\n" + strings.Repeat(layer, 1<<20/len(layer)) + "#CARMA| )\n",
		"summary":      "#CARMA batch=32\n" + strings.Repeat("#CARMA|x\n", 1<<15-10),
		"rows": "#CARMA batch=32\n#CARMA| Layer (type)\n" +
			strings.Repeat("#CARMA|Conv2d-1 [-1, 64, 112, 112] 9,408\n", 2900),
		"header": "#CARMA on\n" + strings.Repeat("#\n", 1<<20-10),
		"blank":  strings.Repeat("\n", 2<<20),
		"words":  "#CARMA on\n" + strings.Repeat("# "+strings.Repeat("x=1 ", 2000)+"\n", 250),
		"body":   "#CARMA on\n:\n" + strings.Repeat("x\n", 1<<20),
	}
}

// A megabyte of model is accepted: the job runs alone, and its AdminComment says why.
func TestHugeSummary(t *testing.T) {
	j := job(hostileScripts()["print(model)"])
	j.TRES.PerNode = "gres:gpu:1"
	s := site()
	s.Estimator, s.Estimate = "analytic", estimator.ByMethod
	a, err := s.Annotate(j)
	const why = "it is too large: more than 256 KiB; print less of the model or give mem="
	if err != nil || a.Mode != jobenv.ModeExclusive || a.Method != method.None || !strings.Contains(a.Note, why) ||
		!strings.Contains(string(admincomment.AppendJob(nil, &a.Carma, a.Note)), why) {
		t.Errorf("%+v, %v", a, err)
	}
	if a.Key != 0 || strings.Contains(string(a.AppendEnv(nil, "", " ")), "KEY") {
		t.Errorf("key %v", a.Key)
	}
}

// BenchmarkHostileScript is the time of such a submission in libcarma: 10 ms is the
// most, on a slow core. What bounds it is counted.
func BenchmarkHostileScript(b *testing.B) {
	s := site()
	s.Estimator, s.Estimate = "analytic", estimator.ByMethod
	for name, script := range hostileScripts() {
		b.Run(name, func(b *testing.B) {
			j := job(script)
			j.TRES.PerNode = "gres:gpu:1"
			for b.Loop() {
				_, _ = s.Annotate(j)
			}
		})
	}
}
