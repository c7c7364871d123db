// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
)

// limited is the cgroup and the GPU that a limit is set on.
type limited struct {
	confine.Group
	uuid string
}

// MemoryLimits has the driver hold jobs to their booked GPU memory.
type MemoryLimits struct {
	Driver  Limits
	Cgroups Cgroups // on which limits are set
	RunDir  string
	Log     *slog.Logger

	set    map[limited]int64
	probed bool          // whether the driver takes limits here
	from   time.Duration // limits hold for jobs that started then or later; 0: the driver takes no limits
	fails  string        // as last said
}

// keep has the driver hold each job to its booked memory. The limit comes a moment after the
// job's start; memory allocated by then counts. A limit goes with the job's cgroup, or here
// when the job has no lease any more and its cgroup stays.
func (m *MemoryLimits) keep(_ context.Context, s lease.Snapshot) {
	now := lease.Now()
	if !m.probed {
		m.probe(s, now)
	}
	if m.from == 0 {
		return
	}
	want, err := m.wanted(s, now)
	// First: another cgroup of the same name may be wanted.
	for on := range m.set {
		if _, wanted := want[on]; !wanted {
			m.Driver.Set(on.Dir, on.uuid, 0) // fails where the limit has gone with its cgroup
			delete(m.set, on)
		}
	}
	for on, mib := range want {
		if m.set[on] == mib {
			continue
		}
		failed := m.Driver.Set(on.Dir, on.uuid, mib)
		if failed == nil {
			if m.set == nil {
				m.set = map[limited]int64{}
			}
			m.set[on] = mib
		} else if _, gone := os.Stat(on.Dir); gone == nil {
			err = failed
		}
	}
	if says := fmt.Sprint(err); says != m.fails {
		m.fails = says
		if err != nil {
			m.Log.Warn("the driver does not hold jobs to their GPU memory", "error", err)
		}
	}
}

// probe finds out whether the driver takes limits here, by setting none on the cgroup
// above all jobs. Programs see a limit as the size of their GPU, so Prologs must know of
// limits; jobs that started before have none.
func (m *MemoryLimits) probe(s lease.Snapshot, now time.Duration) {
	scope, err := m.Cgroups.Scope()
	if err == nil && scope == "" {
		return // slurmd makes the cgroup
	}
	i := slices.IndexFunc(s.Readings, func(r gres.Reading) bool { return !r.MIG })
	if i < 0 {
		return
	}
	m.probed = true
	if err == nil {
		err = m.Driver.Set(scope, s.Readings[i].UUID, 0)
	}
	if err == nil {
		err = confine.SetLimited(m.RunDir, now)
	}
	if err != nil {
		err = errors.Join(err, confine.SetUnlimited(m.RunDir, err))
		m.Log.Info("the driver does not hold jobs to their GPU memory", "error", err)
		return
	}
	m.from, _ = confine.LimitedSince(m.RunDir)
	m.Log.Info("the driver holds jobs to the GPU memory that they booked")
}

// wanted are the limits of the jobs that share a GPU. A job with a whole GPU needs
// none, and MIG instances take none.
func (m *MemoryLimits) wanted(s lease.Snapshot, now time.Duration) (map[limited]int64, error) {
	takes := map[string]bool{}
	want := map[limited]int64{}
	for _, r := range s.Readings {
		takes[r.UUID] = !r.MIG
	}
	for _, l := range s.Leases {
		if l.Exclusive || l.ReserveMiB <= 0 || !takes[l.UUID] || now-l.Age < m.from {
			continue
		}
		groups, err := m.Cgroups.Groups(l.Job.JobID)
		if err != nil {
			return m.set, err // the limits that are set stay
		}
		for _, g := range groups {
			want[limited{g, l.UUID}] = l.ReserveMiB
		}
	}
	return want, nil
}
