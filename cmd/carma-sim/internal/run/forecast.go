// SPDX-License-Identifier: Apache-2.0

package run

import (
	"slices"
	"time"

	"carma/cmd/carma-sim/internal/forecast"
	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/replay"
	"carma/gres/choose"
	"carma/slurmbridge/config"
	"carma/slurmbridge/policy"
	"carma/slurmbridge/version"
)

// forecastPolicies are compared in a forecast, beside the site's own.
var forecastPolicies = []policy.Name{policy.Carma, policy.MAGM, policy.LUG, policy.RoundRobin}

// Forecast is what sharing would have brought to a cluster, as --json prints it.
type Forecast struct {
	Schema      string            `json:"schema"`
	Version     string            `json:"version"`
	From        time.Time         `json:"from"`
	To          time.Time         `json:"to"`
	Jobs        int               `json:"jobs"`
	Scripts     int               `json:"scripts"`
	Booked      forecast.Booked   `json:"booked"`
	Policy      choose.Policy     `json:"policy"`
	Estimator   replay.Estimator  `json:"estimator"`
	Repeats     int               `json:"repeats"`
	Seed        uint64            `json:"seed"`
	PowerFactor *float64          `json:"power_factor"`
	Pools       []poolJSON        `json:"pools"`
	Recorded    forecast.Recorded `json:"recorded"`
	Rows        []forecastRow     `json:"rows"`
	Unknown     forecast.Unknown  `json:"unknown"`
	nodes, gpus int
}

type poolJSON struct {
	Partitions []string `json:"partitions"`
	Nodes      int      `json:"nodes"`
	GPUs       int      `json:"gpus"`
	Jobs       int      `json:"jobs"`
}

// forecastRow is a policy and how many pools share under the policy, in their order.
type forecastRow struct {
	Policy  choose.Policy `json:"policy"`
	Sharing int           `json:"sharing"`
	forecast.Figures
}

// NewForecast replays a plan without sharing and with the policies, under the thresholds of
// a carma.toml.
func NewForecast(p *forecast.Plan, c config.Config, rep Repeats) (*Forecast, error) {
	if err := rep.check(); err != nil {
		return nil, err
	}
	set := setupOf(p, c)
	policies := []choose.Policy{policy.Exclusive, set.Policy}
	for _, name := range forecastPolicies {
		if !slices.Contains(policies, name) {
			policies = append(policies, name)
		}
	}
	if set.Policy == policy.Exclusive { // the site shares nothing; ours would be the default
		policies, set.Policy = policies[1:], policy.Carma
	}
	out := &Forecast{Schema: "carma-sim.forecast/1", Version: version.String(), From: p.From, To: p.To, Jobs: p.Jobs,
		Scripts: p.Scripts, Booked: p.Booked, Policy: set.Policy, Estimator: set.Estimator, Repeats: rep.N, Seed: rep.Seed,
		Recorded: p.Recorded, Unknown: p.Unknown}
	if p.PowerFactor > 0 {
		out.PowerFactor = &p.PowerFactor
	}
	for _, pool := range p.Pools {
		nodes, gpus, jobs := pool.Size()
		out.Pools = append(out.Pools, poolJSON{pool.Partitions, nodes, gpus, jobs})
		out.nodes, out.gpus = out.nodes+nodes, out.gpus+gpus
	}
	played := played{plan: p, until: make([]float64, rep.N)}
	prog := newProgress(len(policies) * rep.N)
	defer prog.end()
	for _, name := range policies {
		set.Policy = name
		if err := played.play(set, rep, prog); err != nil {
			return nil, err
		}
	}
	out.rows(&played, policies)
	return out, nil
}

// setupOf is the cluster's setup but for its size.
func setupOf(p *forecast.Plan, c config.Config) replay.Setup {
	s := replay.FromConfig(c, p.Model(model.Default()))
	s.Estimator, s.Record = replay.History, true
	return s
}

// played are the outcomes by policy, pool, repeat and kind of node.
type played struct {
	plan     *forecast.Plan
	outcomes [][][][]forecast.Outcome
	until    []float64 // by repeat: the last end under any policy, s
}

// play replays all jobs under one policy.
func (p *played) play(set replay.Setup, rep Repeats, prog *progress) error {
	pools := make([][][]forecast.Outcome, len(p.plan.Pools))
	for i := range pools {
		pools[i] = make([][]forecast.Outcome, rep.N)
	}
	for n := range rep.N {
		set.Seed = rep.Seed + uint64(n)
		for i, pool := range p.plan.Pools {
			for _, k := range pool.Kinds {
				set.Nodes, set.GPUs, set.GPUMemMiB = k.Nodes, k.GPUs, k.GPUMemMiB
				r, err := replay.Run(set, &k.Work)
				if err != nil {
					return err
				}
				o := k.Of(&set, &r)
				p.until[n] = max(p.until[n], o.EndS())
				pools[i][n] = append(pools[i][n], o)
			}
		}
		prog.step()
	}
	p.outcomes = append(p.outcomes, pools)
	return nil
}

// figures are those with policy in the first pools, and the first policy in others.
func (p *played) figures(policy, sharing int) forecast.Figures {
	repeats := make([][]*forecast.Outcome, len(p.until))
	for n := range repeats {
		for i := range p.plan.Pools {
			of := policy
			if i >= sharing {
				of = 0
			}
			for k := range p.outcomes[of][i][n] {
				repeats[n] = append(repeats[n], &p.outcomes[of][i][n][k])
			}
		}
	}
	return forecast.Sum(repeats, p.until)
}

// rows are no sharing; the site's policy in one pool, in two and so on; the others in all.
func (f *Forecast) rows(p *played, policies []choose.Policy) {
	all := len(p.plan.Pools)
	for i, name := range policies {
		from, to := all, all
		switch i {
		case 0:
			from, to = 0, 0
		case 1:
			from = 1
		}
		for sharing := from; sharing <= to; sharing++ {
			f.Rows = append(f.Rows, forecastRow{name, sharing, p.figures(i, sharing)})
		}
	}
}
