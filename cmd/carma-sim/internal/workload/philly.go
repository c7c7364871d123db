// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// phillyJob is what is read of an entry of cluster_job_log, the job log of the
// Philly traces (github.com/msr-fiddle/philly-traces): an array of jobs.
type phillyJob struct {
	Submitted string `json:"submitted_time"`
	User      string `json:"user"`
	Attempts  []struct {
		Start  *string `json:"start_time"`
		End    *string `json:"end_time"`
		Detail []struct {
			GPUs []string `json:"gpus"`
		} `json:"detail"`
	} `json:"attempts"`
}

// ReadPhilly reads a Philly job log. The run time of a job is that of all its
// attempts; jobs of several servers, without GPUs or without an end are left out
// without being bad.
func ReadPhilly(file string, in io.Reader, skipBad bool) ([]Record, int, error) {
	l := &lines{file: file, r: in}
	d := json.NewDecoder(l)
	fail := func(err error) error {
		var syntax *json.SyntaxError
		off := d.InputOffset()
		if errors.As(err, &syntax) {
			off = max(off, syntax.Offset)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			off, err = l.off, errors.New("the file ends in the middle")
		}
		return &lineError{File: file, Line: l.at(off), Reason: err.Error()}
	}
	open, err := d.Token()
	if errors.Is(err, io.EOF) {
		return nil, 0, &lineError{File: file, Reason: "it is empty"}
	}
	if err != nil {
		return nil, 0, fail(err)
	}
	if open != json.Delim('[') {
		return nil, 0, fail(fmt.Errorf("it begins with %v, not with a list of jobs", open))
	}
	var records []Record
	skipped := 0
	for d.More() {
		var job phillyJob
		err := d.Decode(&job)
		var typed *json.UnmarshalTypeError
		if err != nil && !errors.As(err, &typed) {
			return nil, skipped, fail(err)
		}
		r, use := Record{}, false
		if err == nil {
			r, use, err = job.record()
		}
		switch {
		case err != nil && skipBad:
			skipped++
		case err != nil:
			return nil, skipped, fail(err)
		case use && len(records) == maxSubmissions:
			return nil, skipped, fail(fmt.Errorf("more than %d jobs", maxSubmissions))
		case use:
			records = append(records, r)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, skipped, fail(err)
	}
	if len(records) == 0 {
		return nil, skipped, &lineError{File: file, Reason: "no job with GPUs in it"}
	}
	return records, skipped, nil
}

// record sums a job up; false if it does not count.
func (j *phillyJob) record() (Record, bool, error) {
	r := Record{User: anonymous(j.User)}
	var ok bool
	if r.At, ok = parseTime(j.Submitted); !ok {
		return r, false, fmt.Errorf("submitted_time: %q is no time", clip(j.Submitted))
	}
	for _, a := range j.Attempts {
		if a.Start == nil || a.End == nil || *a.Start == "None" || *a.End == "None" {
			continue
		}
		start, ok1 := parseTime(*a.Start)
		end, ok2 := parseTime(*a.End)
		if !ok1 || !ok2 || end < start {
			return r, false, fmt.Errorf("attempt from %q to %q: no span of time", clip(*a.Start), clip(*a.End))
		}
		if len(a.Detail) != 1 {
			return r, false, nil
		}
		r.RunS += end - start
		r.GPUs = max(r.GPUs, len(a.Detail[0].GPUs))
	}
	if r.RunS > maxSeconds || r.GPUs > maxGPUs {
		return r, false, fmt.Errorf("%g s on %d GPUs of one server", r.RunS, r.GPUs)
	}
	return r, r.RunS > 0 && r.GPUs > 0, nil
}
