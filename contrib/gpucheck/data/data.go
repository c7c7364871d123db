// SPDX-License-Identifier: Apache-2.0

// Package data holds what was measured on real GPUs by gpucheck, beside this file, and
// reads it. README.md says what a file is.
package data

import (
	"bufio"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
)

// A pattern that no file matches does not compile, and there may be no measurements.
//
//go:embed *
var files embed.FS

// Machine is where and how rows were measured.
type Machine struct {
	Model   string `json:"model"`
	Driver  string `json:"driver"`
	Date    string `json:"date"`
	Command string `json:"command"`
}

// Training is what a short training took. Mode is fp32, amp, bf16 or checkpoint.
type Training struct {
	Machine      Machine `json:"-"`
	Model        string  `json:"model"`
	Batch        int     `json:"batch"`
	Mode         string  `json:"mode"`
	Input        []int   `json:"input"`
	Summary      string  `json:"summary"`
	AllocatedMiB float64 `json:"allocated_mib"`
	ReservedMiB  float64 `json:"reserved_mib"`
	UsedMiB      float64 `json:"used_mib"`        // of the GPU, at the end
	BeforeMiB    float64 `json:"used_before_mib"` // of the GPU, with the context alone
}

// Interference is how fast each of several equal loads was, of its speed alone.
type Interference struct {
	Machine   Machine `json:"-"`
	DemandPct []int   `json:"demand_pct"` // SM activity of each alone
	MPS       bool    `json:"mps"`
	Rate      float64 `json:"rate"`
}

// Rows are all measurements.
type Rows struct {
	Trainings    []Training
	Interference []Interference
}

// Read returns the measurements of this tree.
func Read() (Rows, error) { return readFrom(files) }

// readFrom reads the *.jsonl of a folder: results of gpucheck, in which only the lines of
// machines and rows count. Rows of simulated GPUs are an error: they are no measurements.
func readFrom(dir fs.FS) (Rows, error) {
	var all Rows
	names, err := fs.Glob(dir, "*.jsonl")
	if err != nil {
		return all, err
	}
	for _, name := range names {
		if err := all.read(dir, name); err != nil {
			return Rows{}, fmt.Errorf("read measurements of %s: %w", name, err)
		}
	}
	return all, nil
}

func (r *Rows) read(dir fs.FS, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var machine Machine
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for n := 1; lines.Scan(); n++ {
		var of struct {
			Kind      string
			Simulated bool
		}
		if err := json.Unmarshal(lines.Bytes(), &of); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		row := of.Kind == "training" || of.Kind == "interference"
		if of.Simulated && (row || of.Kind == "machine") {
			return fmt.Errorf("line %d is of a simulated GPU", n)
		}
		if row && (machine.Model == "" || machine.Driver == "" || machine.Date == "" || machine.Command == "") {
			return fmt.Errorf("line %d: no line before it says machine, driver, date and command", n)
		}
		switch of.Kind {
		case "machine":
			machine = Machine{}
			err = json.Unmarshal(lines.Bytes(), &machine)
		case "training":
			t := Training{Machine: machine}
			err = json.Unmarshal(lines.Bytes(), &t)
			r.Trainings = append(r.Trainings, t)
		case "interference":
			i := Interference{Machine: machine}
			err = json.Unmarshal(lines.Bytes(), &i)
			r.Interference = append(r.Interference, i)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return lines.Err()
}
