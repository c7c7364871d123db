// SPDX-License-Identifier: Apache-2.0

package script

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	oldScript = "#!/bin/sh\n#CARMA on\n"
	newScript = "#!/bin/sh\n#CARMA on mem=7G\n"
)

// newTestScript makes a script in a directory of its own.
func newTestScript(t *testing.T) File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "job.sh")
	if err := os.WriteFile(path, []byte(oldScript), 0o644); err != nil {
		t.Fatal(err)
	}
	return mustRead(t, path)
}

func mustRead(t *testing.T, path string) File {
	t.Helper()
	s, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// alone tells that a script holds text and that nothing lies beside it.
func alone(t *testing.T, s File, text string) {
	t.Helper()
	if got, err := os.ReadFile(s.target); err != nil || string(got) != text {
		t.Errorf("%s holds %q, %v; want %q", s.target, got, err, text)
	}
	list, err := os.ReadDir(filepath.Dir(s.target))
	if err != nil || len(list) != 1 {
		t.Errorf("beside the script: %v, %v", list, err)
	}
}

func TestReplaceKeepsModeAndOwner(t *testing.T) {
	for _, mode := range []os.FileMode{0o400, 0o644, 0o755, 0o777, 0o750 | os.ModeSetuid | os.ModeSetgid} {
		s := newTestScript(t)
		uid, gid := os.Getuid(), os.Getgid()
		if uid == 0 {
			uid, gid = 12345, 23456 // only root can see this go wrong
		}
		if err := os.Chown(s.target, uid, gid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(s.target, mode); err != nil {
			t.Fatal(err)
		}
		s = mustRead(t, s.target)
		if err := s.Replace([]byte(newScript)); err != nil {
			t.Fatal(err)
		}
		alone(t, s, newScript)
		info, err := os.Stat(s.target)
		if err != nil {
			t.Fatal(err)
		}
		is := info.Sys().(*syscall.Stat_t)
		if info.Mode() != mode || int(is.Uid) != uid || int(is.Gid) != gid {
			t.Errorf("mode %v of %d:%d, want %v of %d:%d", info.Mode(), is.Uid, is.Gid, mode, uid, gid)
		}
	}
}

func TestReplaceFollowsLinks(t *testing.T) {
	s := newTestScript(t)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	for link, to := range map[string]string{first: s.target, second: "first"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	l := mustRead(t, second)
	if err := l.Replace([]byte(newScript)); err != nil {
		t.Fatal(err)
	}
	alone(t, s, newScript)
	for _, link := range []string{first, second} {
		if info, err := os.Lstat(link); err != nil || info.Mode().Type() != os.ModeSymlink {
			t.Errorf("%s is no link any more: %v, %v", link, info, err)
		}
	}
}

func TestReplaceLeavesEqualBytesAlone(t *testing.T) {
	s := newTestScript(t)
	if err := s.Replace([]byte(oldScript)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(s.target); err != nil || !os.SameFile(info, s.info) {
		t.Errorf("the file was replaced: %v", err)
	}
}

func TestReplaceSeesOthersWriting(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"longer": func(p string) error { return os.WriteFile(p, []byte(oldScript+"echo\n"), 0o644) },
		"later":  func(p string) error { return os.Chtimes(p, time.Time{}, time.Unix(1, 0)) },
		"other file": func(p string) error {
			return errors.Join(os.WriteFile(p+"2", []byte(oldScript), 0o644), os.Rename(p+"2", p))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestScript(t)
			if err := change(s.target); err != nil {
				t.Fatal(err)
			}
			theirs, err := os.ReadFile(s.target)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Replace([]byte(newScript))
			if want := s.path + ": it is unchanged: another process is writing it; try again"; message(err) != want {
				t.Errorf("got %v, want %s", err, want)
			}
			alone(t, s, string(theirs))
		})
	}
}

// A text that does not say what was meant never takes the script's place.
func TestReplaceReadsBack(t *testing.T) {
	s := newTestScript(t)
	err := s.Replace([]byte("#!/bin/sh\n#CARMA mem=banana\n"))
	if err == nil || !strings.Contains(err.Error(), "read back what was written: line 2: mem=banana") {
		t.Errorf("got %v", err)
	}
	alone(t, s, oldScript)
}

func TestReplaceReadOnlyDirectory(t *testing.T) {
	s := newTestScript(t)
	dir := filepath.Dir(s.target)
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Chmod(dir, 0o755); err != nil { // so that it can be removed
			t.Error(err)
		}
	}()
	done := make(chan error)
	go func() {
		// Root may write anywhere: this thread, which ends with the
		// goroutine, gives that up.
		runtime.LockOSThread()
		if os.Getuid() == 0 {
			if _, err := unix.SetfsuidRetUid(65534); err != nil {
				done <- err
				return
			}
		}
		done <- s.Replace([]byte(newScript))
	}()
	err := <-done
	if want := s.path + ": it is unchanged: make a new file beside it in " + dir +
		": permission denied"; message(err) != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if !errors.Is(err, os.ErrPermission) { // of which the exit status tells
		t.Errorf("%v is no lack of permission", err)
	}
	alone(t, s, oldScript)
}
