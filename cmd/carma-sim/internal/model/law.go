// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"carma/contrib/gpucheck/data"
	"carma/gres/interference"
)

// Client is a process on a GPU.
type Client = interference.Client

// Law says how clients of one MPS server share a GPU.
type Law = interference.Law

// laws are those that need no table. A new law is a function and a line here.
var laws = map[string]Law{"equal": interference.Equal, "propu": propu, "none": none}

func lawNames() string {
	names := append(slices.Collect(maps.Keys(laws)), "table")
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// LawOf returns the law named by the model.
func (g GPU) LawOf() Law {
	if g.Law == "table" {
		return table(g.TableSlowdown)
	}
	if rows := measured(); g.Law == "equal" && len(rows) > 0 {
		return measuredFirst(rows, interference.Equal)
	}
	return laws[g.Law]
}

// measured are the mixes under MPS measured on real GPUs.
var measured = sync.OnceValue(func() []data.Interference {
	all, err := data.Read()
	if err != nil {
		return nil // the package's own test says so
	}
	return slices.DeleteFunc(all.Interference, func(r data.Interference) bool { return !r.MPS })
})

// MeasuredMixes is how many there are.
func MeasuredMixes() int { return len(measured()) }

// nearDemand is how far the SM activity of a job may be from the activity of a measured
// mix.
const nearDemand = 0.1

// measuredFirst takes the speed of a measured mix, where each client is near to a client
// of the mix, and the rule for all other clients.
func measuredFirst(rows []data.Interference, rule Law) Law {
	return func(c []Client) float64 {
		at := slices.IndexFunc(rows, func(r data.Interference) bool { return near(c, r.DemandPct) })
		if len(c) < 2 || at < 0 {
			return rule(c)
		}
		_, sum := interference.Combined(c)
		for i := range c {
			c[i].Rate = rows[at].Rate
		}
		return min(rows[at].Rate*sum, 1)
	}
}

// near tells whether clients are as a mix, whose loads are alike.
func near(c []Client, demandPct []int) bool {
	if len(c) != len(demandPct) {
		return false
	}
	for i := range c {
		if d := c[i].Demand - float64(demandPct[i])/100; d > nearDemand || d < -nearDemand {
			return false
		}
	}
	return true
}

// propu conserves SM work; rates are k*u with the k that uses all of it, but no
// client is faster than alone.
func propu(c []Client) float64 {
	if len(c) == 1 {
		return none(c)
	}
	util, _ := interference.Combined(c)
	for i := range c {
		c[i].Rate = 0
	}
	// Clients at full speed leave the rest of the work to the others, so k grows
	// until nobody new reaches full speed.
	for {
		rest, squares := util, 0.0
		for i := range c {
			if c[i].Rate == 1 {
				rest -= c[i].Demand
			} else {
				squares += c[i].Demand * c[i].Demand
			}
		}
		again := false
		for i := range c {
			if c[i].Rate == 1 {
				continue
			}
			c[i].Rate = 1
			if squares > 0 && rest/squares*c[i].Demand < 1 {
				c[i].Rate = max(rest, 0) / squares * c[i].Demand
			} else {
				again = true
			}
		}
		if !again {
			return util
		}
	}
}

func none(c []Client) float64 {
	util, _ := interference.Combined(c)
	for i := range c {
		c[i].Rate = 1
	}
	return util
}

// table slows any k clients by slowdown[k-1]; activity follows from the rates.
func table(slowdown []float64) Law {
	return func(c []Client) float64 {
		rate := 1 / slowdown[min(max(len(c), 1), len(slowdown))-1]
		_, sum := interference.Combined(c)
		for i := range c {
			c[i].Rate = rate
		}
		return min(rate*sum, 1)
	}
}
