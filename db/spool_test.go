// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"carma/gres"
)

func TestSpool(t *testing.T) {
	path := filepath.Join(t.TempDir(), "carma.db")
	s := SpoolOf(path)
	d := openFor(t, path)
	if err := s.Drain(t.Context(), d.Put); err != nil {
		t.Errorf("no spool: %v", err)
	}
	a := attempt(7, 0)
	a.GPUs[0].EnergyJ = gres.Unknown
	for _, a := range []Attempt{a, attempt(8, 1), a} {
		if err := s.Add(a); err != nil {
			t.Fatal(err)
		}
	}
	away := errors.New("the database is away")
	if err := s.Drain(t.Context(), func(context.Context, Attempt) error { return away }); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
	bad := filepath.Join(s.Dir, "0.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Drain(t.Context(), d.Put); err != nil {
			t.Fatal(err)
		}
	}
	got, err := d.Attempts(t.Context(), nil)
	a.Total = TotalOf(a.GPUs)
	if err != nil || len(got) != 2 || fmt.Sprintf("%+v", got[0]) != fmt.Sprintf("%+v", a) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, a)
	}
	left, err := os.ReadDir(s.Dir)
	if err != nil || len(left) != 1 || left[0].Name() != "0.json.bad" {
		t.Errorf("left %v, %v", left, err)
	}
}
