// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"carma/gres"
	"carma/gres/resident"
)

// once looks a process up once: the reading of a GPU and its accounts ask for the
// same.
type once struct {
	Owners
	found map[int]resident.Owner
}

func (o once) Owner(pid int) resident.Owner {
	owner, ok := o.found[pid]
	if !ok {
		owner = o.Owners.Owner(pid)
		o.found[pid] = owner
	}
	return owner
}

// Reading turns one sample into a reading, which choices are based on. SM activity is
// the sample's; the agent replaces the figure by the mean over its window.
func Reading(s gres.Sample, leases []gres.Lease, owners Owners) gres.Reading {
	r := gres.Reading{GPU: s.GPU, UsedMiB: s.UsedMiB, SMActPct: float64(s.SMActPct), Source: s.Source,
		Unreadable: s.Unreadable, CounterJ: s.EnergyJ}
	for _, p := range s.Processes {
		if p.MPS {
			r.MPSClients++
		}
		o := owners.Owner(p.PID)
		if !o.Gone && !o.MPSServer && ownerOf(o, leases, s.UUID) == 0 {
			r.Foreign++
		}
	}
	return r
}

// ownerOf returns the job of process o, if the job holds the GPU; else 0.
func ownerOf(o resident.Owner, leases []gres.Lease, uuid string) uint32 {
	for _, l := range leases {
		if l.UUID == uuid && o.Of(l.Job.JobID, l.UID) {
			return o.JobID
		}
	}
	return 0
}
