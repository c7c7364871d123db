// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
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

// unwritten are samples on the way to the database: looks add samples, and a separate loop writes, for a slow disk
// would make the readings old and close the GPUs. A database that takes no samples costs the oldest, never a tick.
// Only the first look reads the database itself (begin).
type unwritten struct {
	lock sync.Mutex
	batch

	// keepSamples:
	tidied  time.Time
	failing bool
	tried   time.Time
}

type batch struct {
	samples []db.Sample
	meters  []db.Meter // as of the last sample
	lost    int        // samples for which there was no place
}

func (u *unwritten) put(samples []db.Sample, meters []db.Meter) {
	u.lock.Lock()
	defer u.lock.Unlock()
	u.samples = append(u.samples, samples...)
	if len(meters) > 0 {
		u.meters = meters
	}
	u.bound()
}

func (u *unwritten) take() batch {
	u.lock.Lock()
	defer u.lock.Unlock()
	b := u.batch
	u.batch = batch{}
	return b
}

// putBack keeps a batch that the database did not take.
func (u *unwritten) putBack(b batch) {
	u.lock.Lock()
	defer u.lock.Unlock()
	u.samples, u.lost = append(b.samples, u.samples...), u.lost+b.lost
	if len(u.meters) == 0 {
		u.meters = b.meters
	}
	u.bound()
}

func (u *unwritten) bound() {
	over := max(len(u.samples)-maxPending, 0)
	u.samples, u.lost = u.samples[over:], u.lost+over
}

// flushSamples has the samples written whose time is over.
func (a *Agent) flushSamples() {
	if a.Records == nil {
		return
	}
	at, c := time.Now().Truncate(a.sampleLength()), &a.accounts
	var turned []db.Sample
	for _, uuid := range slices.Sorted(maps.Keys(c.gpus)) {
		c.gpus[uuid].turn(at, a.sampleLength(), &turned)
	}
	if len(turned) > 0 {
		a.unwritten.put(turned, c.meters(a.Node))
	}
}

// tidyEvery is how often old samples are put together and too old samples go.
const tidyEvery = time.Hour

// keepSamples writes the samples of the looks, and tidies.
func (a *Agent) keepSamples(ctx context.Context, _ lease.Snapshot) {
	if u := &a.unwritten; !u.failing || time.Since(u.tried) >= a.sampleLength() { // each try writes all samples
		u.tried = time.Now()
		a.writeSamples(ctx)
	}
	if now := time.Now(); now.Sub(a.unwritten.tidied) > tidyEvery {
		a.unwritten.tidied = now
		if err := a.Records.Tidy(ctx); err != nil && ctx.Err() == nil {
			a.Log.Warn("tidy the accounting database; retried in an hour", "error", err)
		}
	}
}

func (a *Agent) writeSamples(ctx context.Context) {
	u := &a.unwritten
	b := u.take()
	if len(b.meters) == 0 && len(b.samples) == 0 {
		return
	}
	if err := a.Records.AddSamples(ctx, b.samples, b.meters); err != nil {
		u.putBack(b)
		if !u.failing && !errors.Is(ctx.Err(), context.Canceled) { // then closeSamples is next
			u.failing = true
			a.Log.Error("write samples; kept until the database accepts them", "error", err)
		}
		return
	}
	u.failing = false
	if b.lost > 0 {
		a.Log.Error("samples are lost: the database accepted none for too long", "samples", b.lost)
	}
}

// turn begins a new bucket if its time has come.
func (g *account) turn(at time.Time, length time.Duration, to *[]db.Sample) {
	switch {
	case !g.here || g.bucket.At.Equal(at):
		return
	case g.bucket.At.IsZero(): // looks before the first bucket count in the first
		g.bucket.At = at
		return
	}
	b := g.bucket
	b.Length, b.Memory = length, g.jobSamples(b.At, length)
	b.SMActPct, b.SMActMax = figure.Unknown, figure.Unknown
	if b.SMActS > 0 {
		b.SMActPct, b.SMActMax = figure.Measured(g.smactS/b.SMActS), g.bucket.SMActMax
	}
	g.bucket, g.smactS = db.Sample{UUID: b.UUID, At: at}, 0
	*to = append(*to, b)
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

func (c *accounts) meters(node string) []db.Meter {
	var meters []db.Meter
	for _, uuid := range slices.Sorted(maps.Keys(c.gpus)) {
		g := c.gpus[uuid]
		if !g.here {
			continue
		}
		meters = append(meters, db.Meter{UUID: g.gpu.UUID, Index: g.gpu.Index, Model: g.gpu.Model, TotalMiB: g.gpu.TotalMiB,
			Node:     node,
			CounterJ: figure.Measured(g.last), At: time.Now().Add(g.at - lease.Now()),
			FloorWatts: figure.Measured(g.floor.Watts)})
	}
	return meters
}

// closeSamples writes the last samples, when no loop runs any more.
func (a *Agent) closeSamples() {
	if a.Records == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var turned []db.Sample
	for _, g := range a.accounts.gpus {
		g.turn(g.bucket.At.Add(1), a.sampleLength(), &turned)
	}
	a.unwritten.put(turned, a.accounts.meters(a.Node))
	a.writeSamples(ctx)
}
