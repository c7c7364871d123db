// SPDX-License-Identifier: Apache-2.0

package script

import (
	"os"
	"path/filepath"
	"testing"

	"carma/estimator"
	"carma/estimator/history"
)

// --base is the user's word: what earlier runs say of the base does not change it.
func TestBaseIsTheUsers(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "history")
	if err := os.WriteFile(file, history.Make(nil, nil, []history.Shift{{FullMiB: 40536, MiB: 111, Jobs: 9}}),
		0o644); err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile("../../testdata/carma.toml")
	if err != nil {
		t.Fatal(err)
	}
	toml := filepath.Join(dir, "carma.toml")
	if err := os.WriteFile(toml, append(conf, "\n[history]\nfile = \""+file+"\"\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	for base, shifts := range map[int64]bool{0: true, 600: false} {
		s, err := LoadSite(toml, true, Ask{BaseMiB: base}, estimator.ByMethod)
		if err != nil {
			t.Fatal(err)
		}
		if ok := s.History.ShiftMiB(40536) == 111; ok != shifts {
			t.Errorf("--base=%d: shifted is %v", base, ok)
		}
	}
}
