// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"carma/cmd/carma-report/internal/report/page"
	"carma/db/texttable"
)

// users has the shared and the idle GPU time of each user.
type users map[string]*userUse

// userUse adds up a user's jobs. An unknown figure of a job counts in no mean.
type userUse struct {
	name                  string
	jobs                  int
	gpuS, sharedS         float64
	idleS                 float64 // GPU time without SM activity
	smact                 mean
	bookedMiBS, peakMiBS  float64
	energyJ               float64
	energyKnown, memKnown bool
}

func (u *users) add(j *job) {
	if *u == nil {
		*u = users{}
	}
	name := cmp.Or(j.User, unknownText)
	of := (*u)[name]
	if of == nil {
		of = &userUse{name: strings.Clone(name)} // else the text of all records stays in memory
		(*u)[of.name] = of
	}
	f := j.figures
	of.jobs, of.gpuS, of.sharedS = of.jobs+1, of.gpuS+f.LeaseS, of.sharedS+f.SharedS
	if of.smact.add(f.SMActPct, f.LeaseS); f.SMActPct.Known() {
		of.idleS += f.LeaseS * (1 - float64(f.SMActPct)/100)
	}
	if j.PeakMiB > 0 && j.ReserveMiB > 0 {
		of.memKnown = true
		of.bookedMiBS += float64(j.ReserveMiB) * f.LeaseS
		of.peakMiBS += float64(min(j.PeakMiB, j.ReserveMiB)) * f.LeaseS
	}
	if f.EnergyJ.Known() {
		of.energyJ, of.energyKnown = of.energyJ+float64(f.EnergyJ), true
	}
}

// section is a table, with whoever left most GPU time idle first.
func (u users) section() page.Section {
	s := page.Section{Title: "Who shared, and who left GPUs idle", Text: []string{
		"Of jobs that ran in this time, from their start to their end. Idle is GPU time without SM activity; peak is the " +
			"highest memory in percent of the booked memory.",
	}, Columns: texttable.Columns("user", ">jobs", ">GPU hours", ">idle", ">SM activity", ">shared", ">peak", ">kWh")}
	list := slices.SortedFunc(maps.Values(u), func(a, b *userUse) int {
		return cmp.Or(cmp.Compare(b.idleS, a.idleS), cmp.Compare(a.name, b.name))
	})
	for _, of := range list {
		idle, shared, peak, energy := unknownText, unknownText, unknownText, unknownText
		if of.smact.seconds > 0 {
			idle = fmt.Sprintf("%.1f", of.idleS/3600)
		}
		if of.gpuS > 0 {
			shared = fmt.Sprintf("%.0f %%", 100*of.sharedS/of.gpuS)
		}
		if of.memKnown && of.bookedMiBS > 0 {
			peak = fmt.Sprintf("%.0f %%", 100*of.peakMiBS/of.bookedMiBS)
		}
		if of.energyKnown {
			energy = fmt.Sprintf("%.1f", of.energyJ/3.6e6)
		}
		s.Rows = append(s.Rows, []string{of.name, fmt.Sprint(of.jobs), fmt.Sprintf("%.1f", of.gpuS/3600), idle,
			rounded(of.smact.value(), " %"), shared, peak, energy})
	}
	return s
}
