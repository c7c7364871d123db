// SPDX-License-Identifier: Apache-2.0

// Package status says how the GPUs of a node stand: for people, for programs,
// for Prometheus. It is what the next choice would see.
package status

import (
	"cmp"
	"math"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/usertext"
	"carma/slurmbridge/version"
)

// Node is a node and its GPUs (JSON: carma.status/1, docs/json.md).
type Node struct {
	Schema      string  `json:"schema"`
	Version     string  `json:"version"`
	Name        string  `json:"node"`
	Mode        string  `json:"mode"` // of the agent: config.ModeShare, ...
	WindowS     float64 `json:"window_s"`
	Statistic   string  `json:"statistic"`
	SMActMaxPct float64 `json:"smact_max_pct"` // above this a GPU takes no more
	GPUs        []GPU   `json:"gpus"`
}

// MPS is the state of a GPU's MPS daemon.
type MPS string

// The states.
const (
	MPSOff   MPS = "off"   // not used
	MPSDown  MPS = "down"  // does not run
	MPSUp    MPS = "up"    // runs
	MPSFault MPS = "fault" // a client has faulted; nobody may use it
)

// GPU is a GPU, or a MIG instance.
type GPU struct {
	gres.GPU
	SMActPct   figure.Measured `json:"smact_pct"` // statistic over the window
	Source     figure.Source   `json:"smact_source"`
	AgeS       float64         `json:"age_s"` // of the reading
	UsedMiB    int64           `json:"used_mib"`
	LeasedMiB  int64           `json:"leased_mib"`
	OpenMiB    int64           `json:"open_mib"`         // free for a next job
	Closed     string          `json:"closed,omitempty"` // why the GPU takes no job
	Quarantine gres.Cause      `json:"quarantine,omitempty"`
	MPS        MPS             `json:"mps"`
	MPSClients int             `json:"mps_clients"`
	Leases     []Lease         `json:"leases"`
	fault      string          // why the GPU is closed in any mode; empty: it has none
}

// Lease is a job that holds a GPU.
type Lease struct {
	JobID      uint32  `json:"job_id"`
	UID        uint32  `json:"uid"`
	User       string  `json:"user"`
	ReserveMiB int64   `json:"reserve_mib"`
	Exclusive  bool    `json:"exclusive"`
	MPS        bool    `json:"mps"`
	AgeS       float64 `json:"age_s"`
	IdleS      float64 `json:"idle_s"` // the job has not used the GPU for so long
	Idle       bool    `json:"idle"`   // for longer than idle.after
	// times as long as alone, by the law of interference; 1: alone
	ExpectedSlowdown float64 `json:"expected_slowdown"`
	Slowed           float64 `json:"slowed"` // the same measured, where that has long been beyond its bound; 0: it has not
}

// Of looks at the ledger as a choice under the thresholds would. A job is idle
// after idleAfter. Names and states of daemons come from the two functions.
func Of(node string, s lease.Snapshot, t choose.Thresholds, idleAfter time.Duration, user func(uid uint32) string,
	daemon func(uuid string) MPS) Node {
	n := Node{Schema: "carma.status/1", Version: version.String(), Name: node, SMActMaxPct: t.SMActMaxPct, GPUs: []GPU{}}
	for _, r := range s.Readings {
		open, closed := choose.Placeable(r, s.Leases, t)
		g := GPU{GPU: r.GPU, SMActPct: figure.Measured(r.SMActPct), Source: r.Source, AgeS: r.Age.Seconds(),
			UsedMiB: r.UsedMiB,
			OpenMiB: open, Closed: usertext.Clean(closed.String()), Quarantine: r.Cause, MPS: daemon(r.UUID),
			MPSClients: r.MPSClients, Leases: []Lease{}, fault: usertext.Clean(cmp.Or(r.Unreadable, r.Quarantined))}
		if r.Unreadable != "" {
			g.SMActPct = figure.Unknown
		}
		if g.Quarantine == gres.CauseMPS {
			g.MPS = MPSFault
		}
		for _, x := range choose.Slowdowns(nil, &r, s.Leases) {
			l := x.Lease
			g.LeasedMiB += l.ReserveMiB
			g.Leases = append(g.Leases, Lease{l.Job.JobID, l.UID, usertext.Clean(user(l.UID)), l.ReserveMiB, l.Exclusive,
				l.Daemon != "", l.Age.Seconds(), l.Idle.Seconds(), idleAfter > 0 && l.Idle >= idleAfter,
				math.Round(100*x.Times) / 100, l.Slowed})
		}
		n.GPUs = append(n.GPUs, g)
	}
	return n
}
