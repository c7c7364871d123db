// SPDX-License-Identifier: Apache-2.0

// Package file writes, locks and keeps to their owner the files in which processes of a
// machine meet. Their directories are root's.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Replace puts text at path: a reader gets the old text, or all of the new.
func Replace(path string, text []byte, mode fs.FileMode) error {
	return replace(path, text, mode, false)
}

// ReplaceDurably is Replace for files that outlast a loss of power.
func ReplaceDurably(path string, text []byte, mode fs.FileMode) error {
	return replace(path, text, mode, true)
}

func replace(path string, text []byte, mode fs.FileMode, durably bool) error {
	// Not seen in listings of the directory; always of the same name, so that killed
	// processes leave one file at most. An existing file is not written to: others may
	// have made the file.
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	os.Remove(temp)
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask
	}
	if err == nil && durably {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(temp)
		return err
	}
	return os.Rename(temp, path)
}

// lockEvery is the pause between two tries to lock.
const lockEvery = 5 * time.Millisecond

// Lock opens the file, which it makes for its owner alone, and locks it until it is
// closed. Lock waits for others until ctx ends.
func Lock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := LockOpen(ctx, f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// LockOpen is Lock for an open file or directory.
func LockOpen(ctx context.Context, f *os.File) error {
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", f.Name(), ctx.Err())
		case <-time.After(lockEvery):
		}
	}
}

// TryLock is Lock without waiting: the file is nil while another has the lock.
func TryLock(path string) (*os.File, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f, err := Lock(ctx, path)
	if errors.Is(err, context.Canceled) {
		return nil, nil
	}
	return f, err
}
