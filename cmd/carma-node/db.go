// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"carma/cmd/internal/cli"
	"carma/db"
	"carma/gres/records"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

const dbUsage = `usage: carma-node db check|backup|prune [OPTIONS]

  check        look for damage
  backup FILE  write a copy, even while the database is in use
  prune        delete what is older than keep_records and keep_samples of
               [accounting]; the agent does so every hour
`

func runDB(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node db", dbUsage, os.Stdout)
	path := f.String("db", "", "database `FILE` (default: paths.db of carma.toml)")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	c := config.Default()
	if *path == "" || f.Arg(0) == "prune" {
		var err error
		if c, err = cli.Config(e.config); err != nil {
			return cli.Fail(cli.ExitUsage, "%w; name a file with carma-node --config", err)
		}
	}
	if *path == "" {
		*path = c.DBPath(sctl.NodeName(e.node))
	}
	switch {
	case f.NArg() == 1 && f.Arg(0) == "check":
		return checkDB(ctx, *path)
	case f.NArg() == 2 && f.Arg(0) == "backup":
		return withDB(*path, func(d *db.DB) error { return d.Backup(ctx, f.Arg(1)) })
	case f.NArg() == 1 && f.Arg(0) == "prune":
		return withDB(*path, func(d *db.DB) error {
			p, err := records.Prune(ctx, d, c.Accounting, time.Now())
			if err == nil {
				fmt.Printf("%d records and %d samples deleted\n", p.Attempts, p.Samples)
			}
			return err
		})
	}
	return cli.Fail(cli.ExitUsage, "db takes check, backup FILE or prune; see carma-node db --help")
}

// withDB does something with an existing database.
func withDB(path string, do func(*db.DB) error) error {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return cli.Fail(cli.ExitUnavailable, "open %s: %w", path, db.ErrMissing)
	}
	d, err := db.Open(path)
	if errors.Is(err, db.ErrNewer) {
		return cli.Fail(cli.ExitNewer, "%w", err)
	} else if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	defer d.Close()
	return do(d)
}

func checkDB(ctx context.Context, path string) error {
	return withDB(path, func(d *db.DB) error {
		found, err := d.Check(ctx)
		if err != nil {
			return cli.Fail(cli.ExitUnavailable, "%s: %w", path, err)
		}
		for _, line := range found {
			fmt.Println(line)
		}
		if len(found) > 0 {
			return cli.Fail(cli.ExitUnavailable, "%s is damaged; write a backup, and restore one from before", path)
		}
		fmt.Printf("%s: sound\n", path)
		return nil
	})
}
