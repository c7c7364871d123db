// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"carma/cmd/internal/cli"
	"carma/slurmbridge/directive"
)

// maxScript is slurm.conf's default of max_script_size: no larger script can
// be submitted.
const maxScript = 4 << 20

// script is a batch script as it was read.
type script struct {
	path   string // as the user gave it
	target string // the file itself, behind symbolic links
	text   []byte
	info   os.FileInfo
}

// readScript reads a regular file of at most maxScript bytes.
func readScript(path string) (script, error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return script{}, unreadable("read script "+path, err)
	}
	text, info, err := readRegular(target, maxScript)
	if err != nil {
		return script{}, unreadable("read script "+path, err)
	}
	return script{path, target, text, info}, nil
}

// readRegular reads a regular file of at most most bytes. It does not wait for
// a writer where path is a pipe.
func readRegular(path string, most int64) ([]byte, os.FileInfo, error) {
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

// readSummary reads a model summary from a file, a pipe or stdin.
func (p *program) readSummary(path string) ([]byte, error) {
	in := p.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, unreadable("read summary "+path, err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, directive.MaxSummary+1))
	if err == nil && len(text) > directive.MaxSummary {
		err = errors.New("it is larger than 1 MiB: print fewer levels of the model")
	}
	if err != nil {
		return nil, unreadable("read summary "+path, err)
	}
	return text, nil
}

// unreadable is the error for a file of the user's that cannot be read.
func unreadable(doing string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		return cli.Fail(cli.ExitPermission, "%s: %w", doing, cause(err))
	}
	return cli.Fail(cli.ExitUsage, "%s: %w", doing, cause(err))
}
