// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// csvTable reads a CSV file with a header row by row.
type csvTable struct {
	File string
	Line int // of the row read last
	r    *csv.Reader
	col  map[string]int
	row  []string
}

// newTable reads the header. sep is the field separator.
func newTable(file string, in io.Reader, sep rune) (*csvTable, error) {
	t := &csvTable{File: file, r: csv.NewReader(&lines{file: file, r: in, limit: true}), col: map[string]int{}}
	t.r.Comma = sep
	t.r.Comment = '#'
	t.r.ReuseRecord = true
	t.r.FieldsPerRecord = -1
	t.r.LazyQuotes = sep != ','
	header, err := t.r.Read()
	if errors.Is(err, io.EOF) {
		return nil, &lineError{File: file, Reason: "it is empty; a header line with the names of the columns comes first"}
	} else if err != nil {
		return nil, t.readError(err)
	}
	for i, name := range header {
		t.col[strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))] = i
	}
	t.Line, _ = t.r.FieldPos(0)
	return t, nil
}

func (t *csvTable) readError(err error) error {
	var long *lineError
	if errors.As(err, &long) {
		return long
	}
	var pe *csv.ParseError
	if errors.As(err, &pe) {
		return &lineError{File: t.File, Line: pe.Line, Reason: pe.Err.Error()}
	}
	return fmt.Errorf("read %s: %w", t.File, err)
}

// Next reads a row; false at the end.
func (t *csvTable) Next() (bool, error) {
	row, err := t.r.Read()
	if errors.Is(err, io.EOF) {
		return false, nil
	} else if err != nil {
		return false, t.readError(err)
	}
	t.row = row
	t.Line, _ = t.r.FieldPos(0)
	return true, nil
}

// has tells whether there is such a column.
func (t *csvTable) has(name string) bool { _, ok := t.col[name]; return ok }

// need fails if a column is missing.
func (t *csvTable) need(names ...string) error {
	for _, n := range names {
		if !t.has(n) {
			return &lineError{File: t.File, Line: 1, Reason: fmt.Sprintf("there is no column %q; the header must name %s", n,
				strings.Join(names, ", "))}
		}
	}
	return nil
}

// text is a field of the row, empty where the row or the table has none.
func (t *csvTable) text(name string) string {
	i, ok := t.col[name]
	if !ok || i >= len(t.row) {
		return ""
	}
	return strings.TrimSpace(t.row[i])
}

// bad is an error about the row.
func (t *csvTable) bad(format string, args ...any) *lineError {
	return &lineError{File: t.File, Line: t.Line, Reason: fmt.Sprintf(format, args...)}
}

// number reads a field; an empty one is 0. It fails outside of low to high.
func (t *csvTable) number(name string, low, high float64) (float64, error) {
	text := t.text(name)
	if text == "" {
		return 0, nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) {
		return 0, t.bad("%s: %q is not a number", name, clip(text))
	}
	if v < low || v > high {
		return 0, t.bad("%s: %s is not between %g and %g", name, clip(text), low, high)
	}
	return v, nil
}

func clip(s string) string {
	const most = 40
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// Bounds of what is taken for a job; they keep sums far from overflow.
const (
	maxSeconds = 1e9
	maxMiB     = 1 << 24
	maxGPUs    = 64
)

// ReadTrace reads the submissions of a trace: columns arrival_s and job, and
// where they are there user and duration_s. jobs are those that the trace may
// name. The trace must be in order of arrival.
func ReadTrace(file string, in io.Reader, jobs []Job, lim Limits) (Workload, error) {
	w := Workload{Name: nameOf(file), Jobs: jobs}
	t, err := newTable(file, in, ',')
	if err != nil {
		return w, err
	}
	if err := t.need("arrival_s", "job"); err != nil {
		return w, err
	}
	r := traceReader{t: t, lim: lim, jobs: map[string]int32{}, users: map[string]uint32{}, w: &w}
	for i := range jobs {
		r.jobs[jobs[i].Name] = int32(i)
	}
	for {
		ok, err := t.Next()
		if err == nil && !ok {
			break
		}
		if err == nil {
			err = r.row()
		}
		var bad *lineError
		if errors.As(err, &bad) && lim.SkipBad && !bad.Fatal {
			w.Skipped++
			continue
		}
		if err != nil {
			return w, err
		}
	}
	if len(w.Trace) == 0 {
		return w, &lineError{File: file, Reason: "no submissions in it"}
	}
	w.ofSecondVersion()
	return w, nil
}

type traceReader struct {
	t     *csvTable
	lim   Limits
	jobs  map[string]int32
	users map[string]uint32
	w     *Workload
}

func (r *traceReader) row() error {
	t := r.t
	if t.text("arrival_s") == "" {
		return t.bad("arrival_s is empty")
	}
	at, err := t.number("arrival_s", 0, maxSeconds)
	if err != nil {
		return err
	}
	if n := len(r.w.Trace); n > 0 && at < r.w.Trace[n-1].ArrivalS {
		return t.bad("arrival_s: %g comes after %g; sort the trace by arrival", at, r.w.Trace[n-1].ArrivalS)
	}
	job, ok := r.jobs[t.text("job")]
	if !ok {
		return t.bad("job: %q is not in the job table", clip(t.text("job")))
	}
	if g := r.w.Jobs[job].GPUs; g > r.lim.GPUsPerNode {
		return t.bad("job %s requests %d GPUs, but a node has %d", r.w.Jobs[job].Name, g, r.lim.GPUsPerNode)
	}
	d, err := t.number("duration_s", 0, maxSeconds)
	if err != nil {
		return err
	}
	user, ok := r.users[t.text("user")]
	if !ok {
		user = uint32(1000 + len(r.users))
		r.users[strings.Clone(t.text("user"))] = user
	}
	most := r.lim.Submissions
	if most == 0 {
		most = maxSubmissions
	}
	if len(r.w.Trace) == most {
		e := t.bad("more than %d submissions", most)
		e.Fatal = true
		return e
	}
	r.w.Trace = append(r.w.Trace, Submission{ArrivalS: at, Job: job, User: user, DurationS: d})
	return nil
}

// ReadJobs reads a job table: the project's own form, or jobs.csv as published,
// which it knows by its columns. guess fills in the SMACT of models that the
// published one has no measurement of; steady is steady over peak memory where
// only the peak is known.
func ReadJobs(file string, in io.Reader, guess map[string]float64, steady float64) ([]Job, error) {
	t, err := newTable(file, in, ',')
	if err != nil {
		return nil, err
	}
	row := ownRow
	if t.has("mem_MB_rad_v1") {
		row = publishedRow(guess)
	}
	return readJobs(t, row, steady)
}

func readJobs(t *csvTable, row func(*csvTable) (Job, error), steady float64) ([]Job, error) {
	if err := t.need("job", "gpus"); err != nil {
		return nil, err
	}
	var jobs []Job
	seen := map[string]bool{}
	for {
		ok, err := t.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		j, err := row(t)
		if err != nil {
			return nil, err
		}
		if j.Name == "" {
			continue // nothing is known of its run time or memory
		}
		if seen[j.Name] {
			return nil, t.bad("job %s is there twice", clip(j.Name))
		}
		seen[j.Name] = true
		if j.SteadyMiB == 0 {
			j.SteadyMiB = int64(math.Round(float64(j.PeakMiB) * steady))
		}
		j.SteadyMiB = min(j.SteadyMiB, j.PeakMiB)
		jobs = append(jobs, j)
	}
	if len(jobs) == 0 {
		return nil, &lineError{File: t.File, Reason: "no jobs in it"}
	}
	return jobs, nil
}

// jobColumns are those of the project's own job tables.
var jobColumns = []string{"job", "model", "class", "gpus", "duration_s", "smact_pct", "peak_mib", "steady_mib",
	"horus_mib", "faketensor_mib", "gpumemnet_mib"}

func ownRow(t *csvTable) (Job, error) {
	if err := t.need("duration_s", "smact_pct", "peak_mib"); err != nil {
		return Job{}, err
	}
	j := Job{Name: strings.Clone(t.text("job")), Model: strings.Clone(t.text("model")),
		Class: strings.Clone(t.text("class"))}
	if j.Name == "" {
		return j, t.bad("job is empty")
	}
	for _, f := range []struct {
		name      string
		low, high float64
		must      bool
		set       func(float64)
	}{
		{"gpus", 1, maxGPUs, true, func(v float64) { j.GPUs = int(v) }},
		{"duration_s", 1, maxSeconds, true, func(v float64) { j.DurationS = v }},
		{"smact_pct", 0.1, 100, true, func(v float64) { j.SMActPct = v }},
		{"peak_mib", 1, maxMiB, true, func(v float64) { j.PeakMiB = int64(v) }},
		{"steady_mib", 1, maxMiB, false, func(v float64) { j.SteadyMiB = int64(v) }},
		{"horus_mib", 0, maxMiB, false, func(v float64) { j.HorusMiB = int64(v) }},
		{"faketensor_mib", 0, maxMiB, false, func(v float64) { j.FakeTensorMiB = int64(v) }},
		{"gpumemnet_mib", 0, maxMiB, false, func(v float64) { j.GPUMemNetMiB = int64(v) }},
	} {
		if f.must && t.text(f.name) == "" {
			return j, t.bad("%s is empty", f.name)
		}
		v, err := t.number(f.name, f.low, f.high)
		if err != nil {
			return j, err
		}
		f.set(v)
	}
	return j, nil
}

// WriteJobs writes a job table in the project's own form.
func WriteJobs(out io.Writer, jobs []Job) error {
	w := csv.NewWriter(out)
	w.Write(jobColumns)
	for _, j := range jobs {
		w.Write([]string{
			j.Name, j.Model, j.Class, strconv.Itoa(j.GPUs), number(j.DurationS), number(j.SMActPct),
			mib(j.PeakMiB), mib(j.SteadyMiB), mib(j.HorusMiB), mib(j.FakeTensorMiB), mib(j.GPUMemNetMiB),
		})
	}
	w.Flush()
	return w.Error()
}

// WriteTrace writes the submissions. The columns user and duration_s are left
// out where no line would use them.
func WriteTrace(out io.Writer, wl *Workload) error {
	users := slices.ContainsFunc(wl.Trace, func(s Submission) bool { return s.User != wl.Trace[0].User })
	durations := slices.ContainsFunc(wl.Trace, func(s Submission) bool { return s.DurationS > 0 })
	w := csv.NewWriter(out)
	header := []string{"arrival_s", "job"}
	if users {
		header = append(header, "user")
	}
	if durations {
		header = append(header, "duration_s")
	}
	w.Write(header)
	for _, s := range wl.Trace {
		row := append(header[:0:0], number(s.ArrivalS), wl.Jobs[s.Job].Name)
		if users {
			row = append(row, "u"+strconv.Itoa(int(s.User)))
		}
		if durations {
			row = append(row, number(s.DurationS))
		}
		w.Write(row)
	}
	w.Flush()
	return w.Error()
}

func number(v float64) string { return strconv.FormatFloat(math.Round(v*1000)/1000, 'f', -1, 64) }

func mib(v int64) string {
	if v == 0 {
		return ""
	}
	return strconv.FormatInt(v, 10)
}

// nameOf is what a trace is called: its file, or the folder of a trace.csv.
func nameOf(file string) string {
	name := strings.TrimSuffix(filepath.Base(file), ".csv")
	if dir := filepath.Base(filepath.Dir(file)); name == "trace" && dir != "." && dir != "/" {
		return dir
	}
	return name
}
