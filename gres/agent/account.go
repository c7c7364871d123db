// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/gres"
	"carma/gres/energy"
	"carma/gres/lease"
	"carma/gres/resident"
	"carma/slurmbridge/jobenv"
)

// accounts are the meters of the GPUs, by which the agent tells each job's part.
type accounts struct {
	loaded bool
	gpus   map[string]*account
	ended  map[jobenv.JobKey]time.Duration // when, on the ledger's clock
}

// account is one GPU's.
type account struct {
	gpu     gres.GPU
	meter   energy.Meter
	last    float64 // counter at the last look
	floor   energy.Floor
	at      time.Duration // of the last look; 0: none
	idle    bool          // nobody was there at the last look
	here    bool          // the agent has looked at the GPU; the database may have GPUs of the past, and other nodes'
	holders map[jobenv.JobKey]*holder
	bucket  db.Sample
	smactS  float64 // percent x seconds in the bucket
	memory  map[jobenv.JobKey]*jobMemory
}

// holder is a job that holds the GPU, or held it at the last look.
type holder struct {
	lease gres.Lease
	energy.Evidence
	usedMiB int64
	from    figure.MemorySource
	gone    bool
	idle    idleness
	slow    slowness
}

// begin reads the state of an earlier agent, once, and notes which jobs have ended
// since the last tick. An agent that was ended has written all, and the next agent goes on with the last sample.
// An agent that was killed has written what jobs used up to the last look (readings), but not the
// sample: jobs' energy goes on from the last look, and the samples have a gap of sampleOf looks at most.
func (c *accounts) begin(ctx context.Context, a *Agent, readings []gres.Reading, ended []lease.Ended) {
	now := lease.Now()
	c.ended = map[jobenv.JobKey]time.Duration{}
	for _, e := range ended {
		c.ended[e.JobKey] = now - e.Age
	}
	if c.loaded || a.Records == nil {
		return
	}
	c.loaded, c.gpus = true, map[string]*account{}
	meters, err := a.Records.Meters(ctx)
	if err != nil {
		a.Log.Warn("read energy meters; energy used while no agent ran is not accounted", "error", err)
	}
	for _, m := range meters {
		g := c.of(gres.GPU{UUID: m.UUID, Index: m.Index, Model: m.Model, TotalMiB: m.TotalMiB})
		g.floor.Watts = float64(m.FloorWatts)
		if since := time.Since(m.At); m.CounterJ.Known() && since > 0 && since < now {
			g.resume(m.CounterJ, now-since)
		}
	}
	for _, r := range readings {
		if g := c.of(r.GPU); r.CounterJ.Known() && now-r.Age > g.at {
			g.resume(r.CounterJ, now-r.Age)
		}
	}
	at := time.Now().Truncate(a.sampleLength())
	begun, err := a.Records.Series(ctx, "", at, at.Add(time.Second))
	if err != nil {
		a.Log.Warn("read samples; what was measured of the present one before the agent's start is lost", "error", err)
	}
	for _, s := range begun {
		if g := c.gpus[s.UUID]; g != nil && s.At.Equal(at) {
			g.fill(s)
		}
	}
}

// resume goes on from a look of an earlier agent.
func (g *account) resume(counter figure.Measured, at time.Duration) {
	g.meter, g.last, g.at = energy.Since(float64(counter)), float64(counter), at
}

func (c *accounts) of(gpu gres.GPU) *account {
	if c.gpus == nil {
		c.gpus = map[string]*account{}
	}
	g := c.gpus[gpu.UUID]
	if g == nil {
		g = &account{floor: energy.Floor{Watts: math.NaN()}, holders: map[jobenv.JobKey]*holder{},
			bucket: db.Sample{UUID: gpu.UUID}, memory: map[jobenv.JobKey]*jobMemory{}}
		c.gpus[gpu.UUID] = g
	}
	g.gpu = gpu
	return g
}

// account splits what a GPU did since the last look among its holders.
func (a *Agent) account(s gres.Sample, leases []gres.Lease, owners Owners, now time.Duration) []lease.Usage {
	g := a.accounts.of(s.GPU)
	g.here = true
	if s.Unreadable != "" {
		g.forgetIdle()
		return nil
	}
	seconds := 0.0
	if g.at > 0 {
		seconds = (now - g.at).Seconds()
	}
	joules := g.meter.Add(float64(s.EnergyJ), float64(s.PowerWatts), seconds)
	g.last = float64(s.EnergyJ)

	order := g.hold(s.UUID, leases)
	foreign, serverPct := look(s, g, order, leases, owners)
	var split interval
	split.add(order, foreign, g.at, now, a.accounts.ended)
	idle := len(order) == 0 && !foreign.Present
	if idle && g.idle {
		g.floor.Learn(joules, seconds)
	}
	g.idle = idle
	usages := split.usages(s, order, joules, seconds, &g.floor, serverPct)
	a.boundSlowdown(usages, order, s, leases, foreign.Present)
	for i, h := range order {
		h.idle.look(&usages[i], s, foreign.Present, len(order), now)
	}
	g.addToBucket(s, joules, split.unownedJ, seconds, len(order))
	g.remember(order)
	g.at = now
	maps.DeleteFunc(g.holders, func(_ jobenv.JobKey, h *holder) bool { return h.gone })
	return usages
}

// hold brings the holders up to date: jobs with leases, and holders of the last look
// that have gone since, in the order of their jobs.
func (g *account) hold(uuid string, leases []gres.Lease) []*holder {
	for _, h := range g.holders {
		h.gone = true
	}
	for _, l := range leases {
		if l.UUID != uuid {
			continue
		}
		h := g.holders[l.Job]
		if h == nil {
			h = &holder{}
			g.holders[l.Job] = h
		}
		h.lease, h.gone = l, false
		h.ExpectedPct, h.MPS = l.SMActPct, l.Daemon != ""
		if l.AlonePct > 0 {
			h.ExpectedPct = l.AlonePct
		}
	}
	return slices.SortedFunc(maps.Values(g.holders), func(x, y *holder) int {
		return int(int64(x.lease.Job.JobID) - int64(y.lease.Job.JobID))
	})
}

// look finds out what each holder has on the GPU, and what is there of no job. A holder
// that has gone keeps what was last seen of it.
func look(s gres.Sample, g *account, holders []*holder, leases []gres.Lease, owners Owners) (foreign energy.Evidence,
	serverPct float64) {
	for _, h := range holders {
		if !h.gone {
			h.Present, h.ProcessPct, h.usedMiB, h.from = false, 0, 0, figure.MemoryProcess
		}
	}
	known := int64(0)
	for _, p := range s.Processes {
		o := owners.Owner(p.PID)
		switch h := g.holders[keyOf(o, leases, s.UUID)]; {
		case h != nil:
			h.Present = true
			h.ProcessPct += s.ProcessSMPct[p.PID]
			h.usedMiB += p.UsedMiB
			if p.MPS {
				h.from = figure.MemoryMPS
			}
		case o.MPSServer:
			serverPct += s.ProcessSMPct[p.PID]
		case !o.Gone:
			foreign.Present = true
			foreign.ProcessPct += s.ProcessSMPct[p.PID]
		}
		known += p.UsedMiB
	}
	for _, h := range holders {
		if h.Present && !h.gone && h.usedMiB == 0 {
			h.usedMiB, h.from = max(s.UsedMiB-known, 0), figure.MemoryWindow
		}
	}
	return foreign, serverPct
}

// keyOf is ownerOf with the restart.
func keyOf(o resident.Owner, leases []gres.Lease, uuid string) (key jobenv.JobKey) {
	job := ownerOf(o, leases, uuid)
	for _, l := range leases {
		if job != 0 && l.UUID == uuid && l.Job.JobID == job {
			return l.Job
		}
	}
	return key
}

// interval is the time between two looks and the GPU's holders then.
type interval struct {
	holders  []energy.Holder // processes of no job last
	evidence []energy.Evidence
	unownedJ float64
}

func (v *interval) add(order []*holder, foreign energy.Evidence, from, to time.Duration,
	ended map[jobenv.JobKey]time.Duration) {
	length := float64(to - from)
	part := func(at time.Duration) float64 {
		if from == 0 || length <= 0 {
			return 0
		}
		return min(max(float64(at-from)/length, 0), 1)
	}
	for _, h := range order {
		e := energy.Holder{From: part(to - h.lease.Age), To: 1}
		if h.gone {
			// Its age was told at the last look.
			e.From, e.To = 0, 0
			if at, ok := ended[h.lease.Job]; ok {
				e.To = part(at)
			}
		}
		v.holders = append(v.holders, e)
		v.evidence = append(v.evidence, h.Evidence)
	}
	if foreign.Present {
		v.holders = append(v.holders, energy.Holder{To: 1})
		v.evidence = append(v.evidence, foreign)
	}
}

func (v *interval) usages(s gres.Sample, order []*holder, joules, seconds float64, floor *energy.Floor,
	serverPct float64) []lease.Usage {
	for i, w := range energy.Activities(v.evidence, serverPct) {
		v.holders[i].Activity = w
	}
	floorJ := 0.0
	if len(v.holders) > 0 && !math.IsNaN(joules) {
		floorJ = floor.Joules(joules, seconds)
	}
	shares, unowned := energy.Split(joules, floorJ, v.holders)
	activity, _ := energy.Split(float64(s.SMActPct), 0, v.holders)
	for _, foreign := range shares[len(order):] {
		unowned += foreign.IdleJ + foreign.DynamicJ
	}
	v.unownedJ = unowned
	rate := energy.Rate(float64(s.SMActPct), v.evidence)
	usages := make([]lease.Usage, len(order))
	for i, h := range order {
		there, sh := v.holders[i].To-v.holders[i].From, shares[i]
		u := lease.Usage{
			Job: h.lease.Job, UUID: s.UUID, Present: h.Present && !h.gone, Seen: h.lease.Seen, Seconds: seconds * there,
			SMActPct: math.NaN(), SMActFrom: s.Source, EnergyJ: sh.IdleJ + sh.DynamicJ, IdleJ: sh.IdleJ,
			HeldS: seconds * sh.Held, SharedS: seconds * sh.Shared, AloneS: seconds * (there - sh.Shared),
		}
		if u.Present {
			u.UsedMiB, u.UsedFrom = h.usedMiB, h.from
		}
		if there > 0 {
			u.SMActPct = (activity[i].IdleJ + activity[i].DynamicJ) / there
		}
		if sh.Shared > 0 {
			u.AloneS += seconds * sh.Shared * rate
		}
		usages[i] = u
	}
	return usages
}
