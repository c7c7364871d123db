// SPDX-License-Identifier: Apache-2.0

package tres

import (
	"reflect"
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	for list, want := range map[string][]Entry{
		"":                         nil,
		"(null)":                   nil,
		"gpu":                      {{Name: "gpu", Count: 1}},
		"gres:gpu:2":               {{Name: "gpu", Count: 2}},
		"gres/gpu=1":               {{Name: "gpu", Count: 1}},
		"gres:gpu:a100:2":          {{Name: "gpu", Type: "a100", Count: 2}},
		"gres/gpu:a100=2":          {{Name: "gpu", Type: "a100", Count: 2}},
		"gpu:a100":                 {{Name: "gpu", Type: "a100", Count: 1}},
		"gpu:a100:16(S:0-1)":       {{Name: "gpu", Type: "a100", Count: 16}},
		"gpu:2(IDX:0,3),carma:10K": {{Name: "gpu", Count: 2}, {Name: "carma", Count: 10240}},
		"gpu:1K,x:2M":              {{Name: "gpu", Count: 1024}, {Name: "x", Count: 2 << 20}},
		"gpu:-1":                   {{Name: "gpu", Type: "-1", Count: 1}},
		"gpu:99999999999999999999": {{Name: "gpu", Type: "99999999999999999999", Count: 1}},
		"gpu:9223372036854775807K": {{Name: "gpu", Type: "9223372036854775807K", Count: 1}},
	} {
		got := slices.Collect(Parse(list))
		for i := range got {
			got[i].text = ""
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %+v", list, got, want)
		}
	}
}

func TestUnclear(t *testing.T) {
	for _, list := range []string{"", "gpu", "gpu:2", "gres:gpu:2", "gres/gpu:a100:2", "gpu:3090:1",
		"gpu:nvidia_a100-80.gb:2",
		"gpu:a100", "gres:gpu:1,gres:gpu:a:2", "vgpu: 2", "x:1", "gpu:0", "gres/gpu:1K"} {
		if got := Read(list).Unclear(false); got != "" {
			t.Errorf("%q: %q is unclear", list, got)
		}
	}
	for _, list := range []string{"gpu: 2", "gpu:2 ", "gpu:1, x:1", "gpu:+2", "gpu:-2", "gpu:2:", "gpu::2", "gpu:a:b:2",
		"gpu:2(S:0)", "gpu:2;gpu:1", "gpu:1,gres:gpu:a+b:1", "gpu:_a", "gpu:a=:2", "gpu:1\u00a0", "gpu:0,gpu:2"} {
		if got := Read(list).Unclear(true); got == "" {
			t.Errorf("%q is plain", list)
		}
	}
	if l := Read("gres/gpu:a=2,gpu=1"); l.Unclear(true) != "" || l.Unclear(false) != "gres/gpu:a=2" {
		t.Errorf("%q, %q", l.Unclear(true), l.Unclear(false))
	}
}

func TestWithout(t *testing.T) {
	for _, c := range []struct {
		list, rest string
		had        bool
	}{
		{"", "", false},
		{"gres:gpu:1", "gres:gpu:1", false},
		{"gpu:1 , license:2", "gpu:1 , license:2", false},
		{"gres:gpu:1,gres:carma:5", "gres:gpu:1", true},
		{"carma:5,carma:x:7", "", true},
		{"gres/carma=7,gres/gpu:a100=1,gres/x=1", "gres/gpu:a100=1,gres/x=1", true},
		{"carmaway:1", "carmaway:1", false},
	} {
		rest := Read(c.list).Without()
		had := rest != c.list
		if rest != c.rest || had != c.had {
			t.Errorf("%q: got %q, %v", c.list, rest, had)
		}
	}
}

func TestGPUsAndBooking(t *testing.T) {
	if n := Read("gres:gpu:a100:2,gres:gpu:h100:1,gres:carma:9").GPUs; n != 3 {
		t.Errorf("got %d GPUs, want 3", n)
	}
	for list, want := range map[string]int64{
		"gres:gpu:4,gres:gpu:4": 4, "gres:gpu:4,gres:gpu:2": 2, "gres:gpu:a100:1,gres:gpu:h100:2,gres:gpu:a100:3": 5,
		"gpu:a,gpu:b,gpu:c,gpu:d,gpu:e,gpu:f,gpu:g,gpu:h,gpu:i,gpu:i": 10,
		"gpu:4611686018427387904,gpu:x:1":                             1 << 40,
		"gres:gpu:4,gres:gpu:0":                                       4,
		"gres/gpu:a100:4,gres/gpu:a100:0,gres/gpu:0K":                 4,
		"gres:gpu:0":       0,
		"gres:gpu:4,gpu:1": 5,
	} {
		if n := Read(list).GPUs; n != want {
			t.Errorf("%s: got %d GPUs, want %d", list, n, want)
		}
	}
}

func TestBooking(t *testing.T) {
	for _, c := range []struct {
		list  string
		k     int
		books bool
		each  int64
		again string
	}{
		{"gres:gpu:2,gres:carma:19600", 2, true, 9800, "gres:gpu:2,gres:carma:81072"},
		{"gres/carma=9800,gres/gpu:a100=1", 1, true, 9800, "gres/gpu:a100=1,gres/carma:81072"},
		{"gres:gpu:2", 2, false, 0, "gres:gpu:2"},
		{"gres:carma:5", 0, true, 0, "gres:carma:81072"},
		{"", 1, false, 0, ""},
	} {
		l := Read(c.list)
		if l.Books() != c.books || l.Each(c.k) != c.each || l.Rebook(81072) != c.again {
			t.Errorf("%q: books %v, %d each, %q", c.list, l.Books(), l.Each(c.k), l.Rebook(81072))
		}
	}
	part, rest := Read("gres:gpu:a100:1,gres:x:2,gpu:1").Part(GPU)
	if part != "gres:gpu:a100:1,gpu:1" || rest != "gres:x:2" {
		t.Errorf("got %q and %q", part, rest)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"gres:gpu:1,gres:carma:5", "gpu:2(IDX:0,3)", "((", "))", ",,:=",
		"gres/gpu:a=1K"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		for e := range Parse(list) {
			if e.Count < 0 || e.text == "" {
				t.Errorf("%q: %+v", list, e)
			}
		}
		rest := Read(list).Without()
		if again := Read(rest); again.Books() {
			t.Errorf("%q: a booking is left in %q", list, rest)
		}
	})
}
