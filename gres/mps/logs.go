// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"carma/gres"
)

// A daemon has control.log and server.log, with what each command and each client
// does: a user who connects in a loop, or writes into the FIFO of the servers, fills
// them.
const (
	maxLog    = 7 << 20
	keptOfLog = 1 << 20 // of an emptied log, as NAME.old
)

// keepLogs is how long the logs of a daemon that has ended are kept.
const keepLogs = 24 * time.Hour

func (c Control) makeLogDir(d gres.Daemon) error {
	for _, dir := range []string{c.LogDir, c.logDir(d)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o700); err != nil { // whoever made it
			return err
		}
	}
	return nil
}

// BoundLogs empties logs that have grown too long and removes the logs of daemons that
// ended long ago. A daemon keeps its logs open, and goes on at their beginning, or, if
// it does not append, at its old place: then the file has a hole, which takes no room.
func (c Control) BoundLogs() error {
	dirs, err := os.ReadDir(c.LogDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, d := range dirs {
		if d.IsDir() && (strings.HasPrefix(d.Name(), "GPU-") || strings.HasPrefix(d.Name(), "set-")) { // name
			err = errors.Join(err, c.boundLogs(d.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("bound the logs of the MPS daemons: %w", err)
	}
	return nil
}

func (c Control) boundLogs(daemon string) error {
	dir := filepath.Join(c.LogDir, daemon)
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	newest := st.ModTime()
	for _, f := range files {
		info, statErr := f.Info()
		if statErr != nil || !info.Mode().IsRegular() {
			continue // already gone
		}
		if info.ModTime().After(newest) {
			newest = info.ModTime()
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Blocks*512 > maxLog {
			err = errors.Join(err, empty(filepath.Join(dir, f.Name())))
		}
	}
	if t, _ := readTenure(filepath.Join(c.RunDir, "mps", daemon)); time.Since(newest) > keepLogs && !t.runs() {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// retireLogs puts away what was written before a tenure: the end of each log as
// NAME.old.
func (c Control) retireLogs(d gres.Daemon) (err error) {
	for _, log := range []string{"control.log", "server.log"} {
		path := filepath.Join(c.logDir(d), log)
		emptied := empty(path)
		if errors.Is(emptied, fs.ErrNotExist) {
			continue
		}
		err = errors.Join(err, emptied, os.Remove(path))
	}
	return err
}

// empty leaves the end of a log as NAME.old and nothing in its place. Text written
// in between is lost.
func empty(path string) error {
	log, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	size, err := log.Seek(0, io.SeekEnd)
	old, oldErr := os.OpenFile(path+".old", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err == nil && oldErr == nil {
		_, oldErr = io.Copy(old, io.NewSectionReader(log, max(size-keptOfLog, 0), keptOfLog))
		oldErr = errors.Join(oldErr, old.Close())
	}
	return errors.Join(err, log.Truncate(0), oldErr) // also where the disk is full
}
