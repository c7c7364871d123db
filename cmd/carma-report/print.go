// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"

	"carma/cmd/internal/cli"
	"carma/gres"
)

func printJSON(w io.Writer, jobs []job) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{"schema": "carma.report/1", "jobs": jobs})
}

func printTable(w io.Writer, jobs []job) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "JOBID", Right: true}, {Title: "USER"}, {Title: "STATE"}, {Title: "GPUS", Right: true},
		{Title: "EST", Right: true}, {Title: "BOOKED", Right: true}, {Title: "PEAK", Right: true}, {Title: "SMACT", Right: true},
		{Title: "WAIT", Right: true}, {Title: "RUN", Right: true}, {Title: "ENERGY", Right: true}, {Title: "SHARED WITH"}, {Title: "OOM"},
	}}
	for _, j := range jobs {
		t.Rows = append(t.Rows, []string{
			fmt.Sprint(j.JobID), j.User, j.State, fmt.Sprint(len(j.GPUs)),
			gib(j.EstMiB), gib(&j.ReserveMiB), gib(j.PeakMiB), percent(j.SMActPct),
			clock(float64(j.WaitS)), clock(j.RunS), joules(j.EnergyJ), sharedWith(j), oom(j),
		})
	}
	_, err := t.WriteTo(w)
	return err
}

func gib(mib *int64) string {
	if mib == nil {
		return "-"
	}
	return fmt.Sprintf("%.1fG", float64(*mib)/1024)
}

func percent(m gres.Measured) string {
	if !m.Known() {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", float64(m))
}

// clock prints seconds as sacct prints Elapsed: [d-]hh:mm:ss.
func clock(s float64) string {
	if math.IsNaN(s) {
		return "-"
	}
	n := int64(math.Round(s))
	text := fmt.Sprintf("%02d:%02d:%02d", n/3600%24, n/60%60, n%60)
	if days := n / 86400; days > 0 {
		text = fmt.Sprintf("%d-%s", days, text)
	}
	return text
}

func joules(m gres.Measured) string {
	switch f := float64(m); {
	case !m.Known():
		return "-"
	case f < 10e3:
		return fmt.Sprintf("%.0fJ", f)
	case f < 10e6:
		return fmt.Sprintf("%.0fkJ", f/1e3)
	default:
		return fmt.Sprintf("%.1fMJ", f/1e6)
	}
}

func sharedWith(j job) string {
	const most = 3
	words := []string{}
	for i, id := range j.Neighbours {
		if i == most {
			words = append(words, fmt.Sprintf("+%d", len(j.Neighbours)-most))
			break
		}
		words = append(words, fmt.Sprint(id))
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ",")
}

func oom(j job) string {
	switch {
	case j.RequeuedTo != nil:
		return "back on " + *j.RequeuedTo
	case j.OOM:
		return "yes"
	}
	return "-"
}
