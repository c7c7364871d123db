// SPDX-License-Identifier: Apache-2.0

package tres

import (
	"reflect"
	"slices"
	"strings"
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
		"gres:gpu:1,gres:carma2:9": {{Name: "gpu", Count: 1}, {Name: "carma2", Count: 9}},
		"carma:no_consume:9":       {{Name: "carma", Type: NoConsume, Count: 9}},
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

func TestNameAndK(t *testing.T) {
	for _, c := range []struct {
		k     int
		uid   uint32
		name  string
		index int
	}{
		{1, 0, "carmau0", 0}, {1, 1003, "carmau3", 3}, {1, 1<<32 - 1, "carmau7", 7}, {2, 1003, "carma2", 8},
		{16, 0, "carma16", 22},
	} {
		if got := Name(c.k, c.uid); got != c.name || K(got) != c.k || Index(c.k, c.uid) != c.index ||
			IndexOf(got) != c.index {
			t.Errorf("%d GPUs for user %d: %s, place %d, of the name %d", c.k, c.uid, got, Index(c.k, c.uid), IndexOf(got))
		}
	}
	for _, name := range []string{"", "gpu", "carma", "carma0", "carma1", "carma02", "carma-1", "carma+2", "carmax",
		"Carma", "carmau", "carmau8", "carmau-1", "carmau00", "carmatotal"} {
		if K(name) != 0 || IndexOf(name) >= 0 {
			t.Errorf("K(%q)=%d, place %d, want none", name, K(name), IndexOf(name))
		}
	}
	if got, want := strings.Join(Names(3), " "),
		"carmau0 carmau1 carmau2 carmau3 carmau4 carmau5 carmau6 carmau7 carma2 carma3"; got != want {
		t.Errorf("names %s, want %s", got, want)
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
		{"gres:gpu:1,gres:carmau0:5,gres:carmatotal:5", "gres:gpu:1", true},
		{"carmau0:5", "", true},
		{"gres/carma2=7,gres/gpu:a100=1,gres/x=1", "gres/gpu:a100=1,gres/x=1", true},
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
	if n := Read("gres:gpu:a100:2,gres:gpu:h100:1,gres:carmau0:9,gres:carmatotal:9").GPUs; n != 3 {
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
		list = strings.ReplaceAll(list, "gpu", "shard")
		if n := Read(list).Shards; n != want {
			t.Errorf("%s: got %d shards, want %d", list, n, want)
		}
	}
}

// What an entry for none says of a type is not read either.
func TestWithoutGPUs(t *testing.T) {
	rest, gpuType := Read("gres:gpu:a100:1,gres:x:2,gres:gpu:h100:0,gres:shard:0").WithoutGPUs()
	if rest != "gres:x:2" || gpuType != "a100" {
		t.Errorf("got %q and type %q", rest, gpuType)
	}
}

func TestBooking(t *testing.T) {
	for _, c := range []struct {
		list     string
		k        int
		mib      int64
		anywhere bool
	}{
		{"gres:gpu:2,gres:carma2:9800,gres:carmatotal:19600", 2, 9800, true},
		{"gres:gpu:2,gres:carma2:1,gres:carmatotal:19600", 2, 9800, false},
		{"gres/gpu:a100=1,gres/carmau0:1,gres/carmatotal:9800", 1, 9800, false},
		{"gres/gpu:a100=1,gres/carmau0:9800,gres/carmatotal:9800", 1, 9800, true},
		{"gres:gpu:2,gres:carma2:3,gres:carmatotal:81072", 2, 40536, true}, // all of a node
		{"gres:gpu:2", 0, 0, false},
		{"gres:gpu:2,gres:carmatotal:19600", 0, 0, false},
		{"", 0, 0, false},
	} {
		l := Read(c.list)
		k, mib, anywhere := l.K, l.FreeMiB(), l.Anywhere()
		if k != c.k || mib != c.mib || anywhere != c.anywhere {
			t.Errorf("%q: got %d GPUs, %d MiB, anywhere %v", c.list, k, mib, anywhere)
		}
		free := mib
		switch {
		case !anywhere:
			free = AnyMiB
		case l.Whole():
			free = WholeMiB
		}
		if again := l.Rebook(free, mib); again != c.list {
			t.Errorf("%q: booked anew as %q", c.list, again)
		}
	}
	for _, c := range []struct {
		list string
		free int64
		want string
	}{
		{"gres:carma2:9800,gres:gpu:2,gres:carmatotal:19600", 40536, "gres:gpu:2,gres:carma2:40536,gres:carmatotal:81072"},
		{"gres/gpu=1,gres/carmau0:9800,gres/carmatotal:9800", AnyMiB, "gres/gpu=1,gres/carmau0:1,gres/carmatotal:40536"},
		{"gres:gpu:2", 40536, "gres:gpu:2"},
	} {
		if got := Read(c.list).Rebook(c.free, 40536); got != c.want {
			t.Errorf("%q: got %q, want %q", c.list, got, c.want)
		}
	}
}

func TestAwaitIdle(t *testing.T) {
	for list, want := range map[string]string{
		"gres:gpu:2,gres:carma2:9800,gres:carmatotal:19600":  "gres:gpu:2,gres:carma2:40536,gres:carmatotal:19600",
		"gres/gpu=1,gres/carmau0:9800,gres/carmatotal:9800":  "gres/gpu=1,gres/carmau0:40536,gres/carmatotal:9800",
		"gres:gpu:1,gres:carmau0:40536,gres:carmatotal:9800": "gres:gpu:1,gres:carmau0:40536,gres:carmatotal:9800",
		"gres:gpu:2": "gres:gpu:2",
	} {
		got := Read(list).AwaitIdle(40536)
		if got != want {
			t.Errorf("%q: got %q, want %q", list, got, want)
		}
		if a, b := Read(list).ReserveMiB(), Read(got).ReserveMiB(); a != b || a != 9800 && a != 0 {
			t.Errorf("%q: reserve %d becomes %d", list, a, b)
		}
	}
	if got := Read("gres:gpu:1,gres:carmau0:40536").ReserveMiB(); got != 40536 {
		t.Errorf("without a sum: %d", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"gres:gpu:1,gres:carmau0:5,gres:carmatotal:5", "gpu:2(IDX:0,3)", "((", "))", ",,:=",
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
		if again := Read(rest); again.K > 0 || again.total >= 0 {
			t.Errorf("%q: a booking is left in %q", list, rest)
		}
	})
}
