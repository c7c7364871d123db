// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"

	"github.com/spf13/pflag"

	"carma/cmd/carma-report/internal/report"
	"carma/cmd/internal/cli"
	"carma/cmd/internal/records"
)

const usage = `usage: carma-report [OPTIONS] [JOB...]
       carma-report [OPTIONS] summary
       carma-report [OPTIONS] gpus
       carma-report [OPTIONS] history [--write]

Shows jobs that ran on GPUs under CARMA: what was estimated, booked and used,
which jobs shared the GPU, what it cost and saved, and OOMs and requeues. One job
is shown in detail, several as a table. A JOB is a job id or the name of its
output file. As with sacct, the default is today's jobs, unless -S or jobs are given.

summary prints totals by user, account, partition, GPU and day; gpus shows SM
activity, memory and power of the GPUs over time; history lists learned memory, and
with --write writes the file that job_submit reads (run by a timer).

Exit status: 0 success; 1 wrong usage; 2 no record of a named job; 3 the database
is missing or cannot be read; 4 the database is newer than this program; 5 no
permission; 70 anything else.
`

// options are the flags.
type options struct {
	report.Options
	place             records.Place
	helpFormat, write bool
	allocations       bool
}

func (o *options) flags(out io.Writer) *pflag.FlagSet {
	f := cli.Flags("carma-report", usage, out)
	f.StringVarP(&o.Jobs, "jobs", "j", "", "only these `JOBS`, separated by commas")
	f.StringVarP(&o.Users, "user", "u", "", "only jobs of these `USERS`")
	f.StringVarP(&o.Accounts, "accounts", "A", "", "only jobs of these `ACCOUNTS`")
	f.StringVarP(&o.Partitions, "partition", "r", "", "only jobs of these `PARTITIONS`")
	f.StringVarP(&o.Clusters, "clusters", "M", "", "only jobs of these `CLUSTERS`")
	f.StringVarP(&o.States, "state", "s", "", "only jobs that ended in these `STATES`: CD, F, CA, TO, OOM, NF")
	f.StringVarP(&o.Nodes, "nodelist", "N", "", "only jobs that ran on these `NODES`: n[1-4,9]")
	f.StringVar(&o.Names, "name", "", "only jobs of these `NAMES`")
	f.StringVarP(&o.From, "starttime", "S", "", "only jobs that ran after `TIME`: now-2days, today, 2026-01-31T13:00")
	f.StringVarP(&o.To, "endtime", "E", "", "only jobs that ran before `TIME`")
	f.StringVarP(
		&o.Format,
		"format",
		"o",
		"",
		"these `COLUMNS`: JobID,State%20; +Saved adds to the usual ones ($CARMA_REPORT_FORMAT)",
	)
	f.BoolVarP(&o.helpFormat, "helpformat", "e", false, "list the columns")
	f.BoolVarP(&o.NoHeader, "noheader", "n", false, "no header")
	f.BoolVarP(&o.Parsable2, "parsable2", "P", false, "plain figures (MiB, seconds, joules) between |")
	f.BoolVarP(&o.Parsable, "parsable", "p", false, "the same, with a | at the end of each line")
	f.StringVar(&o.Delimiter, "delimiter", "|", "with -P: `TEXT` between the figures")
	f.BoolVarP(&o.allocations, "allocations", "X", false, "accepted for compatibility with sacct; there are never steps")
	f.StringVar(&o.Units, "units", "G", "memory in this `UNIT`: K, M, G, T, P")
	f.BoolVar(&o.NoConvert, "noconvert", false, "memory as plain MiB")
	f.BoolVar(&o.JSON, "json", false, "print JSON (docs/json.md)")
	f.BoolVar(&o.CSV, "csv", false, "print CSV with plain figures")
	f.BoolVar(&o.HTML, "html", false, "print an HTML page")
	f.BoolVar(&o.SVG, "svg", false, "print an SVG drawing")
	f.BoolVarP(&o.Table, "table", "t", false, "a table even for one job")
	f.StringVar(&o.By, "by", "user,account,partition,gpu,day", "summary: group by these `WORDS`")
	f.BoolVar(&o.write, "write", false, "history: write history.file of carma.toml")
	o.place.Flags(f)
	return f
}
