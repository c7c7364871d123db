// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"io"
	"strconv"
	"strings"
)

// Columns names the columns of a plain CSV file that records are made of.
type Columns struct {
	Arrival  string
	Duration string
	GPUs     string // empty: one GPU each
	User     string
}

// ReadRecords reads a CSV file with named columns. It returns how many bad lines
// it left out.
func ReadRecords(file string, in io.Reader, c Columns, skipBad bool) ([]Record, int, error) {
	t, err := newTable(file, in, ',')
	if err != nil {
		return nil, 0, err
	}
	need := []string{c.Arrival, c.Duration}
	if c.GPUs != "" {
		need = append(need, c.GPUs)
	}
	if err := t.need(need...); err != nil {
		return nil, 0, err
	}
	return collect(t, skipBad, func() (Record, bool, error) {
		r := Record{GPUs: 1, User: anonymous(t.text(c.User))}
		var ok bool
		if r.At, ok = parseTime(t.text(c.Arrival)); !ok {
			return r, false, t.bad("%s: %q is no time", c.Arrival, clip(t.text(c.Arrival)))
		}
		if r.RunS, err = t.number(c.Duration, 0, maxSeconds); err != nil {
			return r, false, err
		}
		if c.GPUs != "" {
			n, err := t.number(c.GPUs, 1, maxGPUs)
			if err != nil {
				return r, false, err
			}
			r.GPUs = int(n)
		}
		return r, r.RunS > 0 && r.GPUs > 0, nil
	})
}

// ReadSacct reads what "sacct -P -a -X -o JobID,User,Submit,ElapsedRaw,NNodes,AllocTRES"
// prints. Jobs without GPUs, of several nodes or that never ran are left out
// without being bad; so are job steps.
func ReadSacct(file string, in io.Reader, skipBad bool) ([]Record, int, error) {
	t, err := newTable(file, in, '|')
	if err != nil {
		return nil, 0, err
	}
	if err := t.need("JobID", "Submit", "ElapsedRaw", "AllocTRES"); err != nil {
		return nil, 0, err
	}
	return collect(t, skipBad, func() (Record, bool, error) {
		r := Record{User: anonymous(t.text("User"))}
		if t.text("JobID") == "" {
			return r, false, t.bad("JobID is empty")
		}
		if strings.Contains(t.text("JobID"), ".") || t.text("NNodes") != "" && t.text("NNodes") != "1" {
			return r, false, nil
		}
		var ok bool
		if r.At, ok = parseTime(t.text("Submit")); !ok {
			return r, false, t.bad("Submit: %q is no time", clip(t.text("Submit")))
		}
		if r.RunS, err = t.number("ElapsedRaw", 0, maxSeconds); err != nil {
			return r, false, err
		}
		if r.GPUs, ok = gpusOf(t.text("AllocTRES")); !ok {
			return r, false, t.bad("AllocTRES: %q is no list of TRES", clip(t.text("AllocTRES")))
		}
		return r, r.RunS > 0 && r.GPUs > 0, nil
	})
}

// gpusOf reads gres/gpu=N out of "billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2".
func gpusOf(list string) (gpus int, ok bool) {
	if list == "" {
		return 0, true
	}
	for word := range strings.SplitSeq(list, ",") {
		name, value, found := strings.Cut(word, "=")
		if !found {
			return 0, false
		}
		if name != "gres/gpu" && !strings.HasPrefix(name, "gres/gpu:") {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 || n > maxGPUs {
			return 0, false
		}
		gpus = max(gpus, n)
	}
	return gpus, true
}

// collect reads all rows. row tells whether the record counts.
func collect(t *csvTable, skipBad bool, row func() (Record, bool, error)) ([]Record, int, error) {
	var records []Record
	skipped := 0
	for {
		more, err := t.Next()
		if err == nil && !more {
			break
		}
		var r Record
		use := false
		if err == nil {
			r, use, err = row()
		}
		var bad *lineError
		switch {
		case errors.As(err, &bad) && skipBad && !bad.Fatal:
			skipped++
		case err != nil:
			return nil, skipped, err
		case use && len(records) == maxSubmissions:
			return nil, skipped, t.bad("more than %d jobs", maxSubmissions)
		case use:
			records = append(records, r)
		}
	}
	if len(records) == 0 {
		return nil, skipped, &lineError{File: t.File, Reason: "no job with GPUs in it"}
	}
	return records, skipped, nil
}
