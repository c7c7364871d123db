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
	group
	idleS                float64 // GPU time without SM activity
	smact                mean
	bookedMiBS, peakMiBS float64
}

func (u *users) add(j *job) {
	if *u == nil {
		*u = users{}
	}
	name := dimensions["user"](j, nil)
	of := (*u)[name]
	if of == nil {
		of = &userUse{group: group{Name: strings.Clone(name)}} // else the text of all records stays in memory
		(*u)[of.Name] = of
	}
	of.group.add(j)
	f := j.figures
	if of.smact.add(f.SMActPct, f.LeaseS); f.SMActPct.Known() {
		of.idleS += f.LeaseS * (1 - float64(f.SMActPct)/100)
	}
	if j.PeakMiB > 0 && j.ReserveMiB > 0 {
		of.bookedMiBS += float64(j.ReserveMiB) * f.LeaseS
		of.peakMiBS += float64(min(j.PeakMiB, j.ReserveMiB)) * f.LeaseS
	}
}

// section is a table, with whoever left most GPU time idle first.
func (u users) section() page.Section {
	s := page.Section{Title: "Who shared, and who left GPUs idle", Text: []string{
		"Of jobs that ran in this time, from their start to their end. Idle is GPU time without SM activity; peak is the " +
			"highest memory in percent of the booked memory.",
	}, Columns: texttable.Columns("user", ">jobs", ">GPU hours", ">idle", ">SM activity", ">shared", ">peak", ">kWh")}
	list := slices.SortedFunc(maps.Values(u), func(a, b *userUse) int {
		return cmp.Or(cmp.Compare(b.idleS, a.idleS), cmp.Compare(a.Name, b.Name))
	})
	for _, of := range list {
		idle, shared, peak, energy := unknownText, unknownText, unknownText, unknownText
		if of.smact.seconds > 0 {
			idle = fmt.Sprintf("%.1f", of.idleS/3600)
		}
		if of.GPUHours > 0 {
			shared = fmt.Sprintf("%.0f %%", 100*of.SharedHours/of.GPUHours)
		}
		if of.bookedMiBS > 0 {
			peak = fmt.Sprintf("%.0f %%", 100*of.peakMiBS/of.bookedMiBS)
		}
		if of.EnergyOf > 0 {
			energy = fmt.Sprintf("%.1f", of.EnergyKWh)
		}
		s.Rows = append(s.Rows, []string{of.Name, fmt.Sprint(of.Jobs), fmt.Sprintf("%.1f", of.GPUHours), idle,
			rounded(of.smact.value(), " %"), shared, peak, energy})
	}
	return s
}
