// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
)

// limited is what a limit stands on.
type limited struct {
	confine.Group
	uuid string
}

// limitMemory has the driver hold each job to the memory that it booked. That comes a moment
// after the job's start; what the job has allocated by then counts. A limit goes with the job's
// cgroup, or here when the job has no lease any more and its cgroup stays.
func (a *Agent) limitMemory(_ context.Context, s lease.Snapshot) {
	now := lease.Now()
	if !a.probed {
		a.probeLimits(s, now)
	}
	if a.limitsFrom == 0 {
		return
	}
	want, err := a.wantedLimits(s, now)
	// First: another cgroup of the same name may be wanted.
	for on := range a.limits {
		if _, wanted := want[on]; !wanted {
			a.Limits.Set(on.Dir, on.uuid, 0) // fails where it has gone with its cgroup
			delete(a.limits, on)
		}
	}
	for on, mib := range want {
		if a.limits[on] == mib {
			continue
		}
		failed := a.Limits.Set(on.Dir, on.uuid, mib)
		if failed == nil {
			a.limits[on] = mib
		} else if _, gone := os.Stat(on.Dir); gone == nil {
			err = failed
		}
	}
	if says := fmt.Sprint(err); says != a.limitFails {
		a.limitFails = says
		if err != nil {
			a.Log.Warn("the driver does not hold jobs to their GPU memory", "error", err)
		}
	}
}

// probeLimits finds out whether the driver takes limits here, by setting none on the cgroup
// above all jobs. Programs see a limit as the size of their GPU, so Prologs must know of
// it; jobs that started before that have none.
func (a *Agent) probeLimits(s lease.Snapshot, now time.Duration) {
	scope, err := a.Cgroups.Scope()
	if err == nil && scope == "" {
		return // slurmd makes it
	}
	i := slices.IndexFunc(s.Readings, func(r gres.Reading) bool { return !r.MIG })
	if i < 0 {
		return
	}
	a.probed = true
	if err == nil {
		err = a.Limits.Set(scope, s.Readings[i].UUID, 0)
	}
	if err == nil {
		err = confine.SetLimited(a.RunDir, now)
	}
	if err != nil {
		err = errors.Join(err, confine.SetUnlimited(a.RunDir, err))
		a.Log.Info("the driver does not hold jobs to their GPU memory", "error", err)
		return
	}
	a.limitsFrom, _ = confine.LimitedSince(a.RunDir)
	a.Log.Info("the driver holds jobs to the GPU memory that they booked")
}

// wantedLimits are those of the jobs that share a GPU. One that has all of it needs none, and
// MIG instances take none.
func (a *Agent) wantedLimits(s lease.Snapshot, now time.Duration) (map[limited]int64, error) {
	takes := map[string]bool{}
	want := map[limited]int64{}
	for _, r := range s.Readings {
		takes[r.UUID] = !r.MIG
	}
	for _, l := range s.Leases {
		if l.Exclusive || l.ReserveMiB <= 0 || !takes[l.UUID] || now-l.Age < a.limitsFrom {
			continue
		}
		groups, err := a.Cgroups.Groups(l.Job.JobID)
		if err != nil {
			return a.limits, err // what stands is left as it is
		}
		for _, g := range groups {
			want[limited{g, l.UUID}] = l.ReserveMiB
		}
	}
	return want, nil
}
