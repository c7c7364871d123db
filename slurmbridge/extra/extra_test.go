// SPDX-License-Identifier: Apache-2.0

package extra

import (
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
)

func TestSetCounts(t *testing.T) {
	for _, c := range []struct {
		before string
		counts map[string]int64
		want   string
	}{
		{"", map[string]int64{Key(1): 40536}, `{"carma1":40536}`},
		{"(null)", map[string]int64{Key(1): 1, UserKey(1, "1001"): 7, All: 4}, `{"carma1":1,"carma1u1001":7,"carmaall":4}`},
		{`{"carma1":5,"carma1u9":9,"carma2":3,"rack":"a<b","carmahold":"7:1:0:9"}`, map[string]int64{Key(1): 6},
			`{"carma1":6,"carmahold":"7:1:0:9","rack":"a<b"}`},
		{`{"carmax":1,"carma":2}`, map[string]int64{}, `{"carma":2,"carmax":1}`},
		{`{"carma1":5}`, nil, ""},
		{`{"deep":{"carma1":5, "x":[1,2]}}`, nil, `{"deep":{"carma1":5,"x":[1,2]}}`},
	} {
		got, err := SetCounts(c.before, c.counts)
		if err != nil || got != c.want {
			t.Errorf("SetCounts(%q) = %q, %v, want %q", c.before, got, err, c.want)
		}
		if back, err := Counts(got); err != nil || !maps.Equal(back, c.counts) && len(c.counts) > 0 {
			t.Errorf("Counts(%q) = %v, %v", got, back, err)
		}
	}
	for _, foreign := range []string{"GPU node of group 7", "[1]", "1", `"a"`, `{"a":1`, "null", `{"a":1} x`} {
		if got, err := SetCounts(foreign, map[string]int64{Key(1): 1}); !errors.Is(err, ErrForeign) {
			t.Errorf("SetCounts(%q) = %q, %v", foreign, got, err)
		}
	}
}

func TestWords(t *testing.T) {
	text, err := SetWord(`{"carma1":5,"x":1}`, Hold, "7:2:0:1795000000")
	if want := `{"carma1":5,"carmahold":"7:2:0:1795000000","x":1}`; err != nil || text != want {
		t.Errorf("got %s, %v", text, err)
	}
	if w := Word(text, Hold); w != "7:2:0:1795000000" {
		t.Errorf("got %q", w)
	}
	if text, err = SetWord(text, Hold, ""); err != nil || text != `{"carma1":5,"x":1}` {
		t.Errorf("got %s, %v", text, err)
	}
	if w := Word(`{"carmahold":7}`, Hold); w != "" {
		t.Errorf("got %q", w)
	}
}

func TestJoin(t *testing.T) {
	ours := Ask(1, 10240, Tags{}.Of(1001))
	if ours != "carma1>=10240|carma1u1001>=10240" {
		t.Errorf("Ask: %s", ours)
	}
	for _, users := range []string{"a=1", "a=1,b=2", "a=3&(b=asdf|c<24)", "(a=1|(b>=2))",
		"zed<yam,(a=23&(b<=42|c=foo)&d>50)&e=bar", "a=   b", "a!=1"} {
		both, err := Join(users, ours)
		if err != nil || both != "("+users+")&("+ours+")" {
			t.Errorf("Join(%q) = %q, %v", users, both, err)
		}
	}
	for _, users := range []string{"a,<=6", "a<=6<=", "a=5&&&b=5", "a=5|||b=5", "a====5", "b<=<=5", "a=5&()",
		"a=5&b=5|c=5",
		"(a=1)&(b=2)|(c=3)", "a=1)|(b=2", "a=1)&(b=2", "a=1)", "(a=1", "note for my group", "a", "=1", "a=", "a==1", "a=1=2",
		"&a=1", "a=1&", strings.Repeat("(", 40) + "a=1" + strings.Repeat(")", 40)} {
		if both, err := Join(users, ours); err == nil || !strings.HasPrefix(err.Error(), "--extra") {
			t.Errorf("Join(%q) = %q, %v", users, both, err)
		}
	}
	long := "a=" + strings.Repeat("1", mostOfJob-room-len("(a=)&()"+ours))
	if both, err := Join(long, ours); err != nil || len(both) != mostOfJob-room {
		t.Errorf("the longest: %d characters, %v", len(both), err)
	}
	if _, err := Join(long+"1", ours); !errors.Is(err, errLong) {
		t.Errorf("a longer one: %v", err)
	}
	if both, err := Join(" ", ours); err != nil || both != ours {
		t.Errorf("none: %q, %v", both, err)
	}
}

func TestTags(t *testing.T) {
	secret := Tags{Secret: []byte("0123456789abcdef")}
	if a, b := secret.Of(1001), secret.Of(1002); a == b || len(a) != 16 || strings.Contains(a, "1001") {
		t.Errorf("tags %s, %s", a, b)
	}
	if a := (Tags{}).Of(1001); a != "1001" {
		t.Errorf("tag %s", a)
	}
}

// FuzzMerge: whatever stands in a node's Extra, foreign keys keep their values, or nothing is
// written.
func FuzzMerge(f *testing.F) {
	for _, s := range []string{"", "{}", `{"a":1}`, `{"carma1":1,"b":"\u003c"}`, "x", `{"a":{"b":[1.5e9,null]}}`, `{"a":1,"a":2}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		after, err := SetCounts(text, map[string]int64{Key(1): 7})
		if err != nil {
			return
		}
		if after, err = SetWord(after, Hold, "1:1:0:1"); err != nil {
			t.Fatal(err)
		}
		var was, is map[string]any
		if err := json.Unmarshal([]byte(after), &is); err != nil {
			t.Fatalf("%q became %q: %v", text, after, err)
		}
		json.Unmarshal([]byte(text), &was)
		for key, value := range was {
			if !strings.HasPrefix(key, prefix) && !reflect.DeepEqual(is[key], value) {
				t.Fatalf("%q became %q: %s was %v", text, after, key, value)
			}
		}
		if is[Key(1)] != 7.0 || is[Hold] != "1:1:0:1" {
			t.Fatalf("%q became %q", text, after)
		}
		if strings.ContainsAny(after, "\n\r\t") {
			t.Fatalf("%q has a control character", after)
		}
	})
}
