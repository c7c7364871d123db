// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestReplace(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := t.TempDir()
	path, other := filepath.Join(dir, "x"), filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What a killed process, or somebody else, has left under the name of the new file.
	if err := os.Link(other, filepath.Join(dir, ".x.new")); err != nil {
		t.Fatal(err)
	}
	for i, put := range []func(string, []byte, os.FileMode) error{Replace, ReplaceDurably} {
		want := string(rune('a' + i))
		if err := put(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(text) != want || info.Mode().Perm() != 0o644 {
			t.Errorf("%q, %v, %v, %v", text, info.Mode(), err, statErr)
		}
	}
	if text, err := os.ReadFile(other); err != nil || string(text) != "other" {
		t.Errorf("another file: %q, %v", text, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("left: %v, %v", list, err)
	}
	if err := Replace(filepath.Join(dir, "none", "x"), nil, 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a directory: %v", err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	held, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if f, err := TryLock(path); f != nil || err != nil {
		t.Errorf("locked twice: %v, %v", f, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Lock(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waited for: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { held.Close() })
	f, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	link := path + ".link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if f, err := TryLock(link); f != nil || err == nil {
		t.Errorf("a link was followed")
	}
}
