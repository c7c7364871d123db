// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"os"
	"strings"
	"testing"

	"carma/estimator"
	"carma/estimator/graph"
	"carma/estimator/method"
	"carma/estimator/training"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/jobenv"
)

// withSummary is a script that carries one of the estimator's own fixtures.
func withSummary(t *testing.T, lines, fixture string) string {
	t.Helper()
	text, err := os.ReadFile("../../estimator/testdata/" + fixture)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("#!/bin/sh\n" + lines + "\n")
	for line := range strings.Lines(string(text)) {
		b.WriteString("#CARMA| " + line)
	}
	return b.String() + "\necho\n"
}

func TestSummary(t *testing.T) {
	for _, c := range []struct {
		name, lines, fixture string
		mode                 jobenv.Mode
		method               string
		shares               bool
	}{
		{"a small network", "#CARMA batch=64", "mlp.txt", jobenv.ModeShared, method.Analytic, true},
		{"a network with convolutions", "#CARMA batch=32", "resnet.txt", jobenv.ModeShared, method.Analytic, true},
		{"a trace", "#CARMA batch=64", "../trace/testdata/resnet18.txt", jobenv.ModeShared, method.Analytic, true},
		{"a trace with its own batch", "#CARMA on", "../trace/testdata/resnet18.txt", jobenv.ModeShared, method.Analytic,
			true},
		{"the user's word wins", "#CARMA batch=32 mem=7G", "resnet.txt", jobenv.ModeShared, method.User, true},
		{"too large to share", "#CARMA batch=4096", "resnet.txt", jobenv.ModeExclusive, method.Analytic, false},
		{"TensorFlow takes the whole GPU", "#CARMA batch=32", "keras.txt", jobenv.ModeExclusive, method.None, false},
		{"exclusive", "#CARMA batch=32 policy=exclusive", "resnet.txt", jobenv.ModeExclusive, method.Analytic, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job(withSummary(t, c.lines, c.fixture))
			j.TRES.PerNode = "gres:gpu:1"
			s := site()
			s.Estimator, s.Estimate = "analytic", estimator.ByMethod
			a, err := s.Annotate(j)
			if err != nil {
				t.Fatal(err)
			}
			if a.Mode != c.mode || a.Method != c.method || (a.ReserveMiB < full) != c.shares ||
				(a.EstMiB > 0) != (c.method != method.None) {
				t.Errorf("got %+v", a)
			}
		})
	}
}

// What cannot be estimated is no error: the job runs alone, and says why.
func TestSummaryThatSaysNothing(t *testing.T) {
	for name, script := range map[string]string{
		"nonsense": "#CARMA batch=8\n#CARMA| this is \x01 no \"summary\"\n",
		"no batch": strings.Replace(withSummary(t, "", "mlp.txt"), "[64,", "[-1,", -1),
	} {
		j := job(script)
		j.TRES.PerNode = "gres:gpu:1"
		s := site()
		s.Estimator, s.Estimate = "analytic", estimator.ByMethod
		a, err := s.Annotate(j)
		if err != nil || a.Mode != jobenv.ModeExclusive || a.ReserveMiB != full {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
		if name == "nonsense" && (a.Note == "" || !strings.Contains(string(admincomment.AppendJob(nil, &a.Carma, a.Note)),
			`"note":"estimate from summary: `)) {
			t.Errorf("%s: comment %s", name, string(admincomment.AppendJob(nil, &a.Carma, a.Note)))
		}
	}
	s := site()
	s.Estimator = "none"
	j := job(withSummary(t, "#CARMA batch=8", "mlp.txt"))
	j.TRES.PerNode = "gres:gpu:1"
	if a, err := s.Annotate(j); err != nil || a.Method != method.None || a.Mode != jobenv.ModeExclusive {
		t.Errorf("estimator none: got %+v, %v", a, err)
	}
}

func TestCommentIsPlain(t *testing.T) {
	a := Annotation{Carma: jobenv.Carma{Mode: jobenv.ModeExclusive, Method: method.None, GPUs: 1, ReserveMiB: 5},
		Note: "say \"x\\\"\n\x1b[31m" + strings.Repeat("long ", 100)}
	c := string(admincomment.AppendJob(nil, &a.Carma, a.Note))
	if len(c) > 256 || strings.Count(c, `"`)%2 != 0 || strings.ContainsAny(c, "\\\n\x1b") ||
		!strings.HasSuffix(c, `..."}`) {
		t.Errorf("got %s", c)
	}
}

// The directive and the estimator know the same words.
func TestWords(t *testing.T) {
	for key, c := range map[string]struct {
		words []string
		parse func(string) error
	}{
		"optim":     {directive.Optimizers, func(s string) error { _, err := estimator.ParseOptimizer(s); return err }},
		"precision": {directive.Precisions, func(s string) error { _, err := estimator.ParsePrecision(s); return err }},
		"parallel":  {directive.Parallels, func(s string) error { _, err := estimator.ParseParallel(s); return err }},
		"attn":      {directive.Attentions, func(s string) error { _, err := estimator.ParseAttention(s); return err }},
	} {
		for _, w := range c.words {
			if err := c.parse(w); err != nil {
				t.Errorf("%s=%s: %v", key, w, err)
			}
		}
	}
}

func TestSpecOf(t *testing.T) {
	d, err := directive.Parse([]byte("#CARMA batch=8 seq=512 input=3x32x32 optim=sgdm foreach=0 precision=bf16 " +
		"parallel=ddp grad_ckpt=1 attn=flash params=7B dropout=1 dynamic_shapes=1\n#CARMA| text\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := SpecOf(d, 4, config.Partition{BaseCuDNNMiB: 600})
	want := estimator.Spec{
		Batch: 8, Seq: 512, Input: [3]int{3, 32, 32}, GPUs: 4, Optimizer: training.SGDMomentum, Foreach: estimator.Off,
		Precision: graph.BF16,
		Parallel:  estimator.DDP, Attention: graph.Flash, Dropout: estimator.On, GradCheckpoint: true,
		DynamicShapes: true, Params: 7e9,
		Base: estimator.Base{CuBLASMiB: estimator.DefaultBase().CuBLASMiB, CuDNNMiB: 600},
	}
	if string(got.Summary) != "text\n" {
		t.Errorf("summary %q", got.Summary)
	}
	got.Summary = nil
	if g, w := got, want; g.Batch != w.Batch || g.Seq != w.Seq || g.Input != w.Input || g.GPUs != w.GPUs ||
		g.Optimizer != w.Optimizer || g.Foreach != w.Foreach ||
		g.Precision != w.Precision || g.Parallel != w.Parallel || g.Attention != w.Attention || g.Dropout != w.Dropout ||
		!g.GradCheckpoint || !g.DynamicShapes || g.Params != w.Params || g.Base != w.Base {
		t.Errorf("got  %+v\nwant %+v", g, w)
	}
}

// Of several partitions the largest base counts, and no figure stands for the default.
func TestBaseOfSeveralPartitions(t *testing.T) {
	s, normal := site(), estimator.DefaultBase()
	for name, base := range map[string]int64{"low": 700, "high": 2000, "none": 0, "also": 0} {
		s.Partitions[name] = config.Partition{GPUsPerNode: 1, GPUMemMiB: full, BaseCuBLASMiB: base, BaseCuDNNMiB: base}
	}
	for partitions, want := range map[string]estimator.Base{
		"low":       {CuBLASMiB: 700, CuDNNMiB: 700},
		"none,low":  normal,
		"low,none":  normal,
		"none,also": normal,
		"low,high":  {CuBLASMiB: 2000, CuDNNMiB: 2000},
	} {
		_, part, _ := s.Partition(partitions)
		if got := SpecOf(directive.Directive{}, 1, part).Base; got != want {
			t.Errorf("%s: got %+v, want %+v", partitions, got, want)
		}
		// What runs have taught lowers the default, and no figure.
		if given := part.BaseCuBLASMiB > 0 || part.BaseCuDNNMiB > 0; given == (want == normal) {
			t.Errorf("%s: base %d and %d MiB given", partitions, part.BaseCuBLASMiB, part.BaseCuDNNMiB)
		}
	}
}
