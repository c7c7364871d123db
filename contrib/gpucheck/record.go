// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"time"
)

// results is a file of JSON lines, each on the disk before the next check begins.
type results struct{ f *os.File }

func openResults(path string) (*results, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the results: %w", err)
	}
	return &results{f}, nil
}

// line appends one in one write: killed parts leave whole lines.
func (r *results) line(v any) {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = r.f.Write(append(text, '\n'))
	}
	if err == nil {
		err = r.f.Sync()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck: write the results:", err)
	}
}

func (r *results) close() { r.f.Close() }

// Verdicts of a check.
const (
	agrees      = "agrees"
	contradicts = "contradicts"
	notAsked    = "not asked" // Saw says why
	failed      = "failed"    // could not be made; Saw says why
	measured    = "measured"  // nothing is assumed
)

// check is one question to the machine.
type check struct {
	Kind    string            `json:"kind"`
	Part    string            `json:"part"`
	Name    string            `json:"check"`
	Assumes string            `json:"assumes,omitempty"` // what CARMA's code takes for granted
	Saw     string            `json:"saw"`
	Verdict string            `json:"verdict"`
	Follows string            `json:"follows,omitempty"` // the line of code or doc that a contradiction changes
	Figures []figure          `json:"figures,omitempty"`
	Texts   map[string]string `json:"texts,omitempty"` // whole, as they were
	Time    string            `json:"time"`
	Seconds float64           `json:"seconds"`
}

type figure struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// add notes a figure, unless it was not measured.
func (c *check) add(value float64, unit, format string, args ...any) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	c.Figures = append(c.Figures, figure{fmt.Sprintf(format, args...), value, unit})
}

// mostText bounds a text: what comes back from the machine has 16 MiB.
const mostText = 128 << 10

func (c *check) text(name, text string) {
	if c.Texts == nil {
		c.Texts = map[string]string{}
	}
	if len(text) > mostText {
		text = text[:mostText/2] + "\n[...]\n" + text[len(text)-mostText/2:]
	}
	c.Texts[name] = text
}

// judge sets the verdict by what was seen.
func (c *check) judge(ok bool, format string, args ...any) {
	c.Saw, c.Verdict = fmt.Sprintf(format, args...), contradicts
	if ok {
		c.Verdict = agrees
	}
}

func (c *check) skip(format string, args ...any) {
	c.Saw, c.Verdict = fmt.Sprintf(format, args...), notAsked
}

// check makes one. follows names the line that a contradiction changes.
func (k *kit) check(name, assumes, follows string, f func(c *check) error) {
	c := &check{Kind: "check", Part: k.part.name, Name: name, Assumes: assumes, Follows: follows}
	begun := time.Now()
	if k.ctx.Err() != nil {
		return // the part is over; its end line says so
	}
	if err := f(c); err != nil && k.ctx.Err() != nil {
		c.skip("the part was stopped: %v", err)
	} else if err != nil {
		c.Saw, c.Verdict = err.Error(), failed
	}
	if c.Verdict == "" {
		c.Verdict = measured
	}
	c.Time, c.Seconds = begun.UTC().Format(time.RFC3339), seconds(time.Since(begun))
	k.contradicted = k.contradicted || c.Verdict == contradicts || c.Verdict == failed
	k.out.line(c)
	fmt.Printf("%s %s: %s: %.160s\n", c.Part, c.Name, c.Verdict, c.Saw)
}

func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return math.NaN()
	}
	return sorted[len(sorted)/2]
}
