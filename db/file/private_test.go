// SPDX-License-Identifier: Apache-2.0

package file

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestPrivate(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	path := filepath.Join(t.TempDir(), "x.db")
	modes := func(want ...os.FileMode) {
		t.Helper()
		for i, suffix := range []string{"", "-wal", "-shm"} {
			info, err := os.Stat(path + suffix)
			if want[i] == 0 && os.IsNotExist(err) {
				continue
			}
			if err != nil || info.Mode().Perm() != want[i] {
				t.Errorf("%s: %v, %v; want %v", suffix, info.Mode(), err, want[i])
			}
		}
	}
	private := func() {
		t.Helper()
		if err := Private(path); err != nil {
			t.Fatal(err)
		}
	}
	private()
	modes(0o600, 0, 0)
	for suffix, mode := range map[string]os.FileMode{"": 0o644, "-wal": 0o664, "-shm": 0o666} {
		if err := os.WriteFile(path+suffix, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path+suffix, mode); err != nil {
			t.Fatal(err)
		}
	}
	private()
	modes(0o600, 0o600, 0o600)
	if err := os.Chmod(path, 0o400); err != nil { // narrower is the admin's
		t.Fatal(err)
	}
	private()
	modes(0o400, 0o600, 0o600)
	if text, err := os.ReadFile(path); err != nil || string(text) != "kept" {
		t.Errorf("%q, %v", text, err)
	}
	// A link of an admin's leads elsewhere; its target's modes are not ours.
	link := filepath.Join(t.TempDir(), "y.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := Private(link); err != nil {
		t.Error(err)
	}
}
