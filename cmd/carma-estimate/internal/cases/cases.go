// SPDX-License-Identifier: Apache-2.0

// Package cases estimates many jobs, one JSON object a line.
package cases

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"carma/cmd/carma-estimate/internal/script"
	"carma/estimator"
	"carma/estimator/method"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
)

// maxCase is the longest line of a cases file.
const maxCase = 1 << 20

// Keys of a case are keys of a #CARMA line; the flags among them may be
// given as JSON booleans.
var (
	caseKeys = []string{"batch", "seq", "input", "optim", "foreach", "precision", "parallel", "grad_ckpt", "attn",
		"params", "dropout", "dynamic_shapes", "mem", "smact", "policy"}
	caseFlags = []string{"foreach", "grad_ckpt", "dropout", "dynamic_shapes"}
)

// caseResult is a line of the answer. All figures are null beside an error.
type caseResult struct {
	ID         any      `json:"id"`
	FloorMiB   *int64   `json:"floor_mib"`
	MiB        *int64   `json:"mib"`
	ReserveMiB *int64   `json:"reserve_mib"`
	Confidence *string  `json:"confidence"`
	Method     *string  `json:"method"`
	Us         *float64 `json:"us"`
	Error      string   `json:"error,omitempty"`
}

// cases answers one line after the other.
type cases struct {
	texts    cache
	estimate annotate.EstimateFunc
}

// oneCase is a line as read.
type oneCase struct {
	id      any
	words   []string // of a #CARMA line
	summary string
	method  string
	baseMiB int64 // below 0: not given
	gpus    int
}

// Run reads one JSON object a line from in, the file at path, and prints one for each, in
// order. Summaries are looked for in the working directory and in dir. Memory does not
// grow with the number of lines.
func Run(in io.Reader, path, dir string, out io.Writer, estimate annotate.EstimateFunc) error {
	c := cases{cache{dir: dir}, estimate}
	r := bufio.NewReaderSize(in, 64<<10)
	w := bufio.NewWriterSize(out, 64<<10)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for {
		line, tooLong, err := readLine(r, maxCase)
		if err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(&script.Unreadable{Doing: "read cases " + path, Err: err}, w.Flush())
		}
		if tooLong || len(bytes.TrimSpace(line)) > 0 {
			if err := enc.Encode(c.answer(line, tooLong)); err != nil {
				return fmt.Errorf("write results: %w", err)
			}
		}
		if err != nil {
			return w.Flush()
		}
		if r.Buffered() == 0 { // whoever writes the cases may wait for the answer
			if err := w.Flush(); err != nil {
				return fmt.Errorf("write results: %w", err)
			}
		}
	}
}

// readLine reads up to a line feed or the end, which is io.EOF. Of a line that
// is longer than most it returns the beginning.
func readLine(r *bufio.Reader, most int) (line []byte, tooLong bool, err error) {
	for {
		piece, err := r.ReadSlice('\n')
		if keep := most - len(line); len(piece) > keep {
			tooLong = true
			piece = piece[:keep]
		}
		line = append(line, piece...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, tooLong, err
		}
	}
}

// answer estimates one case. A fault of the case is part of the result.
func (c *cases) answer(line []byte, tooLong bool) (r caseResult) {
	one, err := readCase(line)
	if tooLong {
		err = fmt.Errorf("the line is longer than %d MiB", maxCase>>20)
	}
	defer func() {
		// As in libcarma: a fault of the estimator's is one job's, not all.
		if e := recover(); e != nil {
			r = caseResult{ID: one.id, Error: fmt.Sprintf("the estimator failed: %v", e)}
		}
	}()
	if err == nil {
		r, err = c.result(one)
	}
	if err != nil {
		return caseResult{ID: one.id, Error: err.Error()}
	}
	return r
}

func (c *cases) result(one oneCase) (caseResult, error) {
	var text []byte
	if one.summary != "" {
		var err error
		if text, err = c.texts.read(one.summary); err != nil {
			return caseResult{}, fmt.Errorf("summary: %s: %w", one.summary, err)
		}
	}
	start := time.Now()
	d, err := script.DirectiveOf(one.words, text)
	if err != nil {
		return caseResult{}, err
	}
	var e estimator.Estimate
	if d.MemMiB > 0 { // the user's word wins, as at submission
		e = estimator.Estimate{FloorMiB: d.MemMiB, MiB: d.MemMiB, ReserveMiB: d.MemMiB, Confidence: estimator.Sure}
		one.method = method.User
	} else if one.summary == "" {
		return caseResult{}, errors.New("summary: not given, and no mem either")
	} else {
		s := annotate.SpecOf(d, one.gpus, config.Partition{})
		if one.baseMiB >= 0 {
			s.Base = estimator.Base{CuBLASMiB: one.baseMiB, CuDNNMiB: one.baseMiB}
		}
		if e, err = c.estimate(one.method, s); err != nil {
			return caseResult{}, err
		}
	}
	us := math.Round(float64(time.Since(start).Nanoseconds())/100) / 10
	confidence := e.Confidence.String()
	return caseResult{one.id, &e.FloorMiB, &e.MiB, &e.ReserveMiB, &confidence, &one.method, &us, ""}, nil
}

// readCase reads a line. The case has the id, if there is one, beside an
// error too.
func readCase(line []byte) (oneCase, error) {
	one := oneCase{method: method.Default, baseMiB: -1, gpus: 1}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return one, errors.New("the line is not a JSON object")
	}
	var wrong error // the first; reading goes on for the id
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		var value any
		if err == nil && ok {
			err = dec.Decode(&value)
		}
		if err != nil {
			return one, notJSON(err)
		}
		if err := one.set(key, value); err != nil && wrong == nil {
			wrong = fmt.Errorf("%s: %w", key, err)
		} else if seen[key] && wrong == nil {
			wrong = fmt.Errorf("%s: given twice", key)
		}
		seen[key] = true
	}
	if _, err := dec.Token(); err != nil {
		return one, notJSON(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return one, errors.New("the line holds more than one JSON object")
	}
	return one, wrong
}

func notJSON(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the line is not a JSON object: it breaks off")
	}
	return fmt.Errorf("the line is not a JSON object: %w", err)
}

// set takes one key of a case; null stands for a key that is not given.
func (one *oneCase) set(key string, value any) (err error) {
	if value == nil {
		return nil
	}
	text, known := value.(string)
	switch {
	case key == "id":
		if _, number := value.(json.Number); !known && !number {
			return errors.New("must be a string or a number")
		}
		one.id = value
	case key == "summary" || key == "method":
		if !known {
			return errors.New("must be a string")
		}
		if key == "summary" {
			one.summary = text
			return nil
		}
		one.method = text
		return script.KnownMethod(text)
	case key == "base_mib":
		one.baseMiB, err = whole(value, 0)
		return err
	case key == "gpus":
		n, err := whole(value, 1)
		one.gpus = int(n)
		return err
	case slices.Contains(caseKeys, key):
		if text, err = caseText(key, value); err != nil {
			return err
		}
		w, err := script.Word(key, text)
		one.words = append(one.words, w)
		return err
	default:
		return errors.New("unknown key")
	}
	return nil
}

// whole reads a whole number of at least least.
func whole(value any, least int64) (int64, error) {
	text, err := caseText("", value)
	n, bad := strconv.ParseInt(text, 10, 32)
	if err != nil || bad != nil || n < least {
		return 0, fmt.Errorf("must be a whole number from %d", least)
	}
	return n, nil
}

// caseText writes a JSON value as a #CARMA line would have it.
func caseText(key string, value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		if !slices.Contains(caseFlags, key) {
			return "", errors.New("must be a string or a number")
		}
		if v {
			return "1", nil
		}
		return "0", nil
	case json.Number:
		// 32.0 and 7e9 are whole numbers to most languages that write JSON.
		if f, err := v.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.FormatInt(int64(f), 10), nil
		}
		return v.String(), nil
	}
	return "", errors.New("must be a string, a number or a boolean")
}
