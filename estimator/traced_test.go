// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"os"
	"strings"
	"testing"
)

func resnet18Trace(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("trace/testdata/resnet18.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTraced(t *testing.T) {
	text := resnet18Trace(t)
	for _, c := range []struct {
		name   string
		change func(s *Spec, text *string)
		want   Confidence
		says   string // among reasons and assumptions
	}{
		{"as it is", func(*Spec, *string) {}, Sure, "batch 32, as traced"},
		{"its batch", func(s *Spec, _ *string) { s.Batch = 32 }, Sure, "of the #CARMA keys only batch counts"},
		{"between", func(s *Spec, _ *string) { s.Batch = 24 }, Sure, "batch 24 is between the traced 16 and 32"},
		{"outside", func(s *Spec, _ *string) { s.Batch = 40 }, Sure, "batch 40 is outside of the traced 16 to 32"},
		{"far outside", func(s *Spec, _ *string) { s.Batch = 1024 }, Unsure,
			"batch 1024 is far outside of the traced 16 to 32"},
		{"one batch", func(s *Spec, text *string) {
			s.Batch = 64
			*text = strings.Replace(*text, "batch 32 16", "batch 32\nsingle it stopped", 1)
		}, Bound, "the trace is of batch 32 alone, and batch=64 was asked for (it stopped): trace again with that batch"},
		{"no batch", func(s *Spec, text *string) {
			s.Batch = 64
			*text = strings.Replace(*text, "batch 32 16\n", "", 1)
		}, Bound, "the trace does not say its batch"},
		{"unseen", func(_ *Spec, text *string) {
			*text = strings.Replace(*text, "end", "unseen 3 odd things\nend", 1)
		}, Unsure, "the trace does not show 3 odd things"},
		{"amp", func(_ *Spec, text *string) {
			*text = strings.Replace(*text, "end", "precision amp-bfloat16\nend", 1)
		}, Unsure, "precision amp-bfloat16 has not been measured"},
		{"ddp", func(_ *Spec, text *string) {
			*text = strings.Replace(*text, "end", "parallel ddp\nend", 1)
		}, Unsure, "parallel ddp has not been measured"},
		{"expandable", func(_ *Spec, text *string) {
			*text = strings.Replace(*text, "end", "segments expandable\nend", 1)
		}, Unsure, "expandable segments"},
		{"a workspace that nothing needs", func(_ *Spec, text *string) {
			*text = strings.Replace(*text, "end", "c 12845056:6422528,12845056:6422528,2048,2048,1x1,1,1,4,n\nend", 1)
		}, Sure, ""},
		{"dynamic", func(s *Spec, _ *string) { s.DynamicShapes = true }, Unsure, "shapes that change"},
	} {
		s, text := Spec{Base: DefaultBase()}, text
		c.change(&s, &text)
		s.Summary = []byte(text)
		e, err := Analytic(s)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		check(t, c.name, e)
		said := strings.Join(append(e.Reasons, e.Assumed...), "\n")
		if e.Confidence != c.want || !strings.Contains(said, c.says) || e.Path != FromTrace {
			t.Errorf("%s: %s by %s, want %s:\n%s", c.name, e.Confidence, e.Path, c.want, said)
		}
		booked := map[Confidence]int64{Sure: booking(e.MiB, tracedMarginPct), Unsure: booking(e.MiB, unsureMarginPct),
			Bound: booking(e.MiB, unsureMarginPct)}
		if e.ReserveMiB != booked[e.Confidence] {
			t.Errorf("%s: %d MiB of %d are booked", c.name, e.ReserveMiB, e.MiB)
		}
		if c.name == "a workspace that nothing needs" && e.WishMiB != 17408-e.scratchMiB() {
			t.Errorf("%s: %d MiB are wished for beside %d of scratch", c.name, e.WishMiB, e.scratchMiB())
		}
	}
}

// 11,689,512 parameters of four bytes, as torchvision's documentation counts them.
func TestTracedFigures(t *testing.T) {
	e, err := Analytic(Spec{Summary: []byte(resnet18Trace(t)), Base: DefaultBase()})
	if err != nil {
		t.Fatal(err)
	}
	if e.Params != 11689512 || !e.CuDNN || e.FloorMiB < e.Parts[0].MiB+800 || e.MiB > 4000 {
		t.Errorf("%+v", e)
	}
	last := int64(0)
	for _, batch := range []int{8, 16, 32, 64, 128} {
		e, err := Analytic(Spec{Summary: []byte(resnet18Trace(t)), Batch: batch, Base: DefaultBase()})
		if err != nil || e.FloorMiB <= last {
			t.Errorf("batch %d: floor %d after %d, %v", batch, e.FloorMiB, last, err)
		}
		last = e.FloorMiB
	}
}

func TestTracedErrors(t *testing.T) {
	for _, c := range []struct{ text, method, want string }{
		{"carma-trace 1\n", "analytic", "estimate from trace: the trace has no end"},
		{"carma-trace 7\n", "analytic", "estimate from trace: the trace is of another version"},
	} {
		_, err := ByMethod(c.method, Spec{Summary: []byte(c.text), Batch: 32, Base: DefaultBase()})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s of %.20q: %v, want %s", c.method, c.text, err, c.want)
		}
	}
}
