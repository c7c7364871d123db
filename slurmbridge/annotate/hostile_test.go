// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"fmt"
	"strings"
	"testing"

	"carma/contrib/threadclock"
	"carma/estimator"
	"carma/estimator/method"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/jobenv"
)

// hostileScripts take longest to read: a megabyte of print(model), as many lines of a header
// as are read at all, and words where nobody counted them.
func hostileScripts() map[string]string {
	layer := "#CARMA| (l): Linear(in_features=512, out_features=512, bias=True)\n"
	const most, withKey = 2<<20 - 100, 508 << 10 // of a header, and of what has a history key
	fill := func(word string, bytes int) string { return strings.Repeat(word, bytes/len(word)) }
	var distinct strings.Builder
	for i := range withKey / 6 {
		fmt.Fprintf(&distinct, "%d ", i*7919%100000)
	}
	return map[string]string{
		"print(model)": "#CARMA batch=32\n#CARMA| Net(\n" + fill(layer, 1<<20) + "#CARMA| )\n",
		"summary":      "#CARMA batch=32\n" + strings.Repeat("#CARMA|x\n", 1<<15-10),
		"rows": "#CARMA batch=32\n#CARMA| Layer (type)\n" +
			strings.Repeat("#CARMA|Conv2d-1 [-1, 64, 112, 112] 9,408\n", 2900),
		"header":             "#CARMA on\n" + fill("#\n", most),
		"blank":              strings.Repeat("\n", most),
		"words of others":    "#CARMA on\n" + strings.Repeat("# "+strings.Repeat("x=1 ", 2000)+"\n", 250),
		"body":               "#CARMA on\n:\n" + fill("x\n", most),
		"body with a key":    "#CARMA on\n:\n" + fill("x\n", 60<<10),
		"words":              "#CARMA on\n#CARMA " + fill("x ", withKey),
		"words behind":       "#CARMA on\n:\n#CARMA " + fill("x ", withKey),
		"distinct behind":    "#CARMA on\n:\n#CARMA " + distinct.String(),
		"lines behind":       "#CARMA on\n:\n" + fill("#CARMA x y\n", withKey/2),
		"one word behind":    "#CARMA on\n:\n#CARMA " + fill("\x01\xff", withKey),
		"dimensions":         "#CARMA input=" + fill("x", most),
		"digits":             "#CARMA slowdown=1." + fill("3", most),
		"hexadecimal digits": "#CARMA slowdown=0x" + fill("f", most),
		"units":              "#CARMA mem=" + fill("K", most),
		"blanks":             "#CARMA" + fill(" ", most),
		"wide blanks":        "#CARMA" + fill("\u3000", most),
		"wide blanks alone":  "#CARMA on\n" + fill("\u3000", most),
		"lines of them":      "#CARMA on\n" + fill(fill("\u3000", 300)+"\n", most),
		"blanks behind":      "#CARMA on\n:" + fill(" \r", withKey) + "x\n",
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

// TestHostileScriptTime shows what such a submission costs libcarma, also where a wrong line
// counts as none: 10 ms of a thread's time is the most. What bounds the cost is counted.
func TestHostileScriptTime(t *testing.T) {
	work := map[string]func(){}
	for _, ignore := range []bool{false, true} {
		s := site()
		s.Estimator, s.Estimate, s.IgnoreBad = "analytic", estimator.ByMethod, ignore
		for name, script := range hostileScripts() {
			j := job(script)
			j.TRES.PerNode = "gres:gpu:1"
			work[fmt.Sprintf("%s, ignored %v", name, ignore)] = func() { _, _ = s.Annotate(j) }
		}
	}
	threadclock.Judge(t, work)
}
