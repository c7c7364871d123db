// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// private is for the owner alone.
const private = 0o600

// Private keeps the files of an SQLite database to their owner: a user who can open a file,
// even for reading only, can lock the file and keep all others waiting: a lock on one byte
// of the -shm file ends every transaction (sqlite.org/wal.html, section 2.2). Private makes
// the database at path, empty, if there is none, and takes away others' rights to an
// existing database, and to its -wal and -shm. SQLite makes these two with the mode of the
// database. A file that is open already stays open.
//
// Private opens no existing file: the close would end this process's locks on the file
// (fcntl(2)).
func Private(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, private)
	if err == nil {
		return f.Close()
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Lstat(path + suffix)
		if errors.Is(err, fs.ErrNotExist) || err == nil && (!info.Mode().IsRegular() || info.Mode().Perm()&^private == 0) {
			continue
		}
		if err == nil {
			err = os.Chmod(path+suffix, info.Mode().Perm()&private)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // SQLite removes both at the last close
			return fmt.Errorf("keep %s to its owner: %w", path+suffix, err)
		}
	}
	return nil
}
