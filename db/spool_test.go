// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"carma/db/figure"
)

func TestSpool(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	s := SpoolOf(path)
	d := openFor(t, path)
	if _, err := s.Drain(t.Context(), d.Put, d.PutIfNone); err != nil {
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
	if _, err := s.Drain(t.Context(), func(context.Context, Attempt) error { return away }, nil); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
	// No record; and one in the file of another.
	for name, text := range map[string]string{"0.json": "{", "9.0.n1.json": `{"job":7,"node":"n1","user":"mallory"}`} {
		if err := os.WriteFile(filepath.Join(s.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{2, 0} {
		if refused, err := s.Drain(t.Context(), d.Put, d.PutIfNone); err != nil || refused != want {
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

// The record without an Epilog replaces no Epilog's, in the spool or in the database.
func TestSpoolLost(t *testing.T) {
	lost, epilogs := attempt(7, 0), attempt(7, 0)
	lost.State, epilogs.State = NodeFail, "COMPLETED"
	for name, c := range map[string]struct {
		spool, lost bool // which the spool has
		there       bool // the Epilog's is in the database
		want        string
	}{
		"lost":            {false, true, false, NodeFail},
		"an Epilog came":  {true, true, false, "COMPLETED"},
		"an Epilog wrote": {false, true, true, "COMPLETED"},
	} {
		path := filepath.Join(t.TempDir(), "carma.db")
		s, d := SpoolOf(path), openFor(t, path)
		var errs []error
		if c.spool {
			errs = append(errs, s.Add(epilogs))
		}
		if c.lost {
			errs = append(errs, s.AddLost(lost))
		}
		if c.there {
			errs = append(errs, d.Put(t.Context(), epilogs))
		}
		refused, err := s.Drain(t.Context(), d.Put, d.PutIfNone)
		if err := errors.Join(append(errs, err)...); err != nil || refused > 0 {
			t.Fatal(refused, err)
		}
		got, err := d.Attempts(t.Context(), nil)
		if err != nil || len(got) != 1 || got[0].State != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if left, err := os.ReadDir(s.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left %v, %v", name, left, err)
		}
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
	f.Add("7.1.n1.lost.json", text)
	f.Add("7.1.json", []byte(`{"job":7,"restart":1,"node":"../n1"}`))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		a, ok := spooled(name, text)
		attempt := fmt.Sprintf("%d.%d.%s", a.JobID, a.Restart, a.Node)
		if ok && name != attempt+".json" && name != attempt+".lost.json" {
			t.Errorf("%s has %+v", name, a)
		}
	})
}
