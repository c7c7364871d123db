// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// oldCopy is a replaced copy.
type oldCopy struct {
	file *os.File
	at   time.Time
}

// copy puts a new copy in the place of the old copy, and tells the cost.
func (p *Publisher) copy(ctx context.Context, name string) (cpu time.Duration, bytes int64, err error) {
	before := processTime()
	defer func() {
		cpu = processTime() - before
		p.next = time.Now().Add(pause(cpu, bytes, bytesPerS, soon))
	}()
	path := filepath.Join(p.dir(), name)
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, err
	}
	if err := p.room(path); err != nil {
		return 0, 0, err
	}
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, 0, err
	}
	defer os.Remove(temp) // unless renamed
	n, err := fill(ctx, temp, p.Path, name, *p.readers)
	if info, statErr := f.Stat(); statErr == nil {
		bytes = info.Size() // a write in vain counts, too
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return 0, bytes, err
	}
	if n == 0 && userOf(name) != 0 { // pruned: a user without records reads none
		return 0, bytes, p.remove(path)
	}
	if err := p.readers.allow(temp, name); err != nil {
		return 0, bytes, err
	}
	return 0, bytes, p.replace(path, func() error { return os.Rename(temp, path) })
}

// spareMiB stays free of a file system with copies, or a twentieth of a small one.
const spareMiB = 256

// room is an error where a new copy would take the last of the file system: others who write there would fail each time
// that the copy is tried.
func (p *Publisher) room(path string) error {
	old, err := os.Stat(path)
	if err != nil {
		old, err = os.Stat(p.Path)
	}
	var st unix.Statfs_t
	if err == nil {
		err = unix.Statfs(filepath.Dir(path), &st)
	}
	if err != nil {
		return fmt.Errorf("look for room for a copy: %w", err)
	}
	free, spare := int64(st.Bavail)*st.Bsize, min(int64(st.Blocks)*st.Bsize/20, spareMiB<<20)
	if need := old.Size() + old.Size()/4 + spare; free < need {
		return fmt.Errorf("%d MiB are free, and a copy wants %d: %w", free>>20, need>>20, unix.ENOSPC)
	}
	return nil
}

// processTime is the time on all cores that this process has used.
func processTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (p *Publisher) remove(path string) error {
	err := p.replace(path, func() error { return os.Remove(path) })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// replace removes a copy and remembers it until nobody may read it any longer.
func (p *Publisher) replace(path string, do func() error) error {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = do()
	if f == nil {
		return err
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	p.old = append(p.old, oldCopy{f, time.Now()})
	return nil
}

// empty takes the disk back that copies from before a time still have, if somebody has them
// open.
func (p *Publisher) empty(before time.Time) {
	for len(p.old) > 0 && p.old[0].at.Before(before) {
		p.old[0].file.Truncate(0)
		p.old[0].file.Close()
		p.old = p.old[1:]
	}
}
