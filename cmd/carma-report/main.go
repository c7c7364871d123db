// SPDX-License-Identifier: Apache-2.0

// Command carma-report tells what jobs were estimated at, used and cost.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
	"carma/db"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
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
permission.
`

func main() {
	bound()
	cli.Exit("carma-report", run(context.Background(), os.Args[1:], os.Stdout))
}

// bound is for a short life with much to read: garbage is collected when it is in the way.
func bound() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(120 << 20)
}

// options are the flags.
type options struct {
	jobs, users, accounts, partitions, states, nodes, names string
	clusters, source                                        string
	from, to, format, units, delimiter, by, conf            string
	json, csv, parsable2, parsable, noHeader, noConvert     bool
	helpFormat, html, svg, table, allocations, write        bool
	files                                                   []string
}

func (o *options) flags(out io.Writer) *pflag.FlagSet {
	f := cli.Flags("carma-report", usage, out)
	f.StringVarP(&o.jobs, "jobs", "j", "", "only these `JOBS`, separated by commas")
	f.StringVarP(&o.users, "user", "u", "", "only jobs of these `USERS`")
	f.StringVarP(&o.accounts, "accounts", "A", "", "only jobs of these `ACCOUNTS`")
	f.StringVarP(&o.partitions, "partition", "r", "", "only jobs of these `PARTITIONS`")
	f.StringVarP(&o.clusters, "clusters", "M", "", "only jobs of these `CLUSTERS`")
	f.StringVarP(&o.states, "state", "s", "", "only jobs that ended in these `STATES`: CD, F, CA, TO, OOM, NF")
	f.StringVarP(&o.nodes, "nodelist", "N", "", "only jobs that ran on these `NODES`: n[1-4,9]")
	f.StringVar(&o.names, "name", "", "only jobs of these `NAMES`")
	f.StringVarP(&o.from, "starttime", "S", "", "only jobs that ran after `TIME`: now-2days, today, 2026-01-31T13:00")
	f.StringVarP(&o.to, "endtime", "E", "", "only jobs that ran before `TIME`")
	f.StringVarP(&o.format, "format", "o", "", "these `COLUMNS`: JobID,State%20; +Saved adds to the usual ones ($CARMA_REPORT_FORMAT)")
	f.BoolVarP(&o.helpFormat, "helpformat", "e", false, "list the columns")
	f.BoolVarP(&o.noHeader, "noheader", "n", false, "no header")
	f.BoolVarP(&o.parsable2, "parsable2", "P", false, "plain figures (MiB, seconds, joules) between |")
	f.BoolVarP(&o.parsable, "parsable", "p", false, "the same, with a | at the end of each line")
	f.StringVar(&o.delimiter, "delimiter", "|", "with -P: `TEXT` between the figures")
	f.BoolVarP(&o.allocations, "allocations", "X", false, "accepted for sacct's sake; there are never steps")
	f.StringVar(&o.units, "units", "G", "memory in this `UNIT`: K, M, G, T, P")
	f.BoolVar(&o.noConvert, "noconvert", false, "memory as plain MiB")
	f.BoolVar(&o.json, "json", false, "print JSON (docs/json.md)")
	f.BoolVar(&o.csv, "csv", false, "print CSV with plain figures")
	f.BoolVar(&o.html, "html", false, "print an HTML page")
	f.BoolVar(&o.svg, "svg", false, "print an SVG drawing")
	f.BoolVarP(&o.table, "table", "t", false, "a table even for one job")
	f.StringVar(&o.by, "by", "user,account,partition,gpu,day", "summary: add up by these `WORDS`")
	f.BoolVar(&o.write, "write", false, "history: write history.file of carma.toml")
	f.StringArrayVar(&o.files, "db", nil, "read this database `FILE`; may be given several times (default: paths.db of carma.toml)")
	f.StringVar(&o.source, "from", "sqlite", "where records are: sqlite, the nodes' databases; or `slurmdbd`, if carma.toml has forward = \"slurmdbd\"")
	f.StringVar(&o.conf, "config", cli.ConfigPath(), "`FILE` to read the configuration from")
	return f
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var o options
	f := o.flags(out)
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	if o.helpFormat {
		helpFormat(out)
		return nil
	}
	r, view, err := o.report(f.Args(), time.Now())
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w; see carma-report --help", err)
	}
	if o.source == "slurmdbd" {
		return o.slurmdbd(ctx, r, view, out)
	} else if o.source != "sqlite" {
		return cli.Fail(cli.ExitUsage, "--from=%s: must be sqlite or slurmdbd", o.source)
	}
	bases, err := o.open()
	defer func() {
		for _, d := range bases {
			d.Close()
		}
	}()
	if err != nil {
		return err
	}
	for _, d := range bases {
		r.sources = append(r.sources, d)
		if view == "history" && d.Public() {
			return cli.Fail(cli.ExitPermission, "history: what users can read of the records has no keys; be root, or read slurmdbd as SlurmUser (--from slurmdbd)")
		}
		if at := d.Outdated(r.style.time.now); !at.IsZero() {
			fmt.Fprintf(os.Stderr, "carma-report: records as of %s: the agent does not run, or cannot write them\n", at.Format("2006-01-02 15:04"))
		}
	}
	return o.show(ctx, r, view, bases, out)
}

func (o *options) show(ctx context.Context, r *report, view string, bases []*db.DB, out io.Writer) error {
	for i, src := range r.sources {
		r.sources[i] = cleaned{src}
	}
	switch view {
	case "summary":
		return o.summary(ctx, r, out)
	case "gpus":
		return o.gpus(ctx, r, bases, out)
	case "history":
		return o.history(ctx, r, out)
	}
	return o.showJobs(ctx, r, bases, out)
}

// slurmdbd shows what slurmdbd has. It has no samples of GPUs.
func (o *options) slurmdbd(ctx context.Context, r *report, view string, out io.Writer) error {
	if view == "gpus" {
		return cli.Fail(cli.ExitUsage, "slurmdbd has no samples of GPUs; read the nodes' databases")
	}
	c, err := config.Load(o.conf)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w; it says where sacct is", err)
	}
	// All that sacct says is kept, so that a bound would cost time and gain nothing.
	debug.SetGCPercent(100)
	debug.SetMemoryLimit(math.MaxInt64)
	sel := *r.sel
	if view == "history" {
		sel.From, sel.To = time.Time{}, time.Time{}
	}
	src, err := fromSlurmdbd(ctx, sctl.Client{BinDir: c.Slurm.BinDir, Conf: cmp.Or(c.Slurm.Conf, os.Getenv("SLURM_CONF"))}, &sel)
	if err != nil {
		return err
	}
	if src.spoiled > 0 {
		fmt.Fprintf(os.Stderr, "carma-report: the records of %d jobs in slurmdbd are corrupt; the nodes' databases have them\n", src.spoiled)
	}
	if src.refused > 0 {
		fmt.Fprintf(os.Stderr, "carma-report: %d records in slurmdbd stand at jobs that they are not of; they are left out\n", src.refused)
	}
	r.sources = []source{src}
	return o.show(ctx, r, view, nil, out)
}

func (o *options) history(ctx context.Context, r *report, out io.Writer) error {
	l, scripts, err := learn(ctx, r.sources, r.sel)
	if err != nil {
		return err
	}
	if !o.write {
		const shown = 1000
		return printHistory(out, l, scripts, &r.style, shown)
	}
	c, err := config.Load(o.conf)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	if c.History.File == "" {
		return cli.Fail(cli.ExitUsage, "%s has no history.file to write", o.conf)
	}
	_, err = writeHistory(c.History.File, l, r.style.time.now.Unix())
	return err
}

// report makes a report of the flags; view is summary, gpus or empty.
func (o *options) report(args []string, now time.Time) (r *report, view string, err error) {
	r = &report{sel: &selection{}, header: !o.noHeader}
	if len(args) > 0 && (args[0] == "summary" || args[0] == "gpus" || args[0] == "history") {
		if view = args[0]; len(args) > 1 {
			return nil, "", fmt.Errorf("unexpected argument %q", args[1])
		}
		args = nil
	}
	for _, list := range append([]string{o.jobs}, args...) {
		if err := r.sel.addJobs(list); err != nil {
			return nil, "", err
		}
	}
	if err := r.sel.addStates(o.states); err != nil {
		return nil, "", fmt.Errorf("-s %s: %w", o.states, err)
	}
	if err := r.sel.setTimes(o.from, o.to, now); err != nil {
		return nil, "", err
	}
	r.sel.Clusters, r.sel.Users, r.sel.Accounts, r.sel.partitions, r.sel.names, r.sel.nodes = list(o.clusters), list(o.users), list(o.accounts), list(o.partitions), list(o.names), o.nodes
	r.style = style{time: timeFormat{os.Getenv("SLURM_TIME_FORMAT"), now, now.Location()}}
	if !o.noConvert {
		unit := strings.ToUpper(o.units)
		if len(unit) != 1 || !strings.Contains("KMGTP", unit) {
			return nil, "", fmt.Errorf("--units=%s: must be one of K, M, G, T, P", o.units)
		}
		r.style.unit = unit[0]
	}
	if o.plain() && !o.unitsGiven() {
		r.style.unit = 0
	}
	format := o.format
	if format == "" {
		format = os.Getenv("CARMA_REPORT_FORMAT")
	}
	if r.columns, err = parseColumns(format); err != nil {
		return nil, "", err
	}
	return r, view, nil
}

// plain tells whether programs read the output.
func (o *options) plain() bool { return o.parsable || o.parsable2 || o.csv }

func (o *options) unitsGiven() bool { return o.units != "G" }

func list(words string) (l []string) {
	for w := range strings.SplitSeq(words, ",") {
		if w != "" {
			l = append(l, w)
		}
	}
	return l
}

func (o *options) open() ([]*db.DB, error) {
	if len(o.files) == 0 {
		c, err := config.Load(o.conf)
		if err != nil {
			return nil, cli.Fail(cli.ExitUsage, "%w; name a database with --db", err)
		}
		host, _ := os.Hostname()
		short, _, _ := strings.Cut(host, ".")
		o.files = []string{c.DBPath(short)}
	}
	return openAll(o.files)
}

func (o *options) summary(ctx context.Context, r *report, out io.Writer) error {
	by := list(o.by)
	for _, name := range by {
		if dimensions[name] == nil && name != byDay {
			return cli.Fail(cli.ExitUsage, "--by=%s: %q is not one of %s", o.by, name, strings.Join(dimensionNames(), ", "))
		}
	}
	s, err := summarise(ctx, r.sources, r.sel, by, r.style.time.zone)
	switch {
	case err != nil:
		return err
	case o.json:
		return s.json(out)
	case o.html:
		return s.html(out, &r.style.time)
	case o.svg:
		return s.svg(out)
	}
	return s.print(out, &r.style.time)
}

func (o *options) gpus(ctx context.Context, r *report, bases []*db.DB, out io.Writer) error {
	to := r.sel.To
	if to.IsZero() {
		to = r.style.time.now
	}
	v, err := newGPUView(ctx, bases, r.sel.From, to)
	if err == nil {
		v.fit(o.from == "", o.to == "")
	}
	switch {
	case err != nil:
		return err
	case o.json:
		return v.json(out)
	case o.html:
		return v.html(out, &r.style)
	case o.svg:
		return v.svg(out, &r.style)
	}
	return v.print(out, &r.style)
}

func (o *options) showJobs(ctx context.Context, r *report, bases []*db.DB, out io.Writer) (err error) {
	var found bool
	switch {
	case o.json:
		found, err = r.json(ctx, out)
	case o.plain():
		separator := o.delimiter
		if o.csv {
			separator = ","
		}
		found, err = r.delimited(ctx, out, separator, o.csv, o.parsable)
	default:
		found, err = o.showPeople(ctx, r, bases, out)
	}
	if err == nil && !found && len(r.sel.Jobs) > 0 {
		return cli.Fail(cli.ExitNotFound, "no record of job %s", strings.Join(r.sel.tasks, ","))
	}
	return err
}

// showPeople shows one job as a page, several as a table or a drawing.
func (o *options) showPeople(ctx context.Context, r *report, bases []*db.DB, out io.Writer) (found bool, err error) {
	const drawn = 500 // jobs in a drawing
	if o.html || o.svg || len(r.sel.tasks) == 1 && !o.table && o.format == "" {
		jobs, rest, err := first(ctx, r.sources, r.sel, drawn)
		switch {
		case err != nil:
			return false, err
		case len(jobs) == 1 && !rest:
			p, err := newPage(ctx, jobs[0], r.sources, bases, r.style)
			if err != nil {
				return true, err
			}
			switch {
			case o.html:
				return true, p.html(out)
			case o.svg:
				return true, p.svg(out)
			}
			return true, p.print(out)
		case o.html:
			return len(jobs) > 0, r.html(out, jobs, rest)
		case o.svg:
			return len(jobs) > 0, r.svg(out, jobs)
		}
	}
	return r.table(ctx, out)
}
