// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"carma/slurmbridge/directive"
)

// Replace puts text into the script's place, with the old mode and owner. At
// any time the script is either the old or the new one, whole.
func (s File) Replace(text []byte) error {
	if bytes.Equal(text, s.Text) {
		return nil
	}
	if err := s.swap(text); err != nil {
		return fmt.Errorf("%s: it is unchanged: %w", s.path, err)
	}
	return nil
}

func (s File) swap(text []byte) (err error) {
	dir := filepath.Dir(s.target)
	f, err := os.CreateTemp(dir, ".carma-estimate-*")
	if err != nil {
		return fmt.Errorf("make a new file beside it in %s: %w", dir, Cause(err))
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(text); err != nil {
		return err
	}
	if err = s.copyOwnerAndMode(f); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = readBack(f.Name(), text); err != nil {
		return err
	}
	now, err := os.Stat(s.target)
	if err != nil {
		return err
	}
	if !os.SameFile(now, s.info) || !now.ModTime().Equal(s.info.ModTime()) || now.Size() != s.info.Size() {
		return errors.New("another process is writing it; try again")
	}
	if err = os.Rename(f.Name(), s.target); err != nil {
		return err
	}
	syncDir(dir)
	return nil
}

// copyOwnerAndMode gives f the owner and the mode of the script. The mode comes last: a
// change of owner takes set-user-ID away (chown(2)).
func (s File) copyOwnerAndMode(f *os.File) error {
	if was, ok := s.info.Sys().(*syscall.Stat_t); ok {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		is, ok := info.Sys().(*syscall.Stat_t)
		if ok && (is.Uid != was.Uid || is.Gid != was.Gid) {
			if err := f.Chown(int(was.Uid), int(was.Gid)); err != nil {
				return fmt.Errorf("keep its owner %d and group %d: %w", was.Uid, was.Gid, Cause(err))
			}
		}
	}
	return f.Chmod(s.info.Mode())
}

// readBack compares the file's content with the text to be written.
func readBack(path string, text []byte) error {
	got, _, err := ReadRegular(path, MaxBytes)
	if err != nil {
		return fmt.Errorf("read back what was written: %w", err)
	}
	is, err := directive.Parse(got)
	if err != nil {
		return fmt.Errorf("read back what was written: %w", err)
	}
	if meant, err := directive.Parse(text); err != nil || !is.Equal(meant) || !bytes.Equal(got, text) {
		return errors.New("what was written does not read back the same")
	}
	return nil
}

// syncDir makes a rename last. The script is in its place whether this works
// or not, and whoever may not read the directory cannot do it.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		d.Close()
	}
}
