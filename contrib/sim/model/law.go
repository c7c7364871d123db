// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"carma/contrib/gpucheck/data"
)

// Client is a process on a GPU.
type Client struct {
	Demand float64 // SM activity when alone, 0 to 1
	Server int32   // MPS server that it is a client of; 0: none
	Rate   float64 // out: progress per second, 1 when alone
}

// Law says how clients of one MPS server share a GPU: it sets their rates and
// returns their combined SM activity.
type Law func(c []Client) (util float64)

// Laws are those that need no table. A new law is a function and a line here.
var Laws = map[string]Law{"equal": equal, "propu": propu, "none": none}

func lawNames() string {
	names := append(slices.Collect(maps.Keys(Laws)), "table")
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// LawOf returns the law that the model names.
func (g GPU) LawOf() Law {
	if g.Law == "table" {
		return table(g.TableSlowdown)
	}
	if rows := measured(); g.Law == "equal" && len(rows) > 0 {
		return measuredFirst(rows, equal)
	}
	return Laws[g.Law]
}

// measured are the mixes under MPS that were measured on real GPUs.
var measured = sync.OnceValue(func() []data.Interference {
	all, err := data.Read()
	if err != nil {
		return nil // the package's own test says so
	}
	return slices.DeleteFunc(all.Interference, func(r data.Interference) bool { return !r.MPS })
})

// MeasuredMixes is how many there are.
func MeasuredMixes() int { return len(measured()) }

// nearDemand is how far the SM activity of a job may be off that of a measured mix.
const nearDemand = 0.1

// measuredFirst takes the speed of a mix that was measured, where each client is near to
// one of it, and the rule for all others.
func measuredFirst(rows []data.Interference, rule Law) Law {
	return func(c []Client) float64 {
		at := slices.IndexFunc(rows, func(r data.Interference) bool { return near(c, r.DemandPct) })
		if len(c) < 2 || at < 0 {
			return rule(c)
		}
		_, sum := combined(c)
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

// combined returns 1 - prod(1 - u) and sum(u).
func combined(c []Client) (util, sum float64) {
	idle := 1.0
	for i := range c {
		idle *= 1 - c[i].Demand
		sum += c[i].Demand
	}
	return 1 - idle, sum
}

// equal conserves SM work and slows all clients alike.
func equal(c []Client) float64 {
	util, sum := combined(c)
	rate := 1.0
	if len(c) > 1 && sum > 0 {
		rate = util / sum
	}
	for i := range c {
		c[i].Rate = rate
	}
	return util
}

// propu conserves SM work; rates are k*u with the k that uses all of it, but no
// client is faster than alone.
func propu(c []Client) float64 {
	if len(c) == 1 {
		return none(c)
	}
	util, _ := combined(c)
	for i := range c {
		c[i].Rate = 0
	}
	// Those at full speed leave the rest of the work to the others, so k grows
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
	util, _ := combined(c)
	for i := range c {
		c[i].Rate = 1
	}
	return util
}

// table slows k clients by slowdown[k-1], whatever they are; activity follows
// from the rates.
func table(slowdown []float64) Law {
	return func(c []Client) float64 {
		rate := 1 / slowdown[min(max(len(c), 1), len(slowdown))-1]
		_, sum := combined(c)
		for i := range c {
			c[i].Rate = rate
		}
		return min(rate*sum, 1)
	}
}

// Share applies law to each group of clients with a common server. Groups take
// turns: each gets an equal part of the time. Clients of one server stand
// together. It returns the GPU's SM activity.
func Share(law Law, c []Client) (util float64) {
	groups := 0
	for i := 0; i < len(c); {
		n := i + 1
		for n < len(c) && c[i].Server != 0 && c[n].Server == c[i].Server {
			n++
		}
		util += law(c[i:n])
		groups++
		i = n
	}
	if groups <= 1 {
		return util
	}
	for i := range c {
		c[i].Rate /= float64(groups)
	}
	return util / float64(groups)
}
