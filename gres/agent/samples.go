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
	"carma/gres/lease"
)

// sampleOf is how many looks make a sample.
const sampleOf = 10

func (a *Agent) sampleLength() time.Duration { return sampleOf * a.Config.NVML.Interval.D() }

// maxPending bounds the samples waiting for a database that takes none: a day of one
// GPU.
const maxPending = 8640

// addToBucket adds an interval to the sample that is being made.
func (g *account) addToBucket(s gres.Sample, joules, unownedJ, seconds float64, jobs int) {
	b := &g.bucket
	b.UsedMiB, b.Jobs = max(b.UsedMiB, s.UsedMiB), max(b.Jobs, jobs)
	if seconds <= 0 {
		return
	}
	if !math.IsNaN(joules) {
		b.EnergyJ += figure.Measured(joules)
		b.UnownedJ += figure.Measured(unownedJ)
		b.EnergyS += seconds
	}
	if s.SMActPct.Known() {
		g.smactS += float64(s.SMActPct) * seconds
		b.SMActS += seconds
		b.SMActMax = max(b.SMActMax, s.SMActPct)
	}
}

// jobMemory is the most that a job used in the present sample, and the row that is written of the samples
// before.
type jobMemory struct {
	uid     uint32
	mostMiB int64
	written db.JobSample
}

// remember adds the memory of the holders to the present sample. Where the driver does not tell the
// memory of processes, several jobs together have no figure each.
func (g *account) remember(holders []*holder) {
	for _, h := range holders {
		if !h.Present || h.gone || h.from == figure.MemoryWindow && len(holders) > 1 {
			continue
		}
		m := g.memory[h.lease.Job]
		if m == nil {
			m = &jobMemory{uid: h.lease.UID}
			g.memory[h.lease.Job] = m
		}
		m.mostMiB = max(m.mostMiB, h.usedMiB)
	}
}

// jobSamples ends the jobs' part of a sample. A job whose memory stays goes on with the written row: programs
// seldom allocate more later.
func (g *account) jobSamples(from time.Time, length time.Duration) (list []db.JobSample) {
	for key, m := range g.memory {
		if m.mostMiB == 0 {
			delete(g.memory, key)
			continue
		}
		if w := &m.written; w.UsedMiB == m.mostMiB && w.At.Add(w.Length).Equal(from) {
			w.Length += length
		} else {
			*w = db.JobSample{UUID: g.gpu.UUID, At: from, Length: length, JobID: key.JobID, Restart: key.Restart, UID: m.uid,
				UsedMiB: m.mostMiB}
		}
		m.mostMiB = 0
		list = append(list, m.written)
	}
	return list
}

// flush writes the samples whose time is over. A database that takes none costs the
// oldest samples, never a tick.
func (c *accounts) flush(ctx context.Context, a *Agent) {
	if a.Records == nil {
		return
	}
	at := time.Now().Truncate(a.sampleLength())
	turned := false
	for _, uuid := range slices.Sorted(maps.Keys(c.gpus)) {
		turned = c.gpus[uuid].turn(at, a.sampleLength(), &c.pending) || turned
	}
	if turned {
		c.write(ctx, a)
	}
	if now := time.Now(); now.Sub(c.tidied) > tidyEvery {
		c.tidied = now
		if err := a.Records.Tidy(ctx); err != nil {
			a.Log.Warn("tidy the accounting database; retried in an hour", "error", err)
		}
	}
}

// tidyEvery is how often old samples are put together and too old samples go.
const tidyEvery = time.Hour

// turn begins a new bucket if its time has come.
func (g *account) turn(at time.Time, length time.Duration, to *[]db.Sample) bool {
	switch {
	case !g.here || g.bucket.At.Equal(at):
		return false
	case g.bucket.At.IsZero(): // looks before the first bucket count in the first
		g.bucket.At = at
		return false
	}
	b := g.bucket
	b.Length, b.Memory = length, g.jobSamples(b.At, length)
	b.SMActPct, b.SMActMax = figure.Unknown, figure.Unknown
	if b.SMActS > 0 {
		b.SMActPct, b.SMActMax = figure.Measured(g.smactS/b.SMActS), g.bucket.SMActMax
	}
	g.bucket, g.smactS = db.Sample{UUID: b.UUID, At: at}, 0
	*to = append(*to, b)
	return true
}

// fill goes on with the sample that an earlier agent has begun: a sample of the new agent alone would replace the
// earlier agent's.
func (g *account) fill(s db.Sample) {
	g.bucket, g.smactS = s, 0
	if s.SMActS > 0 {
		g.smactS = float64(s.SMActPct) * s.SMActS
	} else {
		g.bucket.SMActMax = 0
	}
}

func (c *accounts) write(ctx context.Context, a *Agent) {
	var meters []db.Meter
	for _, uuid := range slices.Sorted(maps.Keys(c.gpus)) {
		g := c.gpus[uuid]
		if !g.here {
			continue
		}
		meters = append(meters, db.Meter{UUID: g.gpu.UUID, Index: g.gpu.Index, Model: g.gpu.Model, TotalMiB: g.gpu.TotalMiB,
			Node:     a.Node,
			CounterJ: figure.Measured(g.last), At: time.Now().Add(g.at - lease.Now()),
			FloorWatts: figure.Measured(g.floor.Watts)})
	}
	err := a.Records.AddSamples(ctx, c.pending, meters)
	if err != nil {
		if !c.failing {
			a.Log.Error("write samples; kept until the database accepts them", "error", err)
		}
		c.failing = true
		c.pending = c.pending[max(len(c.pending)-maxPending, 0):]
		return
	}
	c.failing, c.pending = false, c.pending[:0]
}

// close writes the samples that are left.
func (c *accounts) close(a *Agent) {
	if a.Records == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, g := range c.gpus {
		g.turn(g.bucket.At.Add(1), a.sampleLength(), &c.pending)
	}
	c.write(ctx, a)
}
