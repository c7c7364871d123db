// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"carma/slurmbridge/directive"
)

func TestApply(t *testing.T) {
	for _, c := range []struct {
		name, script string
		edit         Edit
		want         string
	}{
		{"nothing to do", "#!/bin/sh\necho\n", Edit{}, "#!/bin/sh\necho\n"},
		{"behind the shebang", "#!/bin/sh\necho\n", Edit{Keys: []string{"mem=7G"}},
			"#!/bin/sh\n#CARMA mem=7G\necho\n"},
		{"behind the last #SBATCH", "#!/bin/sh\n#SBATCH -p gpu\n# note\n#SBATCH -G1\n\n# more\necho\n",
			Edit{Keys: []string{"batch=3", "seq=4"}},
			"#!/bin/sh\n#SBATCH -p gpu\n# note\n#SBATCH -G1\n#CARMA batch=3 seq=4\n\n# more\necho\n"},
		{"behind the last #CARMA", "#!/bin/sh\n#CARMA on\n#SBATCH -p gpu\necho\n", Edit{Keys: []string{"mem=7G"}},
			"#!/bin/sh\n#CARMA on\n#CARMA mem=7G\n#SBATCH -p gpu\necho\n"},
		{"no shebang", "echo\n", Edit{Keys: []string{"mem=7G"}}, "#CARMA mem=7G\necho\n"},
		{"a comment is no shebang", "# note\necho\n", Edit{Keys: []string{"mem=7G"}},
			"#CARMA mem=7G\n# note\necho\n"},
		{"no newline at the end", "#!/bin/sh", Edit{Keys: []string{"mem=7G"}}, "#!/bin/sh\n#CARMA mem=7G\n"},
		{"no newline at the end of the body", "#!/bin/sh\necho", Edit{Keys: []string{"mem=7G"}},
			"#!/bin/sh\n#CARMA mem=7G\necho"},
		{"in its place", "#!/bin/sh\n#CARMA on  mem=7G\tpolicy=shared # why\n", Edit{Keys: []string{"mem=8G"}},
			"#!/bin/sh\n#CARMA on  mem=8G\tpolicy=shared # why\n"},
		{"a wrong value in its place", "#!/bin/sh\n#CARMA mem=banana\n", Edit{Keys: []string{"mem=8G"}},
			"#!/bin/sh\n#CARMA mem=8G\n"},
		{"given twice", "#!/bin/sh\n#CARMA mem=1G on mem=2G\n#CARMA mem=3G\n", Edit{Keys: []string{"mem=8G"}},
			"#!/bin/sh\n#CARMA mem=8G on\n#CARMA\n"},
		{"some there, some not", "#!/bin/sh\n#CARMA batch=1\n", Edit{Keys: []string{"batch=2", "seq=3"}},
			"#!/bin/sh\n#CARMA batch=2\n#CARMA seq=3\n"},
		{"words in a comment stay", "#!/bin/sh\n#CARMA on # mem=1G\n", Edit{Keys: []string{"mem=8G"}},
			"#!/bin/sh\n#CARMA on # mem=1G\n#CARMA mem=8G\n"},
		{"what comes after the block stays", "#!/bin/sh\necho\n#CARMA mem=1G\n#CARMA| x\n",
			Edit{Keys: []string{"mem=8G"}, Summary: []byte("y\n")},
			"#!/bin/sh\n#CARMA mem=8G\n#CARMA| y\necho\n#CARMA mem=1G\n#CARMA| x\n"},
		{"a summary", "#!/bin/sh\n#SBATCH -p gpu\necho\n", Edit{Keys: []string{"batch=3"},
			Summary: []byte("a\n  b\n")},
			"#!/bin/sh\n#SBATCH -p gpu\n#CARMA batch=3\n#CARMA| a\n#CARMA|   b\necho\n"},
		{"a summary with DOS line ends and none at its end", "#!/bin/sh\n", Edit{Summary: []byte("a\r\n\r\nb")},
			"#!/bin/sh\n#CARMA| a\n#CARMA| \n#CARMA| b\n"},
		{"another summary", "#!/bin/sh\n#CARMA| old\n#CARMA|old\n# note\n#CARMA batch=1\n#CARMA| late\necho\n",
			Edit{Keys: []string{"batch=3"}, Summary: []byte("new\n")},
			"#!/bin/sh\n#CARMA| new\n# note\n#CARMA batch=3\necho\n"},
		{"keys in front of a summary", "#!/bin/sh\n# note\n#CARMA| s\necho\n", Edit{Keys: []string{"batch=3"}},
			"#!/bin/sh\n# note\n#CARMA batch=3\n#CARMA| s\necho\n"},
		{"DOS line ends", "#!/bin/sh\r\n#CARMA on\r\necho\r\n",
			Edit{Keys: []string{"mem=8G"}, Summary: []byte("a\n")},
			"#!/bin/sh\r\n#CARMA on\r\n#CARMA mem=8G\r\n#CARMA| a\r\necho\r\n"},
		{"other bytes stay", "#!/bin/sh\n# \xff\xfe\necho \x01\xff\n", Edit{Keys: []string{"mem=8G"}},
			"#!/bin/sh\n#CARMA mem=8G\n# \xff\xfe\necho \x01\xff\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.edit.Apply([]byte(c.script))
			if err != nil || string(got) != c.want {
				t.Fatalf("got  %q, %v\nwant %q", got, err, c.want)
			}
			again, err := c.edit.Apply(got)
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("a second time: %q, %v", again, err)
			}
		})
	}
}

func TestApplyRefuses(t *testing.T) {
	long := bytes.Repeat([]byte("a line of a summary that is much too long\n"), 30000)
	for _, c := range []struct {
		name, script string
		edit         Edit
		want         string
	}{
		{"an empty script", "", Edit{Keys: []string{"mem=8G"}}, "it is empty: not a batch script"},
		{"a binary", "\x7fELF\x00", Edit{Keys: []string{"mem=8G"}}, "it holds a NUL character: not a batch script"},
		{"a binary summary", "#!/bin/sh\n", Edit{Summary: []byte{'a', 0}},
			"the summary holds a NUL character: not text"},
		{"a wrong key", "#!/bin/sh\n", Edit{Keys: []string{"batch=0"}},
			"batch=0: must be at least 1; write batch=32"},
		{"a wrong key that was there", "#!/bin/sh\n#SBATCH -n 1\n#CARMA on\n#CARMA seq=many\n",
			Edit{Keys: []string{"batch=3"}, Summary: []byte("x")},
			"line 4: seq=many: not a whole number; write seq=512"},
		{"a wrong key behind an old summary", "#!/bin/sh\n#CARMA| x\n#CARMA| x\n#CARMA seq=many\n",
			Edit{Summary: []byte("x")}, "line 4: seq=many: not a whole number; write seq=512"},
		{"a long summary", "#!/bin/sh\n", Edit{Summary: long},
			"the model summary is longer than 1 MiB; give mem= instead"},
		{"a full script", "#!/bin/sh\n" + strings.Repeat("x", MaxBytes-20), Edit{Summary: []byte("a summary")},
			"it would be larger than 4 MiB with the summary; use --write=mem"},
	} {
		if got, err := c.edit.Apply([]byte(c.script)); message(err) != c.want {
			t.Errorf("%s: got %.50q, %v; want %s", c.name, got, err, c.want)
		}
	}
	script := append([]byte("#!/bin/sh\n"), bytes.Repeat([]byte("#CARMA| too long, and to be replaced\n"), 40000)...)
	got, err := Edit{Summary: []byte("x")}.Apply(script)
	if err != nil || string(got) != "#!/bin/sh\n#CARMA| x\n" {
		t.Errorf("a summary in place of a long one: %.50q, %v", got, err)
	}
}

// fuzzKeys are what the fuzzer chooses from, by the bits of a number.
var fuzzKeys = []string{"batch=32", "seq=512", "input=3x32x32", "optim=sgd", "foreach=0", "precision=amp",
	"parallel=ddp", "mem=7000M", "grad_ckpt=1", "params=7B"}

// Whatever the script: either it is refused, or it says what is meant and is
// the same in everything else, and a second time changes nothing.
func FuzzApply(f *testing.F) {
	for _, s := range []string{
		"#!/bin/sh\n#SBATCH -p gpu\necho\n", "#!/bin/sh\r\n#CARMA on\r\n",
		"#CARMA batch=3\n#CARMA| x\n#CARMA batch=4", "#!/bin/sh", "\n \n # x\n#CARMA mem=1G#2 mem=3 # mem=4\n",
		"#CARMA\tbatch=1\u00a0batch=2\x85seq=1\n#CARMA|y", "#CARMAX\n#CARMA|\n\n#SBATCH\n\r\n",
	} {
		f.Add([]byte(s), []byte("a\n  b\r\nc"), uint16(3))
		f.Add([]byte(s), []byte(nil), uint16(0x81))
		f.Add([]byte(s), []byte("s"), uint16(0))
	}
	f.Fuzz(func(t *testing.T, text, summary []byte, bits uint16) {
		var e Edit
		for i, k := range fuzzKeys {
			if bits>>i&1 == 1 {
				e.Keys = append(e.Keys, k)
			}
		}
		if bits>>15 == 0 && len(summary) > 0 {
			e.Summary = summary
		}
		got, err := e.Apply(text)
		if err != nil {
			return
		}
		if a, b := others(text, e), others(got, e); a != b {
			t.Fatalf("other lines changed: %q\nto %q", a, b)
		}
		again, err := e.Apply(got)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("a second time: %q\nafter %q, %v", again, got, err)
		}
		if e.Empty() {
			return
		}
		d, err := directive.Parse(got)
		if err != nil {
			t.Fatal(err)
		}
		given, err := directive.Parse([]byte("#CARMA " + strings.Join(e.Keys, " ")))
		if err != nil {
			t.Fatal(err)
		}
		was, err := directive.Parse(text)
		if err != nil {
			return // a key that was wrong has been replaced
		}
		if want := overlay(was, given, e.Summary); !d.Equal(want) {
			t.Errorf("got  %+v\nwant %+v", d, want)
		}
	})
}

// overlay is what a script says after an edit, field by field.
func overlay(was, given directive.Directive, summary []byte) directive.Directive {
	was.Present = true
	if given.MemMiB > 0 {
		was.MemMiB = given.MemMiB
	}
	if given.Batch > 0 {
		was.Batch = given.Batch
	}
	if given.Seq > 0 {
		was.Seq = given.Seq
	}
	if given.Input[0] > 0 {
		was.Input = given.Input
	}
	if given.Optimizer != "" {
		was.Optimizer = given.Optimizer
	}
	if given.Foreach != nil {
		was.Foreach = given.Foreach
	}
	if given.Precision != "" {
		was.Precision = given.Precision
	}
	if given.Parallel != "" {
		was.Parallel = given.Parallel
	}
	if given.GradCkpt {
		was.GradCkpt = true
	}
	if given.Params > 0 {
		was.Params = given.Params
	}
	if summary != nil {
		was.Summary = nil
		for _, line := range summaryLines(summary) {
			was.Summary = append(append(was.Summary, line...), '\n')
		}
	}
	return was
}

// others is a script without what an edit may change: the given keys, and the
// summary if there is a new one; #CARMA lines without a word; the newline at
// the end.
func others(text []byte, e Edit) string {
	header, body := split(text)
	var b strings.Builder
	for _, l := range header {
		switch {
		case l.kind == directive.Summary && e.Summary != nil:
		case l.kind != directive.Keys:
			b.WriteString(l.text)
		default:
			words, comment, _ := strings.Cut(strings.TrimRight(l.text[len("#CARMA"):], "\r\n"), " #")
			left := slices.DeleteFunc(strings.Fields(words), func(w string) bool {
				return slices.ContainsFunc(e.Keys, func(k string) bool { return keyOf(k) == keyOf(w) })
			})
			if len(left) > 0 || comment != "" {
				b.WriteString(strings.Join(left, " ") + "#" + comment + "\n")
			}
		}
	}
	return strings.TrimRight(b.String(), "\r\n") + "|" + string(body)
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
