// SPDX-License-Identifier: Apache-2.0

package db

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
)

// The records that CARMA writes are read without encoding/json, but for texts with characters that JSON escapes.
func TestParserReadsWhatIsWritten(t *testing.T) {
	bare := Attempt{Start: time.Unix(1, 0), End: time.Unix(2, 0), GPUs: []AttemptGPU{{Figures: figure.NoFigures()}}}
	escaped, foreign, long := attempt(7, 0), attempt(7, 0), attempt(7, 0)
	escaped.Name, foreign.Name, long.GPUs[0].SMActPct = "a\"b", "größe", figure.Measured(100)/3
	for name, c := range map[string]struct {
		a    Attempt
		fast bool
	}{"all fields": {attempt(7, 1), true}, "few fields": {bare, true}, "escaped": {escaped, false},
		"foreign": {foreign, true}, "many digits": {long, true}} {
		text, err := c.a.encode()
		if err != nil {
			t.Fatal(err)
		}
		var a Attempt
		p := parser{rest: text}
		if got := p.object(reflect.ValueOf(&a).Elem(), attemptMembers); got != c.fast {
			t.Errorf("%s: %v at %q of %s", name, got, p.rest, text)
		}
		if err := a.decode(text); err != nil || a.clean != (c.fast && name != "foreign") {
			t.Errorf("%s: clean %v, %v", name, a.clean, err)
		}
		c.a.Total, c.a.clean = TotalOf(c.a.GPUs), a.clean
		if got, want := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", c.a); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
}

// encoding/json reads the same from every text that the parser takes.
func FuzzParser(f *testing.F) {
	text, err := attempt(7, 0).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	for _, change := range [][2]string{{`"job":7`, `"job":07`}, {`"job":7`, `"job":4294967296`}, {"n1", "\xff"}, {"n1", "\n"},
		{"n1", "\u00e9"}, {`"exit":1`, `"exit":-1`}, {"9000", "9e3"}, {"9000", "-0.5"}, {"9000", "null"},
		{"1970", "19700"}, {",", ",,"}, {"}", ",}"}, {`"node"`, `"job"`}, {`[8,9]`, `[]`}, {`[8,9]`, `null`}} {
		f.Add(strings.Replace(text, change[0], change[1], 1))
	}
	f.Fuzz(func(t *testing.T, text string) {
		var got, want Attempt
		p := parser{rest: text}
		if !p.object(reflect.ValueOf(&got).Elem(), attemptMembers) || p.rest != "" ||
			json.Unmarshal([]byte(text), &want) != nil {
			return
		}
		if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if got.Clean(); !p.foreign {
			if clean := fmt.Sprintf("%+v", got); clean != fmt.Sprintf("%+v", want) {
				t.Errorf("%s is not clean", text)
			}
		}
	})
}

// slurmctld without its state gives ids again, on the same nodes: the earlier job's record stays, of whichever user. An
// Epilog that runs twice, or a spool that comes late, counts once.
func TestRecordsOfAnIDGivenAgain(t *testing.T) {
	d := openFor(t, filepath.Join(t.TempDir(), "carma.db"))
	put := func(uid, restart uint32, days int, name string) {
		t.Helper()
		a := attempt(5, restart)
		a.UID, a.Name = uid, name
		a.Start, a.End = a.Start.AddDate(2, 0, days), a.End.AddDate(2, 0, days)
		if err := d.Put(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	put(1000, 0, 0, "a")
	put(1000, 1, 0, "a")
	put(1001, 0, 100, "b")
	put(1000, 0, 200, "c?")
	put(1000, 0, 200, "c")
	put(1000, 1, 0, "a") // from the spool
	lost := attempt(5, 0)
	lost.UID, lost.Name = 1000, "e" // an attempt without an Epilog, found late
	lost.Start, lost.End = lost.Start.AddDate(1, 0, 0), lost.End.AddDate(1, 0, 0)
	if err := d.PutIfNone(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	if list, err := d.SetEnd(t.Context(), End{JobID: 5, UID: 1000, Node: "n1", State: "COMPLETED",
		Name: "d"}); err != nil || len(list) != 1 {
		t.Errorf("%d records completed, %v", len(list), err)
	}
	got := ""
	err := d.Scan(t.Context(), Filter{}, func(list []Attempt) error {
		for _, a := range list {
			got += fmt.Sprint(a.UID, a.Name, a.Restart, " ")
		}
		got += "| "
		return nil
	})
	if want := "1000e0 | 1000a0 1000a1 | 1000d0 | 1001b0 | "; err != nil || got != want {
		t.Errorf("%s, want %s; %v", got, want, err)
	}
}
