// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"carma/cmd/internal/cli"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/config"
)

const statusUsage = `usage: carma-node status [--json]

Shows the GPUs of this node: SM activity over the window, memory used and
leased, the jobs that hold each, and why a closed one takes no more.
`

func runStatus(ctx context.Context, e env, args []string) error {
	f := cli.Flags("carma-node status", statusUsage, os.Stdout)
	asJSON := f.Bool("json", false, "print JSON (docs/json.md)")
	if err := cli.Parse(f, args); err != nil {
		return err
	}
	c, err := config.Load(e.config)
	if err != nil {
		return err
	}
	c = c.ForNode(nodeName(e))
	book, err := lease.Open(c.RunDir(nodeName(e)), 2*time.Second)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w; has the agent run, and are you root?", err)
	}
	defer book.Close()
	s, err := book.Snapshot(ctx)
	if err != nil {
		return cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	gpus := statusOf(s, thresholds(c))
	if *asJSON {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{"schema": "carma.status/1", "node": nodeName(e), "gpus": gpus})
	}
	return printStatus(os.Stdout, gpus)
}

// gpuStatus is one GPU in the status, for people and machines.
type gpuStatus struct {
	gres.GPU
	SMActPct  gres.Measured `json:"smact_pct"`
	Source    gres.Source   `json:"smact_source"`
	AgeS      float64       `json:"age_s"`
	UsedMiB   int64         `json:"used_mib"`
	LeasedMiB int64         `json:"leased_mib"`
	OpenMiB   int64         `json:"open_mib"` // what a next job can get
	Closed    string        `json:"closed,omitempty"`
	Leases    []leaseStatus `json:"leases"`
}

type leaseStatus struct {
	JobID      uint32  `json:"job_id"`
	UID        uint32  `json:"uid"`
	ReserveMiB int64   `json:"reserve_mib"`
	Exclusive  bool    `json:"exclusive"`
	MPS        bool    `json:"mps"`
	AgeS       float64 `json:"age_s"`
}

func statusOf(s lease.Snapshot, t choose.Thresholds) []gpuStatus {
	gpus := []gpuStatus{}
	for _, r := range s.Readings {
		g := gpuStatus{GPU: r.GPU, SMActPct: gres.Measured(r.SMActPct), Source: r.Source, AgeS: r.Age.Seconds(), UsedMiB: r.UsedMiB, Leases: []leaseStatus{}}
		open, closed := choose.Placeable(r, s.Leases, t)
		g.OpenMiB, g.Closed = open, closed.String()
		for _, l := range s.Leases {
			if l.UUID == r.UUID {
				g.LeasedMiB += l.ReserveMiB
				g.Leases = append(g.Leases, leaseStatus{l.Job.JobID, l.UID, l.ReserveMiB, l.Exclusive, l.MPS, l.Age.Seconds()})
			}
		}
		gpus = append(gpus, g)
	}
	return gpus
}

// printStatus prints a line for each GPU, at most 80 columns wide with up to
// two jobs.
func printStatus(w io.Writer, gpus []gpuStatus) error {
	fmt.Fprintf(w, "GPU  SMACT  %-22s %-20s %s\n", "MEMORY used+leased", "used/leased/total", "JOBS")
	for _, g := range gpus {
		var jobs []string
		for _, l := range g.Leases {
			name := fmt.Sprint(l.JobID)
			if l.Exclusive {
				name += "!"
			}
			jobs = append(jobs, name)
		}
		note := strings.Join(jobs, " ")
		if g.Closed != "" {
			note = strings.TrimSpace(note + "  (" + g.Closed + ")")
		}
		gib := func(mib int64) string { return fmt.Sprintf("%.1f", float64(mib)/1024) }
		fmt.Fprintf(w, "%3d  %5s  %s %-20s %s\n", g.Index, percent(g.SMActPct), memoryBar(g, 22),
			gib(g.UsedMiB)+"/"+gib(g.LeasedMiB)+"/"+gib(g.TotalMiB), note)
	}
	return nil
}

func percent(m gres.Measured) string {
	if !m.Known() {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", float64(m))
}

// memoryBar shows used memory as #, leased but unused as +, the rest as dots.
func memoryBar(g gpuStatus, width int) string {
	if g.TotalMiB <= 0 {
		return strings.Repeat("?", width)
	}
	cells := func(mib int64) int {
		return int(min((mib*int64(width)+g.TotalMiB/2)/g.TotalMiB, int64(width)))
	}
	used := cells(g.UsedMiB)
	leased := max(cells(g.LeasedMiB), used)
	return strings.Repeat("#", used) + strings.Repeat("+", leased-used) + strings.Repeat(".", width-leased)
}
