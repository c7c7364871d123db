// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"carma/cmd/carma-estimate/internal/cases"
	"carma/cmd/carma-estimate/internal/script"
	"carma/slurmbridge/directive"
)

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
func unreadable(doing string, err error) error { return &script.Unreadable{Doing: doing, Err: err} }

// runCases answers the cases of a file.
func (p *program) runCases(path string) error {
	in, dir := p.in, ""
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return unreadable("read cases "+path, err)
		}
		defer f.Close()
		in, dir = f, filepath.Dir(path)
	}
	return cases.Run(in, path, dir, p.out, p.estimate)
}
