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

// Private keeps the files of an SQLite database to their owner: whoever can open a file can
// lock it, be it for reading only, and so keep all others waiting: a lock on one byte of the
// -shm file ends every transaction (sqlite.org/wal.html, section 2.2). It makes the database
// at path, empty, if there is none, and takes away what others
// may do with one that is there, and with its -wal and -shm. SQLite makes these with the
// mode of the database. Who has a file open already keeps it.
//
// It opens no file that is there: closing it would end the locks that this process has on
// it (fcntl(2)).
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
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // SQLite takes them away with the last who closes
			return fmt.Errorf("keep %s to its owner: %w", path+suffix, err)
		}
	}
	return nil
}
