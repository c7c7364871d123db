// SPDX-License-Identifier: Apache-2.0

package hostlist

import (
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	for list, want := range map[string]string{
		"":                    "",
		"n1":                  "n1",
		"n1,n2":               "n1 n2",
		"gpu[03-05,9],x":      "gpu03 gpu04 gpu05 gpu9 x",
		"gpu[8-11]":           "gpu8 gpu9 gpu10 gpu11",
		"gpu[08-11]":          "gpu08 gpu09 gpu10 gpu11",
		"r[1-2]n[1-2]":        "r1n1 r1n2 r2n1 r2n2",
		"gpu[1-2]-ib":         "gpu1-ib gpu2-ib",
		"a[1],b[2],c":         "a1 b2 c",
		" n1 , n2 ":           "n1 n2",
		"gpu[1-2,5]x[3],last": "gpu1x3 gpu2x3 gpu5x3 last",
	} {
		got, err := Expand(list)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: got %v, %v", list, got, err)
		}
		if first := strings.SplitN(want, " ", 2)[0]; First(list) != first {
			t.Errorf("First(%q) = %q, want %q", list, First(list), first)
		}
	}
	for _, list := range []string{"n[", "n[1", "n[1-]", "n[a]", "n[3-1]", "n[1-99999999]", "n[1-60000]m[1-60000]", "n[]",
		"n[-1]"} {
		if got, err := Expand(list); err == nil {
			t.Errorf("%q: got %d names", list, len(got))
		}
	}
	if !Contains("gpu[1-4]", "gpu3") || Contains("gpu[1-4]", "gpu5") || Contains("gpu[", "gpu1") {
		t.Error("Contains is wrong")
	}
}

func TestSame(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"n[1-2]", "n2,n1", true}, {"n[1-2]", "n1,n1,n2", true}, {"n[1-2]", "n[1-3]", false}, {"n[1-", "n[1-", false}} {
		if got := Same(c.a, c.b); got != c.want {
			t.Errorf("Same(%q, %q) is %v", c.a, c.b, got)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"gpu[03-05,9],x", "r[1-2]n[1-4]", "[", "]", "n[1-9]]", "[[1]]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		names, err := Expand(list)
		if err == nil && len(names) > most {
			t.Errorf("%d names", len(names))
		}
		if err == nil && len(names) > 0 && First(list) != names[0] {
			t.Errorf("First is %q, Expand begins with %q", First(list), names[0])
		}
	})
}
