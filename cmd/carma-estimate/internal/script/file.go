// SPDX-License-Identifier: Apache-2.0

// Package script reads batch scripts as sbatch does, says what slurmctld will make
// of them, and puts keys and a summary into them.
package script

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// MaxBytes is slurm.conf's default of max_script_size: no larger script can
// be submitted.
const MaxBytes = 4 << 20

// File is a batch script as read.
type File struct {
	path   string // as given by the user
	target string // the file itself, behind symbolic links
	Text   []byte
	info   os.FileInfo
}

// Read reads a regular file of at most MaxBytes.
func Read(path string) (File, error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return File{}, &Unreadable{"read script " + path, err}
	}
	text, info, err := ReadRegular(target, MaxBytes)
	if err != nil {
		return File{}, &Unreadable{"read script " + path, err}
	}
	return File{path, target, text, info}, nil
}

// ReadRegular reads a regular file of at most most bytes. It does not wait for
// a writer where path is a pipe.
func ReadRegular(path string, most int64) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, nil, err
	case !info.Mode().IsRegular():
		return nil, nil, errors.New("it is not a regular file")
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("it is larger than %d MiB", most>>20)
	}
	return text, info, err
}

// Unreadable is an unreadable file of the user's.
type Unreadable struct {
	Doing string // "read script job.sh"
	Err   error
}

func (u *Unreadable) Error() string { return u.Doing + ": " + Cause(u.Err).Error() }
func (u *Unreadable) Unwrap() error { return u.Err }

// Cause leaves out a file name already in the message, or the name of a
// temporary file.
func Cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
