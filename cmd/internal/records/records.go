// SPDX-License-Identifier: Apache-2.0

// Package records opens the records that a command's flags name.
package records

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
	"carma/db"
	"carma/db/source"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

// Place is where records are. Program stands in front of notes on stderr.
type Place struct {
	Program string
	Files   []string
	From    string
	Config  string
}

// Flags are the words of the place.
func (p *Place) Flags(f *pflag.FlagSet) {
	f.StringArrayVar(
		&p.Files,
		"db",
		nil,
		"read this database `FILE`; may be given several times (default: paths.db of carma.toml)",
	)
	f.StringVar(
		&p.From,
		"from",
		"sqlite",
		"`SOURCE` of the records: sqlite, the nodes' databases; slurmdbd, if carma.toml has forward = \"slurmdbd\"",
	)
	f.StringVar(&p.Config, "config", cli.ConfigPath(), "`FILE` to read the configuration from")
}

// Slurmdbd tells whether the records are in slurmdbd rather than in databases.
func (p *Place) Slurmdbd() (bool, error) {
	switch p.From {
	case "slurmdbd", "sqlite":
		return p.From == "slurmdbd", nil
	}
	return false, cli.Fail(cli.ExitUsage, "--from=%s: must be sqlite or slurmdbd", p.From)
}

// Open opens the databases that the flags or carma.toml name. closeAll is never nil.
func (p *Place) Open(now time.Time) (bases []*db.DB, closeAll func(), err error) {
	files := p.Files
	if len(files) == 0 {
		c, err := cli.Config(p.Config)
		if err != nil {
			return nil, func() {}, cli.Fail(cli.ExitUsage, "%w; name a database with --db", err)
		}
		files = []string{c.DBPath(sctl.ShortHost())}
	}
	bases, notes, closeAll, err := source.Open(files, now)
	for _, note := range notes {
		p.note("%s", note)
	}
	switch {
	case err == nil || errors.Is(err, os.ErrPermission):
		return bases, closeAll, err
	case errors.Is(err, db.ErrNewer):
		return nil, closeAll, cli.Fail(cli.ExitNewer, "%w", err)
	}
	return nil, closeAll, cli.Fail(cli.ExitUnavailable, "%w", err)
}

// Ask reads what slurmdbd has.
func (p *Place) Ask(ctx context.Context, f db.Filter) (source.Source, error) {
	c, err := config.Load(p.Config, os.ReadFile)
	if err != nil {
		return nil, cli.Fail(cli.ExitUsage, "%w; it says where sacct is", err)
	}
	src, left, err := source.Slurmdbd(ctx, sctl.For(c.Slurm, os.Getenv("SLURM_CONF")), f)
	if err != nil {
		return nil, cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	if left.Spoiled > 0 {
		p.note("the records of %d jobs in slurmdbd are corrupt; the nodes' databases have them", left.Spoiled)
	}
	if left.Refused > 0 {
		p.note("%d records in slurmdbd are attached to the wrong jobs; they are left out", left.Refused)
	}
	return src, nil
}

func (p *Place) note(format string, args ...any) {
	fmt.Fprintf(os.Stderr, p.Program+": "+format+"\n", args...)
}
