// SPDX-License-Identifier: Apache-2.0

package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/workload"
)

// Import says how to make a trace of the jobs of another cluster.
type Import struct {
	Kind, Path string // sacct, philly or csv; - is standard input
	Jobs       string // job table
	Mix, Times string
	From       string
	Hours      float64
	Seed       uint64
	SkipBad    bool
	Columns    workload.Columns // of a CSV
}

// Make makes the trace. Its Skipped counts the lines and jobs that were left out.
func (o *Import) Make() (*workload.Workload, error) {
	m := workload.Mapping{WindowS: 3600 * o.Hours, Seed: o.Seed, Limits: workload.Limits{SkipBad: o.SkipBad}}
	var err error
	if m.Mix, err = workload.ParseMix(o.Mix); err != nil {
		return nil, err
	}
	if o.From != "" {
		if m.FromS, err = workload.ParseTime(o.From); err != nil {
			return nil, fmt.Errorf("--from: %w", err)
		}
	} else if o.Hours > 0 {
		return nil, errors.New("--hours needs --from")
	}
	switch o.Times {
	case "trace", "table", "":
		m.KeepRunS = o.Times == "trace" || o.Times == "" && o.Kind != "philly"
	default:
		return nil, fmt.Errorf("times %q is not one of trace, table", o.Times)
	}
	in := Input{Jobs: o.Jobs}
	table, err := in.table(model.Default())
	if err != nil {
		return nil, err
	}
	records, bad, err := readRecords(o.Kind, o.Path, o.Columns, o.SkipBad)
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(filepath.Base(o.Path), filepath.Ext(o.Path))
	w, err := workload.Map(name, records, table, m)
	w.Skipped += bad
	return &w, err
}

func readRecords(kind, path string, c workload.Columns, skip bool) ([]workload.Record, int, error) {
	f := os.Stdin
	if path != "-" {
		var err error
		if f, err = os.Open(path); err != nil {
			return nil, 0, err
		}
		defer f.Close()
	}
	var records []workload.Record
	var bad int
	var err error
	switch kind {
	case "sacct":
		records, bad, err = workload.ReadSacct(path, f, skip)
	case "philly":
		records, bad, err = workload.ReadPhilly(path, f, skip)
	case "csv":
		records, bad, err = workload.ReadRecords(path, f, c, skip)
	default:
		return nil, 0, fmt.Errorf("import %q is not one of sacct, philly, csv", kind)
	}
	if err != nil {
		return nil, bad, err
	}
	return records, bad, nil
}

// Synth says how to make a synthetic trace.
type Synth struct {
	Jobs, Model, Mix, Arrivals string
	Kinds                      int // of jobs, without Jobs
	workload.Synthetic
}

// Make makes the trace and its job table.
func (o *Synth) Make() (*workload.Workload, []workload.Job, error) {
	s := o.Synthetic
	s.Arrivals = workload.Arrivals(o.Arrivals)
	var err error
	if s.Mix, err = workload.ParseMix(o.Mix); err != nil {
		return nil, nil, err
	}
	m := model.Default()
	if o.Model != "" {
		if m, err = model.Load(o.Model); err != nil {
			return nil, nil, err
		}
	}
	var table []workload.Job
	if o.Jobs != "" {
		in := Input{Jobs: o.Jobs}
		table, err = in.table(m)
	} else {
		table, err = workload.SynthesiseJobs(o.Kinds, m.Synth, s.Mix, m.Job.SteadyShare, s.Seed)
	}
	if err != nil {
		return nil, nil, err
	}
	w, err := workload.Synthesise("synthetic", s, table)
	return &w, table, err
}
