// SPDX-License-Identifier: Apache-2.0

package directive

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

func ptr[T any](v T) *T { return &v }

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         Directive
	}{
		{"no script", "", Directive{}},
		{"no directive", "#!/bin/sh\n#SBATCH -p gpu\necho\n", Directive{}},
		{"on", "#!/bin/sh\n#CARMA on\n", Directive{Present: true}},
		{"bare", "#!/bin/sh\n#CARMA\n", Directive{Present: true}},
		{"off", "#!/bin/sh\n#CARMA off\n", Directive{Present: true, Off: true}},
		{"mem", "#!/bin/sh\n#SBATCH -p gpu\n\n#CARMA mem=12G\n", Directive{Present: true, MemMiB: 12288}},
		{"several keys on a line and a comment", "#CARMA mem=1.5GiB batch=32   seq=128 # and a note mem=9G\n",
			Directive{Present: true, MemMiB: 1536, Batch: 32, Seq: 128}},
		{"several lines", "#CARMA optim=adamw_hf foreach=0\n# a comment\n#CARMA precision=bf16 parallel=ddp " +
			"grad_ckpt=1\n#CARMA attn=sdpa dropout=0 dynamic_shapes=1 input=3x224x224 params=110M smact=60 policy=exclusive\n",
			Directive{Present: true, Optimizer: "adamw_hf", Foreach: ptr(false), Precision: "bf16", Parallel: "ddp",
				GradCkpt:  true,
				Attention: "sdpa", Input: [3]int{3, 224, 224}, Params: 110e6, Dropout: ptr(false), Dynamic: true, SMActPct: 60,
				Policy: PolicyExclusive}},
		{"signal", "#CARMA signal=USR1@300 requeue=timeout\n", Directive{Present: true,
			Signal: Signal{Number: 10, Seconds: 300}, Requeue: jobenv.RequeueTimeout}},
		{"no requeue", "#CARMA mem=12G requeue=no\n", Directive{Present: true, MemMiB: 12288, Requeue: jobenv.RequeueNo}},
		{"signal of the batch shell", "#CARMA signal=B:SIGTERM\n",
			Directive{Present: true, Signal: Signal{Number: 15, Seconds: 60, Batch: true}}},
		{"variables", "#CARMA vars=SIZE,_model2 on\n", Directive{Present: true, Vars: []string{"SIZE", "_model2"}}},
		{"variables in their order", "#CARMA vars=b,a,C\n", Directive{Present: true, Vars: []string{"C", "a", "b"}}},
		{"slowdown", "#CARMA slowdown=1.3\n", Directive{Present: true, MaxSlowdown: 1.3}},
		{"after the first command", "#!/bin/sh\necho\n#CARMA mem=12G\n", Directive{}},
		{"indented", " #CARMA mem=12G\n", Directive{}},
		{"after an indented comment", "#!/bin/sh\n\t# a note\n#CARMA mem=12G\n", Directive{Present: true, MemMiB: 12288}},
		{"after blanks that are none to sbatch", "\u3000\n#CARMA mem=12G\n", Directive{}},
		{"after blanks", "\v\f\r\n#CARMA mem=12G\n", Directive{Present: true, MemMiB: 12288}},
		{"another word", "#CARMAGEDDON mem=12G\n#CARMA:on\n", Directive{}},
		{"dos line ends", "#!/bin/sh\r\n#CARMA mem=12G\r\n", Directive{Present: true, MemMiB: 12288}},
		{"no newline at the end", "#CARMA mem=7", Directive{Present: true, MemMiB: 7}},
		{"summary", "#CARMA batch=8\n#CARMA| Layer (type)\n#CARMA|   Linear-1\n#CARMA|\necho\n#CARMA| late\n",
			Directive{Present: true, Batch: 8, Summary: []byte("Layer (type)\n  Linear-1\n\n")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse([]byte(c.script))
			if err != nil {
				t.Fatal(err)
			}
			if !got.Equal(c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestParseLineOfKey(t *testing.T) {
	d, err := Parse([]byte("#!/bin/sh\n\n#CARMA on\n#CARMA mem=12G\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d.Line("mem") != 4 || d.Line("on") != 3 || d.Line("batch") != 0 {
		t.Errorf("mem on line %d, on on %d, batch on %d", d.Line("mem"), d.Line("on"), d.Line("batch"))
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{"#!/bin/sh\n#CARMA mem=banana\n", "line 2: mem=banana: not a size; write mem=12G"},
		{"#CARMA mem=-1\n", "line 1: mem=-1: not a size; write mem=12G"},
		{"#CARMA mem=0\n", "line 1: mem=0: must be more than 0; write mem=12G"},
		{"#CARMA mem=900T\n", "line 1: mem=900T: more than any GPU has; write mem=12G"},
		{"#CARMA mem=1e3\n", "line 1: mem=1e3: not a size; write mem=12G"},
		{"#CARMA mem=\n", "line 1: mem=: not a size; write mem=12G"},
		{"#CARMA mem\n", "line 1: mem: needs a value; write mem=12G"},
		{"#CARMA on=1\n", "line 1: on=1: takes no value; write on"},
		{"#CARMA on\n#CARMA off\n", "line 2: off: already given on line 1"},
		{"#CARMA mem=1G mem=1G\n", "line 1: mem: already given on line 1"},
		{"#CARMA frobnicate=1\n", "line 1: frobnicate: unknown key; known are " + keyList},
		{"#CARMA batch=0\n", "line 1: batch=0: must be at least 1; write batch=32"},
		{"#CARMA batch=3.5\n", "line 1: batch=3.5: not a whole number; write batch=32"},
		{"#CARMA slowdown=1\n", "line 1: slowdown=1: must be above 1; a job that nobody may slow has policy=exclusive; " +
			"write slowdown=1.3"},
		{"#CARMA slowdown=1e9\n", "line 1: slowdown=1e9: not a number; write slowdown=1.3"},
		{"#CARMA slowdown=101\n", "line 1: slowdown=101: must be at most 100; write slowdown=1.3"},
		{"#CARMA smact=101\n", "line 1: smact=101: must be at most 100; write smact=60"},
		{"#CARMA input=1x3x224x224\n", "line 1: input=1x3x224x224: not the size of a sample: features, channels x " +
			"length, or channels x height x width; write input=3x224x224"},
		{"#CARMA optim=lion\n", "line 1: optim=lion: not one of adam, adamw, adamw_hf, adam8bit, sgd, sgdm, adagrad, " +
			"adadelta, rmsprop, adafactor; write optim=adamw"},
		{"#CARMA foreach=yes\n", "line 1: foreach=yes: neither 0 nor 1; write foreach=0 or foreach=1"},
		{"#CARMA params=many\n", "line 1: params=many: not a number of parameters; write params=110M"},
		{"#CARMA policy=fast\n", "line 1: policy=fast: not one of shared, exclusive, " +
			strings.Join(policy.Placements(), ", ") + "; write policy=shared or policy=exclusive"},
		{"#CARMA signal=KILL@60\n", "line 1: signal=KILL@60: not one of HUP, INT, QUIT, TERM, USR1, USR2; write " +
			"signal=USR1@300 or signal=B:USR1@300"},
		{"#CARMA signal=USR1@5m\n", "line 1: signal=USR1@5m: not a whole number; write signal=USR1@300 or signal=B:USR1@300"},
		{"#CARMA signal=R:USR1@99999\n", "line 1: signal=R:USR1@99999: not one of HUP, INT, QUIT, TERM, USR1, USR2; " +
			"write signal=USR1@300 or signal=B:USR1@300"},
		{"#CARMA signal=USR1@99999\n", "line 1: signal=USR1@99999: must be at most 65535; write signal=USR1@300 or " +
			"signal=B:USR1@300"},
		{"#CARMA requeue=always\n", "line 1: requeue=always: not one of timeout, no; write requeue=timeout or requeue=no"},
		{"#CARMA vars=\n", "line 1: vars=: a variable has a name of letters, digits and _, at most 64, and no digit " +
			"first; write vars=MODEL,SIZE"},
		{"#CARMA vars=A,B,A\n", "line 1: vars=A,B,A: names a variable twice; write vars=MODEL,SIZE"},
		{"#CARMA vars=A,B,C,D,E,F,G,H,I\n", "line 1: vars=A,B,C,D,E,F,G,H,I: must have 1 to 8 names; write vars=MODEL,SIZE"},
		{"#CARMA \x1b[31m\xff=1\n", "line 1: ?[31m?: unknown key; known are " + keyList},
		{"#CARMA " + strings.Repeat("x", 1000) + "=1\n", "line 1: " + strings.Repeat("x", 40) +
			"...: unknown key; known are " + keyList},
		{strings.Repeat("#CARMA\n", 201), "line 201: more than 200 #CARMA lines"},
		{"#CARMA input=" + strings.Repeat("x", maxWordBytes), "line 1: the #CARMA lines are longer than 8 KiB"},
		{"#CARMA on\n" + strings.Repeat("#CARMA"+strings.Repeat(" ", 999)+"\n", 9),
			"line 10: the #CARMA lines are longer than 8 KiB"},
		{"#CARMA on\n" + strings.Repeat("#CARMA|"+strings.Repeat("x", 1023)+"\n", 1025),
			"line 1026: the model summary is longer than 1 MiB; give mem= instead"},
		{"#CARMA on\n" + strings.Repeat("#\n", maxHeaderLines),
			"line 32769: the leading comment block has more than 32768 lines; print less of the model or give mem="},
		{"#CARMA on\n" + strings.Repeat("#"+strings.Repeat("x", 1023)+"\n", 2050),
			"line 2047: the leading comment block is longer than 2 MiB"},
	} {
		_, err := Parse([]byte(c.script))
		if err == nil {
			t.Errorf("%.60q: no error, want %q", c.script, c.want)
		} else if err.Error() != c.want {
			t.Errorf("%.60q:\ngot  %s\nwant %s", c.script, err, c.want)
		}
	}
}

// What an option says replaces what the script says of the same key, and no more.
func TestWith(t *testing.T) {
	const script = "#CARMA off mem=20G\n#CARMA input=3x224x224 batch=32\n#CARMA| Linear\n"
	for option, want := range map[string]string{
		"mem=10G":               "#CARMA off mem=10G input=3x224x224 batch=32\n#CARMA| Linear\n",
		"on,input=10,seq=5":     "#CARMA on mem=20G input=10 batch=32 seq=5\n#CARMA| Linear\n",
		" ,off, batch=1 # no ":  "#CARMA off mem=20G input=3x224x224 batch=1\n#CARMA| Linear\n",
		"job=a.B_c-9":           "#CARMA off mem=20G input=3x224x224 batch=32 job=a.B_c-9\n#CARMA| Linear\n",
		"vars=A,b,on,batch=1":   "#CARMA on mem=20G input=3x224x224 batch=1 vars=A,b\n#CARMA| Linear\n",
		"seq=5 vars=A,mem,C on": "#CARMA on mem=20G input=3x224x224 batch=32 seq=5 vars=A,C,mem\n#CARMA| Linear\n",
	} {
		d, err := Parse([]byte(script))
		if err != nil {
			t.Fatal(err)
		}
		before := fmt.Sprint(d)
		got, err := d.With(option, OfOption)
		meant, errWant := Parse([]byte(want))
		if err != nil || errWant != nil || !got.Equal(meant) {
			t.Errorf("%q: %+v, %v\nwant %+v, %v", option, got, err, meant, errWant)
		}
		if fmt.Sprint(d) != before {
			t.Errorf("%q has changed what the script says: %+v", option, d)
		}
	}
	d, _ := Parse([]byte(script))
	if d, err := d.With("mem=1G", OfOption); err != nil || d.Where("mem") != "--carma" || d.Where("on") != "line 1" ||
		d.Where("batch") != "line 2" {
		t.Errorf("places: %q %q %q, %v", d.Where("mem"), d.Where("on"), d.Where("batch"), err)
	}
	for option, want := range map[string]string{
		"mem=x":         "--carma: mem=x: not a size; write mem=12G",
		"mem=1G mem=2G": "--carma: mem: given twice",
		"on off":        "--carma: off: given twice",
		"job=a/b":       "--carma: job=a/b: may have letters, digits and ._- only; write job=resnet50-large",
		"job=" + strings.Repeat("a", 65): "--carma: job=" + strings.Repeat("a", 36) + "...: must have 1 to 64 characters; " +
			"write job=resnet50-large",
		strings.Repeat("on ", 400): "--carma: longer than 1024 bytes",
		"\x1b[2J\n":                "--carma: ?[2J: unknown key; known are " + keyList,
	} {
		if _, err := d.With(option, OfOption); err == nil || err.Error() != want {
			t.Errorf("%q: %v\nwant %s", option, err, want)
		}
	}
	if _, err := d.With("x", OfVariable); err == nil || !strings.HasPrefix(err.Error(), "the variable CARMA: x: ") {
		t.Errorf("of the variable: %v", err)
	}
}

// Commas stand between the keys of an option, and between the names of one key.
func TestSpaced(t *testing.T) {
	for text, want := range map[string]string{
		"": "", ",": " ", "on,mem=1G": "on mem=1G", "vars=A,B": "vars=A,B", "vars=A,B,mem=1G,C": "vars=A,B mem=1G C",
		"vars=A,off,B": "vars=A off B", "vars=A, B": "vars=A  B", "vars=A ,B": "vars=A  B", "vars=A,,B": "vars=A  B",
		"on vars=A,B\tmem=1G,x": "on vars=A,B\tmem=1G x", "vars=,A": "vars=,A", "A,vars=B,C D,E": "A vars=B,C D E",
	} {
		if got := Spaced(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A name of a variable is what a shell takes for one.
func TestVariables(t *testing.T) {
	longest := strings.Repeat("x", maxName)
	for list, ok := range map[string]bool{"A": true, "_": true, "a1,A1": true, longest: true, longest + "x": false,
		"1A": false, "A-B": false, "A.B": false, "A=B": false, "A,": false, ",A": false, "Ä": false, "A\x00": false,
		"A:B": false, "$A": false} {
		if names, err := variables(list); (err == nil) != ok {
			t.Errorf("%q: %q, %v", list, names, err)
		}
	}
}

func TestUnread(t *testing.T) {
	const late = "line 4: a #CARMA line behind the first command is not read; put it before"
	const begins = "is not read: #CARMA and a blank begin a line"
	for script, want := range map[string]string{
		"#!/bin/sh\n#CARMA mem=1G\n#CARMA| Linear\npython a.py\n":                      "",
		"# CARMA is a tool\n#carmaker on\n#CARMAX mem=1G\n# carma\n#CARMA: see docs\n": "",
		"#!/bin/sh\n# CARMA mem=10G\n":                                                 `line 2: "# CARMA mem=10G" ` + begins,
		"#carma on\n":                                                                  `line 1: "#carma on" ` + begins,
		"  #CARMA mem=1G\n":                                                            `line 1: "  #CARMA mem=1G" ` + begins,
		"#CARMA\u00a0mem=1G\n":                                                         `line 1: "#CARMA??mem=1G" ` + begins,
		"\ufeff#CARMA mem=1G\ntrue\n":                                                  `line 1: "???#CARMA mem=1G" ` + begins,
		"#!/bin/sh\n\u00a0#CARMA mem=1G\n":                                             `line 2: "??#CARMA mem=1G" ` + begins,
		"\ufefftrue #CARMA mem=1G\n":                                                   "",
		"#!/bin/sh\ntrue\n\n#CARMA mem=1G\n":                                           late,
		"#!/bin/sh\ntrue\necho '#CARMA mem=1G'\n":                                      "",
		"#!/bin/sh\ntrue\n#CARMA was here\n#CARMA off":                                 late,
		"true\n#CARMA x\n\n" + strings.Repeat("#CARMA ", mostBehind-2) + "\n#CARMA on": strings.Replace(late, "4", "5", 1),
		"true\n#CARMA x\n\n" + strings.Repeat("#CARMA ", mostBehind-1) + "\n#CARMA on": "",
	} {
		got := ""
		if e := Unread([]byte(script)); e != nil {
			got = e.Error()
		}
		if got != want {
			t.Errorf("%q:\ngot  %s\nwant %s", script, got, want)
		}
	}
}

func FuzzUnread(f *testing.F) {
	f.Add([]byte("# CARMA mem=10G\ntrue\n#CARMA off\n"))
	f.Fuzz(func(t *testing.T, script []byte) {
		if e := Unread(script); e != nil && (e.Line < 1 || e.Line > bytes.Count(script, []byte{'\n'})+1) {
			t.Fatal(e)
		}
	})
}

func FuzzWith(f *testing.F) {
	f.Add("#CARMA mem=1G off\n", "on,input=3")
	f.Add("", "job=a")
	f.Add("#CARMA vars=A,B\n", "on,vars=C,D,mem=1G")
	f.Fuzz(func(t *testing.T, script, option string) {
		d, err := Parse([]byte(script))
		if err != nil {
			return
		}
		got, err := d.With(option, OfOption)
		if err != nil {
			for _, c := range []byte(err.Error()) {
				if c < ' ' || c > '~' {
					t.Fatalf("%q", err)
				}
			}
			return
		}
		for _, name := range got.Vars {
			if len(got.Vars) > maxVars || len(name) > maxName || strings.ContainsAny(name, "=, \x00\n") {
				t.Fatalf("variables %q", got.Vars)
			}
		}
		if again, err := got.With(option, OfOption); err != nil || !again.Equal(got) {
			t.Fatalf("twice: %+v, %v; once %+v", again, err, got)
		}
	})
}

func TestParseIgnoresLongHeaderOfOthers(t *testing.T) {
	script := bytes.Repeat([]byte("# a comment\n"), 1<<18)
	if d, err := Parse(script); err != nil || d.Present {
		t.Errorf("got present=%v, error %v", d.Present, err)
	}
}

func TestParseMiB(t *testing.T) {
	for s, want := range map[string]int64{
		"1": 1, "12288": 12288, "12G": 12288, "12g": 12288, "12GiB": 12288, "12GB": 12288, "1.5G": 1536, "0.1G": 103,
		"1024K": 1, "1K": 1, "500M": 500, "1T": 1 << 20, "39.59GiB": 40541,
	} {
		if got, err := ParseMiB(s); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "G", "-1", "+1", "1e9", "0x10", "inf", "NaN", "1_000", "1 G", "1.2.3G", "12GG", "12iB",
		"5T", "0", "0.0G", "1P", "12i"} {
		if got, err := ParseMiB(s); err == nil {
			t.Errorf("%q: got %d, want an error", s, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"#!/bin/sh\n#CARMA mem=12G batch=3\n", "#CARMA| x\n", "#CARMA on#off", "#CARMA =\n", "#CARMA mem=12G\r\n\x00",
		"#CARMA\tinput=1x2x3\n\n\n#CARMA params=7B",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		d, err := Parse(script)
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
		if err != nil {
			for _, c := range err.Error() {
				if c < ' ' || c > '~' {
					t.Fatalf("error holds %q", c)
				}
			}
		}
		if d.MemMiB < 0 || d.MemMiB > maxMiB || d.SMActPct > 100 || len(d.Summary) > MaxSummary || d.Params < 0 ||
			d.Batch < 0 {
			t.Errorf("out of range: %+v", d)
		}
	})
}

// A summary that is too large to be estimated is no error: the estimator says so,
// and the job runs alone. A script without CARMA may be as tall as it likes.
func TestLargeScripts(t *testing.T) {
	d, err := Parse([]byte("#CARMA on\n" + strings.Repeat("#CARMA| "+strings.Repeat("x", 999)+"\n", 900) +
		"#CARMA batch=7\n"))
	if err != nil || len(d.Summary) != maxKept || d.Batch != 7 {
		t.Errorf("%d bytes of summary, batch %d, %v", len(d.Summary), d.Batch, err)
	}
	if d, err := Parse([]byte(strings.Repeat("#\n", 2*maxHeaderLines) + "#CARMA on\n")); err != nil || d.Present {
		t.Errorf("%+v, %v", d, err)
	}
}
