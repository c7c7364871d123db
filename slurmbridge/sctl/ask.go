// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Questions to slurmctld are of two kinds. Identity (Job, Queue) is for root to act
// on: numbers, states, partitions. Words (Words) are a user's text, for records and
// for the job's own request; nobody acts on another job because of them. Describe asks for both.
//
// Both are read between separators unknown beforehand, for a user's text may hold
// line breaks and any character: with fixed separators, a job name could be
// written that reads as a line about another job. The separator travels in the
// environment, which only root can read, and not in the arguments, which everybody
// can.

// separator stands after each field of an answer: 128 random bits.
type separator string

func newSeparator() separator {
	var b [16]byte
	rand.Read(b[:]) // never fails (crypto/rand, Go 1.24)
	return separator("@" + hex.EncodeToString(b[:]) + "@")
}

// format is squeue's --Format for some fields, each followed by the separator; a
// field without a width is not cut (squeue 22.05, print.c).
func (s separator) format(fields []string) string {
	var b strings.Builder
	for i, f := range fields {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(f + ":" + string(s))
	}
	return b.String()
}

// mostField bounds a field: an AdminComment is the longest (slurmctld takes 64 KiB
// over the wire of some releases and more of others).
const mostField = 16 << 20

// scan cuts an answer into rows of n fields. rest is the text behind the last row: a
// message, where the command has failed. An answer with an uneven number of fields
// was cut short.
func (s separator) scan(out io.Reader, n int, each func([]string)) (rest string, err error) {
	in := bufio.NewScanner(out)
	in.Buffer(make([]byte, 1<<16), mostField)
	in.Split(func(data []byte, atEnd bool) (int, []byte, error) {
		if i := bytes.Index(data, []byte(s)); i >= 0 {
			return i + len(s), data[:i], nil
		}
		if atEnd {
			rest = string(data)
			return len(data), nil, nil
		}
		return 0, nil, nil
	})
	row := make([]string, 0, n)
	for in.Scan() {
		f := in.Text()
		if len(row) == 0 {
			f = strings.TrimPrefix(f, "\n")
		}
		if row = append(row, f); len(row) == n {
			each(row)
			row = make([]string, 0, n)
		}
	}
	switch {
	case in.Err() != nil:
		return rest, in.Err()
	case len(row) > 0 || strings.TrimSpace(rest) != "":
		return rest, fmt.Errorf("the answer is incomplete: %d fields too many, %.50q behind them", len(row), rest)
	}
	return rest, nil
}

// squeue asks for fields of jobs. The error is ErrNoJob where slurmctld knows none
// of the ids.
func (c Client) squeue(ctx context.Context, fields []string, args ...string) ([][]string, error) {
	s := newSeparator()
	variable := "SQUEUE_FORMAT2=" + s.format(fields)
	if fields[0][0] == '%' { // in the older notation
		variable = "SQUEUE_FORMAT=" + strings.Join(fields, string(s)) + string(s)
	}
	// In a federation a single job's answer would be its origin's (slurm_load_job).
	cmd := c.command(ctx, "squeue", append([]string{"--noheader", "--local"}, args...)...)
	cmd.Env = append(cmd.Env, variable)
	out, err := output(ctx, cmd)
	if err != nil {
		if strings.Contains(err.Error(), "Invalid job id") {
			return nil, ErrNoJob
		}
		return nil, err
	}
	rows, err := s.cut(out, len(fields))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", words(cmd), err)
	}
	return rows, nil
}

// cut is scan for an answer at hand: a queue may have ten thousands of rows.
func (s separator) cut(text string, n int) ([][]string, error) {
	fields := make([]string, 0, strings.Count(text, string(s)))
	for {
		f, rest, ok := strings.Cut(text, string(s))
		if !ok {
			break
		}
		if len(fields)%n == 0 {
			f = strings.TrimPrefix(f, "\n")
		}
		fields, text = append(fields, f), rest
	}
	if over := len(fields) % n; over > 0 || strings.TrimSpace(text) != "" {
		return nil, fmt.Errorf("the answer is incomplete: %d fields too many, %.50q behind them", over, text)
	}
	var rows [][]string
	for row := range slices.Chunk(fields, n) {
		rows = append(rows, row)
	}
	return rows, nil
}

// row asks for fields of a job, JobID first. A second row of the id is an error.
func (c Client) row(ctx context.Context, id uint32, fields []string) ([]string, error) {
	rows, err := rowsOf(ctx, c, []uint32{id}, fields)
	if err != nil {
		return nil, err
	}
	row, known := rows[id]
	if !known {
		return nil, ErrNoJob
	}
	return row, nil
}

// rowsOf asks for fields of jobs, JobID first; a job that slurmctld does not know is missing in the answer.
// slurmctld answers about one job alone, or about all jobs of the cluster (squeue.c of 22.05 to 26.05).
func rowsOf(ctx context.Context, c Client, ids []uint32, fields []string) (map[uint32][]string, error) {
	asked := map[string]uint32{}
	var list []string
	for _, id := range ids {
		text := strconv.FormatUint(uint64(id), 10)
		if _, twice := asked[text]; !twice {
			asked[text], list = id, append(list, text)
		}
	}
	rows, err := c.squeue(ctx, fields, "--states=all", "--jobs="+strings.Join(list, ","))
	if errors.Is(err, ErrNoJob) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return single(rows, asked)
}

// single finds the row of each id; an array's id brings the rows of its tasks along.
func single(rows [][]string, asked map[string]uint32) (map[uint32][]string, error) {
	of := map[uint32][]string{}
	for _, r := range rows {
		id, ok := asked[r[0]]
		if !ok {
			continue
		} else if of[id] != nil {
			return nil, fmt.Errorf("squeue: two rows of job %d", id)
		}
		of[id] = r
	}
	return of, nil
}

// none tells whether a text is one of Slurm's words for a missing value.
func none(s string) bool { return s == "" || s == "N/A" || s == "(null)" }

// noneEmpty is a field whose absence is an empty text.
func noneEmpty(s string) string {
	if none(s) {
		return ""
	}
	return s
}

// number reads a number of 32 bits, decimal digits and nothing else.
func number(s string) (uint32, error) {
	v, err := strconv.ParseUint(s, 10, 32)
	if err != nil || strings.HasPrefix(s, "+") {
		return 0, fmt.Errorf("squeue: %.50q is not a number", s)
	}
	return uint32(v), nil
}

// words is a command as a person would type the command: without the random separator, with which each error of a
// lasting fault would be a new text.
func words(cmd *exec.Cmd) string {
	text := strings.Join(append([]string{filepath.Base(cmd.Path)}, cmd.Args[1:]...), " ")
	return inWords().ReplaceAllString(text, "")
}

var inWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`:?@[0-9a-f]{32}@`) })
