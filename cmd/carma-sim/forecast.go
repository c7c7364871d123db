// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"carma/cmd/carma-sim/internal/forecast"
	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/run"
	"carma/cmd/internal/cli"
	"carma/cmd/internal/records"
	"carma/db"
	"carma/db/source"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/slurmtime"
)

const forecastUsage = `usage: carma-sim forecast [OPTIONS]

Reads the records of a time, as carma-report does, and says what sharing would have
brought to this cluster: the same jobs are replayed without sharing and with it, by
policy and by number of sharing partitions. As with sacct, the default is today.

  carma-sim forecast -S now-7days --html week.html
`

func runForecast(args []string, out io.Writer) error {
	f := cli.Flags("carma-sim forecast", forecastUsage, out)
	place := records.Place{Program: "carma-sim"}
	var size forecast.Size
	var rep run.Repeats
	from := f.StringP("starttime", "S", "", "only jobs that ran after `TIME`: now-2days, today, 2026-01-31T13:00")
	to := f.StringP("endtime", "E", "", "only jobs that ran before `TIME`")
	clusters := f.StringP("clusters", "M", "", "only jobs of these `CLUSTERS`")
	place.Flags(f)
	f.IntVar(&size.Nodes, "nodes", 0, "as if all partitions were one of this many nodes")
	f.IntVar(&size.GPUs, "gpus", 0, "GPUs of one node (default: as in the records)")
	mem := f.String("gpu-mem", "", "memory of one GPU: `MIB` or a size such as 80G (default: as in the records)")
	rep.Flags(f, 8)
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	parsable := f.BoolP("parsable2", "P", false, "plain figures (seconds, joules) between |")
	page := f.String("html", "", "write a page with charts to this `FILE`")
	if err := parse(f, args); err != nil {
		return err
	}
	if *mem != "" {
		var err error
		if size.GPUMemMiB, err = directive.ParseMiB(*mem); err != nil {
			return cli.Fail(cli.ExitUsage, "--gpu-mem: %q: %w", *mem, err)
		}
	}
	filter := db.Filter{}
	if *clusters != "" {
		filter.Clusters = strings.Split(*clusters, ",")
	}
	if *from == "" {
		*from = "today"
	}
	var err error
	if filter.From, filter.To, err = slurmtime.Period(*from, *to, time.Now()); err != nil {
		return status(err)
	}
	return forecastOf(context.Background(), &place, filter, size, rep, func(c *run.Forecast) error {
		if *page != "" {
			if err := writeFile(*page, c.WriteHTML); err != nil {
				return err
			}
		}
		switch {
		case *asJSON:
			return printJSON(out, c)
		case *parsable:
			return c.Parsable(out)
		}
		return c.Print(out)
	})
}

// forecastOf reads the records, makes a forecast of them and has it shown.
func forecastOf(ctx context.Context, place *records.Place, filter db.Filter, size forecast.Size, rep run.Repeats,
	show func(*run.Forecast) error) error {
	read, meters, err := gather(ctx, place, filter)
	if err != nil {
		return err
	}
	c, err := cli.Config(place.Config)
	if err != nil {
		return status(err)
	}
	plan, err := read.Plan(meters, size, model.Default())
	if errors.Is(err, forecast.ErrNothing) {
		return cli.Fail(cli.ExitNotFound, "%w", err)
	} else if err != nil {
		return status(err)
	}
	f, err := run.NewForecast(plan, c, rep)
	if err != nil {
		return status(err)
	}
	return show(f)
}

// gather reads records, and the GPUs of the nodes where databases have them.
func gather(ctx context.Context, place *records.Place, filter db.Filter) (*forecast.Records, []db.Meter, error) {
	dbd, err := place.Slurmdbd()
	if err != nil {
		return nil, nil, err
	}
	var sources []source.Source
	var meters []db.Meter
	if dbd {
		src, err := place.Ask(ctx, filter)
		if err != nil {
			return nil, nil, err
		}
		sources = append(sources, src)
	} else {
		bases, closeAll, err := place.Open(time.Now())
		defer closeAll()
		if err != nil {
			return nil, nil, err
		}
		for _, d := range bases {
			m, err := d.Meters(ctx)
			if err != nil {
				fmt.Fprintf(os.Stderr, "carma-sim: %v; the GPUs are those that jobs had\n", err)
			}
			meters, sources = append(meters, m...), append(sources, source.Of(d))
		}
	}
	read := &forecast.Records{From: filter.From, To: filter.To}
	filter.From = time.Time{} // what ran before teaches, as in carma-report history
	err = source.Scan(ctx, sources, filter, func(list []db.Attempt) error {
		read.Add(list)
		return nil
	})
	if err != nil {
		return nil, nil, cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	return read, meters, nil
}
