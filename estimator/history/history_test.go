// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestKeyOf(t *testing.T) {
	base := Ask{UID: 1000, Script: []byte("#!/bin/bash\n#SBATCH -t 5\n#CARMA batch=32 seq=512\n#CARMA| Linear " +
		"5\npython train.py\n"), GPUs: 1, FullMiB: 40536}
	with := func(f func(*Ask)) Ask { a := base; f(&a); return a }
	script := func(s string) Ask { return with(func(a *Ask) { a.Script = []byte(s) }) }
	same := []Ask{
		script("#!/bin/sh\n\n# a comment\n#CARMA seq=512 on batch=32 mem=5G policy=shared # mine\n#CARMA| Linear " +
			"5\n#SBATCH -J x\npython train.py   \r\n\n"),
		script("#CARMA batch=32 smact=5 signal=B:USR1@300 requeue=timeout slowdown=1.3\n#CARMA seq=512\n" +
			"#CARMA| Linear 5\npython train.py"),
		// What stands behind the first command is no directive.
		script("#CARMA batch=32 seq=512\n#CARMA| Linear 5\npython train.py\n#CARMA batch=64\n# CARMA\n#CARMA x y"),
	}
	other := []Ask{
		with(func(a *Ask) { a.UID++ }), with(func(a *Ask) { a.GPUs++ }), with(func(a *Ask) { a.FullMiB++ }),
		with(func(a *Ask) { a.Args = "x" }),
		script("#CARMA batch=64 seq=512\n#CARMA| Linear 5\npython train.py"),
		script("#CARMA batch=32 seq=512\n#CARMA| Linear 6\npython train.py"),
		script("#CARMA batch=32 seq=512\n#CARMA| Linear 5\n python train.py"), script(""),
	}
	for i, a := range same {
		if KeyOf(a) != KeyOf(base) {
			t.Errorf("%d: a comment, an #SBATCH line or the user's own figure makes another key", i)
		}
	}
	seen := map[Key]int{KeyOf(base): -1}
	for i, a := range other {
		if was, ok := seen[KeyOf(a)]; ok {
			t.Errorf("%d has the key of %d", i, was)
		}
		seen[KeyOf(a)] = i
	}
	if k, ok := ParseKey(KeyOf(base).String()); !ok || k != KeyOf(base) {
		t.Errorf("read back %v, %v", k, ok)
	}
	for _, s := range []string{"", "12", "xxxxxxxxxxxxxxxx", "00000000000000000"} {
		if _, ok := ParseKey(s); ok {
			t.Errorf("%q is a key", s)
		}
	}
}

func run(key Key, end, peak int64) Run {
	return Run{Key: key, Submit: end - 100, End: end, PeakMiB: peak, MeanMiB: peak - 100, SMActPct: 40, Alone: true,
		RunS: 60, Completed: true}
}

// A named run is the same run whatever its script; what has neither script nor name is never known.
func TestKeyOfNames(t *testing.T) {
	named := Ask{UID: 1000, Name: "small", Script: []byte("python a.py\n"), Args: "x", GPUs: 1, FullMiB: 40536}
	same, large, others, two := named, named, named, named
	same.Script, same.Args, same.Keys = nil, "", "batch=3"
	large.Name, others.UID, two.GPUs = "large", 1001, 2
	if KeyOf(named) == 0 || KeyOf(same) != KeyOf(named) {
		t.Error("a named run depends on its script")
	}
	for _, a := range []Ask{large, others, two, {UID: 1000, Script: named.Script, GPUs: 1, FullMiB: 40536}} {
		if KeyOf(a) == KeyOf(named) {
			t.Errorf("%+v is the run of that name", a)
		}
	}
	if KeyOf(Ask{UID: 1000, GPUs: 1, FullMiB: 40536}) != 0 {
		t.Error("all jobs without a script are one run")
	}
	script := Ask{UID: 1000, Script: []byte("python a.py\n"), GPUs: 1, FullMiB: 40536}
	batch, mem, line := script, script, script
	batch.Keys, mem.Keys, line.Script = "batch=64 mem=10G", "mem=10G", []byte("#CARMA batch=64\npython a.py\n")
	if KeyOf(mem) != KeyOf(script) || KeyOf(batch) == KeyOf(script) || KeyOf(batch) != KeyOf(line) {
		t.Error("keys of an option count otherwise than those of a line")
	}
}

// Values of variables tell runs apart, with a name and without; their names on a line do not.
func TestKeyOfVars(t *testing.T) {
	script := Ask{UID: 1000, Script: []byte("#CARMA on\npython a.py\n"), GPUs: 1, FullMiB: 40536}
	named := script
	named.Name = "a"
	seen := map[Key]string{}
	for _, base := range []Ask{script, named} {
		for _, vars := range []string{"", "MODEL=\x1f", "MODEL=small\x1f", "MODEL=large\x1f", "SIZE=small\x1f",
			"MODEL=small\x1fSIZE=\x1f"} {
			base.Vars = vars
			key, what := KeyOf(base), base.Name+" "+vars
			if was, ok := seen[key]; ok || key == 0 {
				t.Errorf("%q has the key of %q", what, was)
			}
			seen[key] = what
			line, option := base, base
			line.Script, option.Keys = []byte("#CARMA vars=SIZE,MODEL\npython a.py\n"), "vars=MODEL,SIZE on"
			if KeyOf(line) != key || KeyOf(option) != key {
				t.Errorf("%q has another key where the names stand elsewhere", what)
			}
		}
	}
}

// Runs differ where the highest peak is more than twice the lowest. Either way the highest is booked.
func TestDiffer(t *testing.T) {
	for _, c := range []struct {
		peaks []int64
		want  bool
	}{{[]int64{1000}, false}, {[]int64{1000, 2000}, false}, {[]int64{1000, 2001}, true},
		{[]int64{9000, 1500, 2000}, true}} {
		l := NewLearner()
		for i, peak := range c.peaks {
			l.Add(run(1, int64(i), peak))
		}
		_, values := l.Values()
		if v := values[1]; v.Differ() != c.want || v.PeakMiB != slices.Max(c.peaks) || v.LeastMiB() != slices.Min(c.peaks) {
			t.Errorf("%d: %+v differ: %v", c.peaks, v, v.Differ())
		}
	}
	if (Value{}).Differ() {
		t.Error("no runs differ")
	}
}

func TestLearn(t *testing.T) {
	oom := func(end, peak int64, recovered bool) Run {
		r := run(1, end, peak)
		r.OOM, r.Completed = true, recovered
		return r
	}
	took := func(end int64) Run {
		r := run(1, end, 30402)
		r.Preallocated = true
		return r
	}
	shared := run(1, 20, 5000)
	shared.Alone, shared.SMActPct = false, 10
	killed := run(1, 20, 100)
	killed.Completed = false
	for _, c := range []struct {
		name    string
		runs    []Run
		want    Value
		known   bool
		reserve int64
	}{
		{"one run", []Run{run(1, 10, 1000)}, Value{1000, 900, 0, 60, 40, 1}, true, 1100},
		{"two runs", []Run{run(1, 10, 1000), run(1, 20, 1200)}, Value{1200, 1100, 200, 60, 40, 2}, true, 1260},
		{"in any order", []Run{run(1, 20, 1200), run(1, 10, 1000)}, Value{1200, 1100, 200, 60, 40, 2}, true, 1260},
		{"activity alone counts", []Run{run(1, 10, 5000), shared}, Value{5000, 4900, 0, 60, 40, 2}, true, 5250},
		{"activity with others is better than none", []Run{shared}, Value{5000, 4900, 0, 60, 10, 1}, true, 5500},
		{"cut short", []Run{run(1, 10, 1000), killed}, Value{1000, 900, 0, 60, 40, 1}, true, 1100},
		{"outgrown, and recovered", []Run{run(1, 10, 1000), run(1, 20, 1000), oom(30, 2000, true)},
			Value{2000, 1900, 1000, 60, 40, 3}, true, 2100},
		{"outgrown, and not recovered", []Run{run(1, 10, 1000), oom(30, 1000, false)}, Value{}, false, 0},
		{"well again", []Run{oom(30, 1000, false), run(1, 40, 3000)}, Value{3000, 2900, 0, 60, 40, 1}, true, 3300},
		{"nothing known", []Run{{Key: 1, Completed: true}}, Value{}, false, 0},
		{"by turns", []Run{run(1, 10, 8000), run(1, 20, 1000), run(1, 30, 8000), run(1, 40, 1000)},
			Value{8000, 7900, 7000, 60, 40, 4}, true, 8400},
		{"one that took the card", []Run{run(1, 10, 1000), took(20)}, Value{1000, 900, 0, 60, 40, 1}, true, 1100},
		{"the first took the card", []Run{took(5), run(1, 10, 1000), took(20), run(1, 30, 1000)},
			Value{1000, 900, 0, 60, 40, 2}, true, 1050},
		{"all took the card", []Run{took(5), took(10)}, Value{30402, 30302, 0, 60, 40, 2}, true, 31923},
		{"took the card and outgrew it", []Run{run(1, 10, 1000), took(20), oom(30, 1000, false)}, Value{}, false, 0},
	} {
		l := NewLearner()
		for _, r := range c.runs {
			l.Add(r)
		}
		_, values := l.Values()
		v, ok := values[1]
		if ok != c.known || v != c.want || ok && v.Reserve() != c.reserve {
			t.Errorf("%s: %+v, %v, reserve %d", c.name, v, ok, v.Reserve())
		}
	}
	l := NewLearner()
	l.Add(run(1, 1, 1000))
	for i := range int64(15) { // they do not push out what teaches
		l.Add(took(10 + i))
	}
	if _, values := l.Values(); values[1].PeakMiB != 1000 || len(l.runs[1]) != 1+last {
		t.Errorf("%+v of %d runs", values[1], len(l.runs[1]))
	}
	l = NewLearner()
	for i := range int64(15) { // it shrank: what is long ago is forgotten
		l.Add(run(1, i, max(1000, 10000-1000*i)))
	}
	if _, values := l.Values(); values[1].PeakMiB != 5000 || values[1].Runs != last {
		t.Errorf("%+v", values[1])
	}
}

func TestPreallocated(t *testing.T) {
	const a100, l4, v100, h100 = 40536, 23034, 16160, 81559
	for _, c := range []struct {
		name              string
		peak, limit, full int64
		want              string
	}{
		{"JAX alone", a100*75/100 + 450, a100, a100, "75 %"},
		{"JAX alone on a small card", l4*75/100 + 450, l4, l4, "75 %"},
		{"vLLM alone", a100 * 90 / 100, a100, a100, "90 %"},
		{"TensorFlow alone", 38220 + 450, a100, a100, "all of the GPU"},
		{"TensorFlow alone, Volta", 15110, v100, v100, "all of the GPU"},
		{"TensorFlow alone, Hopper", 79300, h100, h100, "all of the GPU"},
		{"at its limit", 10100, 10240, a100, "its limit"},
		{"on a GPU of unknown size", 10100, 10240, 0, "its limit"},
		{"what was learned, 10 % booked beyond it", 9309, 10240, a100, ""},
		{"what was learned, 5 % booked beyond it", 9752, 10240, a100, ""},
		{"half a card", a100 / 2, a100, a100, ""},
		{"between", a100 * 83 / 100, a100, a100, ""},
		{"nothing seen", 0, a100, a100, ""},
		{"nothing known", 1000, 0, 0, ""},
	} {
		if got := Preallocated(c.peak, c.limit, c.full); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// One user with very many scripts does not push out what is known of others'.
func TestKeysByTurns(t *testing.T) {
	l := NewLearner()
	for i := range int64(10) {
		r := run(Key(1+i), 10+i, 1000)
		r.UID = 1001
		l.Add(r)
	}
	for i := range int64(maxKeys + 100) {
		r := run(Key(1000+i), 1000+i, 1000)
		r.UID = 1002
		l.Add(r)
	}
	order, values := l.Values()
	s, err := Parse(Make(order, values, nil))
	if err != nil || s.Len() != maxKeys {
		t.Fatal(s.Len(), err)
	}
	for i := range Key(10) {
		if _, ok := s.Find(1 + i); !ok {
			t.Errorf("key %d of the other user is gone", 1+i)
		}
	}
	if _, ok := s.Find(1000 + maxKeys + 99); !ok {
		t.Error("the newest key is gone")
	}
}

func TestSnapshot(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var order []Key
	values := map[Key]Value{}
	for range maxKeys + 10 {
		k := Key(rng.Uint64())
		order = append(order, k)
		values[k] = Value{PeakMiB: rng.Int64N(80000), MeanMiB: rng.Int64N(80000), SpreadMiB: rng.Int64N(1000),
			RunS: rng.Int64N(1e6), SMActPct: float64(rng.IntN(1001)) / 10, Runs: 1 + rng.IntN(10)}
	}
	text := Make(order, values, []Shift{{FullMiB: 40536, MiB: 12, Jobs: 7, Since: 1 << 33},
		{FullMiB: 40536, Own: true, UID: 1<<32 - 1, MiB: -12, Jobs: 7, Since: 1 << 33}})
	if len(text) > MaxBytes {
		t.Errorf("%d bytes", len(text))
	}
	s, err := Parse(text)
	if err != nil || s.Len() != maxKeys {
		t.Fatal(s.Len(), err)
	}
	for i, k := range order {
		v, ok := s.Find(k)
		if ok != (i < maxKeys) || ok && (math.Abs(v.SMActPct-values[k].SMActPct) > 1e-9 || v.PeakMiB != values[k].PeakMiB ||
			v.Runs != values[k].Runs || v.RunS != values[k].RunS) {
			t.Fatalf("key %d: %+v of %+v, %v", i, v, values[k], ok)
		}
	}
	if a, b, c := s.ShiftMiB(40536), s.For(1<<32-1).ShiftMiB(40536), s.For(0).ShiftMiB(40536); a != 12 || b != -12 ||
		c != 12 {
		t.Errorf("shifts %d, %d, %d", a, b, c)
	}
	if _, ok := (Snapshot{}).Find(1); ok {
		t.Error("nothing knows a key")
	}
	// Every byte counts, and so does every length.
	small := Make(order[:3], values, nil)
	for i := range small {
		spoiled := bytes.Clone(small)
		spoiled[i] ^= 1
		if _, err := Parse(spoiled); err == nil && (i < 20 || i >= headSize) {
			t.Errorf("byte %d does not count", i)
		}
		if _, err := Parse(small[:i]); err == nil {
			t.Errorf("%d bytes are a snapshot", i)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Make([]Key{1, 5}, map[Key]Value{1: {PeakMiB: 3}, 5: {Runs: 2}}, []Shift{{FullMiB: 1, MiB: -2, Jobs: 3, Since: 4},
		{FullMiB: 1, Own: true, UID: 7, MiB: -2}}))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if err != nil {
			return
		}
		s.Find(5)
		s.For(7).ShiftMiB(1)
	})
}

func BenchmarkFind(b *testing.B) {
	var order []Key
	for i := range maxKeys {
		order = append(order, Key(i*7919))
	}
	s, err := Parse(Make(order, nil, nil))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.Find(order[12345])
	}
}

func BenchmarkParse(b *testing.B) {
	var order []Key
	for i := range maxKeys {
		order = append(order, Key(i*7919))
	}
	text := Make(order, nil, nil)
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

// A script that takes long to read has no key, and with it no history.
func TestKeyOfHugeScripts(t *testing.T) {
	for script, has := range map[string]bool{
		strings.Repeat("x", maxScriptBytes):          true,
		strings.Repeat("x", maxScriptBytes+1):        false,
		strings.Repeat("x\n", maxScriptLines):        true,
		strings.Repeat("x\n", maxScriptLines) + "\n": false,
	} {
		if key := KeyOf(Ask{Script: []byte(script)}); (key != 0) != has {
			t.Errorf("%d bytes, %d lines: key %v", len(script), strings.Count(script, "\n"), key)
		}
	}
}

// Words cost more than their bytes: a script of half a megabyte of them took 50 ms.
func TestKeyOfManyWords(t *testing.T) {
	const most = maxWordBytes
	for script, has := range map[string]bool{
		"#CARMA" + strings.Repeat(" x", most/2):                                               true,
		"#CARMA" + strings.Repeat(" x", most/2) + " y":                                        false,
		strings.Repeat("#CARMA"+strings.Repeat(" x", most/20)+"\n", 11):                       false,
		"#CARMA " + strings.Repeat("\xff", most):                                              false,
		"train\n#CARMA" + strings.Repeat(" x", 254<<10):                                       true,
		" # indented\n#CARMA" + strings.Repeat(" x", 254<<10):                                 false,
		"#CARMA|" + strings.Repeat(" x", 254<<10) + "\n#CARMA" + strings.Repeat(" x", most/2): false,
	} {
		if key := KeyOf(Ask{Script: []byte(script)}); (key != 0) != has {
			t.Errorf("%.40q of %d bytes: key %v", script, len(script), key)
		}
	}
}
