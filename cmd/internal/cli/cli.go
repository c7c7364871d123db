// SPDX-License-Identifier: Apache-2.0

// Package cli holds what the commands have in common: exit statuses and
// output. Results go to stdout; everything else goes to stderr with the
// program's name in front, lower case, without a full stop.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"carma/slurmbridge/config"
	"carma/slurmbridge/version"
)

// Exit statuses, the same for every command (docs/json.md, man pages).
const (
	ExitOK          = 0
	ExitUsage       = 1
	ExitNotFound    = 2 // nothing matches
	ExitUnavailable = 3 // database or cluster cannot be reached
	ExitNewer       = 4 // database is newer than the program
	ExitPermission  = 5
	ExitUnfit       = 6 // something in the installation must be fixed
	ExitInternal    = 70
)

// Error is an error with the exit status that it means.
type Error struct {
	Status int
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Fail returns an error that ends the program with status.
func Fail(status int, format string, args ...any) error {
	return &Error{status, fmt.Errorf(format, args...)}
}

// Status returns the exit status of a program that ended with err.
func Status(err error) int {
	var e *Error
	switch {
	case err == nil, errors.Is(err, pflag.ErrHelp):
		return ExitOK
	case errors.As(err, &e):
		return e.Status
	case errors.Is(err, os.ErrPermission):
		return ExitPermission
	}
	return ExitInternal
}

// Exit prints err, if any, and ends the program.
func Exit(program string, err error) {
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(program), err)
	}
	os.Exit(Status(err))
}

// Flags returns a flag set whose help is usage followed by the flags. That of a program,
// not of one of its subcommands, has --version.
func Flags(name, usage string, out io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, usage)
		if f.HasAvailableFlags() {
			fmt.Fprint(out, "\nOptions:\n", f.FlagUsages())
		}
	}
	if !strings.Contains(name, " ") {
		f.VarPF(&release{name, out}, "version", "", "print the version").NoOptDefVal = "true"
	}
	return f
}

// release is a flag that prints the version of a program and ends it, as --help does.
type release struct {
	program string
	out     io.Writer
}

func (r *release) String() string { return "" }
func (r *release) Type() string   { return "bool" }

func (r *release) Set(string) error {
	fmt.Fprintln(r.out, r.program, version.String())
	return pflag.ErrHelp
}

// Parse parses args; a mistake in them is a usage error.
func Parse(f *pflag.FlagSet, args []string) error {
	err := f.Parse(args)
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return err
	}
	return Fail(ExitUsage, "%w; see %s --help", err, f.Name())
}

// ConfigPath is where carma.toml is unless a flag says otherwise: $CARMA_CONF,
// which a development cluster sets, or the one place for all.
func ConfigPath() string {
	if path := os.Getenv("CARMA_CONF"); path != "" {
		return path
	}
	return config.DefaultPath
}
