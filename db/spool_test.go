// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carma/db/figure"
)

func TestSpool(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	s := SpoolOf(path)
	d := openFor(t, path)
	if _, err := s.Drain(t.Context(), d.Put); err != nil {
		t.Errorf("no spool: %v", err)
	}
	a := attempt(7, 0)
	a.GPUs[0].EnergyJ = figure.Unknown
	for _, a := range []Attempt{a, attempt(8, 1), a} {
		if err := s.Add(a); err != nil {
			t.Fatal(err)
		}
	}
	away := errors.New("the database is away")
	if _, err := s.Drain(t.Context(), func(context.Context, Attempt) error { return away }); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
	// No record; and one in the file of another.
	for name, text := range map[string]string{"0.json": "{", "9.0.n1.json": `{"job":7,"node":"n1","user":"mallory"}`} {
		if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{2, 0} {
		if refused, err := s.Drain(t.Context(), d.Put); err != nil || refused != want {
			t.Fatal(refused, err)
		}
	}
	got, err := d.Attempts(t.Context(), nil)
	a.Total = TotalOf(a.GPUs)
	a.clean = true
	if err != nil || len(got) != 2 || fmt.Sprintf("%+v", got[0]) != fmt.Sprintf("%+v", a) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, a)
	}
	left, err := os.ReadDir(s.Dir)
	if err != nil || len(left) != 2 || left[0].Name() != "0.json.bad" || left[1].Name() != "9.0.n1.json.bad" {
		t.Errorf("left %v, %v", left, err)
	}
}

// What is taken from the spool is the attempt that the file's name says.
func FuzzSpooled(f *testing.F) {
	text, err := json.Marshal(attempt(7, 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("7.1.n1.json", text)
	f.Add("8.1.n1.json", text)
	f.Add("7.1.n1.json", []byte(`{"job":7,"restart":1,"node":"n1","JOB":8}`))
	f.Add("7.1.json", []byte(`{"job":7,"restart":1,"node":"../n1"}`))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		a, ok := spooled(name, text)
		if ok && (fmt.Sprintf("%d.%d.", a.JobID, a.Restart) != name[:len(name)-len(a.Node)-len(".json")] ||
			!strings.HasSuffix(name, a.Node+".json")) {
			t.Errorf("%s has %+v", name, a)
		}
	})
}
