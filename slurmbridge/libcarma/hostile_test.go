// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"

	"carma/contrib/threadclock"
	"carma/estimator/summary"
)

// longSummary are the #CARMA lines of a text that costs the estimator much: rows that may be
// read in two ways, of several models, below what looks like other tools' output.
func longSummary(rows, models int, head string) string {
	var b strings.Builder
	b.WriteString("#CARMA optim=adadelta grad_ckpt=1 batch=32 seq=512 input=3x224x224\n" + head)
	for i := range rows {
		if i%(rows/models) == 0 {
			b.WriteString("#CARMA|Layer (type:depth-idx)\n#CARMA|Net [32, 9, 64] --\n")
		}
		kind := [...]string{"Conv2d", "ReLU", "Linear", "Softmax", "LayerNorm", "Block", "Dropout"}[i%7]
		fmt.Fprintf(&b, "#CARMA|├─%-30s [%d, %d, 64] %d\n", kind+": 1-1", 32+i%2*33, 100+i*37%3000, i%3*1000)
	}
	return b.String()
}

// TestHostileAskTime shows what a submission costs that is the dearest in each of its parts:
// summary, body, lists, arguments.
func TestHostileAskTime(t *testing.T) {
	configure(t)
	const most, withKey = summary.MaxRows, 508 << 10
	body := func(script string) string {
		script += ":\n" + strings.Repeat("x\n", 1<<15-most-100)
		return script + strings.Repeat("y", withKey-len(script)) + "\n"
	}
	unit := "a:b:c:d:e:f:g,carma:1,"
	list := strings.Repeat(unit, (maxFields-7500)/4/len(unit))
	work := map[string]func(){}
	for name, script := range map[string]string{
		"words":       "#CARMA on\n:\n#CARMA" + strings.Repeat(" x", withKey/2),
		"one model":   body(longSummary(most/2-10, 1, "")),
		"models":      body(longSummary(most-10, 8, "")),
		"unread":      "#CARMA on\n:\n" + strings.Repeat("#CARMA x\n", 2<<20/9),
		"unread word": "#CARMA on\n:\n" + strings.Repeat("#CARMA \u00a0", 2<<20/9),
		"three tools": body(longSummary(most-10, 1, "#CARMA|A-1 [-1, 2] 3\n#CARMA|Net(\n")),
	} {
		in := []byte(strings.Join([]string{"gpu,slots", list + "gpu:1", list, list, list, "4294967294", "4294967294",
			"4294967294", "4294967294", "1000", "4294967294", "4294967294", "0", "0", "", "on" + strings.Repeat(" ,", 511),
			strings.Repeat("x", 1025), "", strings.Repeat("x", 4000), script}, "\x00"))
		if got := answerTo(in); !strings.HasPrefix(got, "tres_per_node ") {
			t.Errorf("%s: %.200q", name, got)
		}
		work[name] = func() {
			site.estimates = memory{} // each text is another one
			answerTo(in)
		}
	}
	threadclock.Judge(t, work)
}
