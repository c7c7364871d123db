// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"carma/gres"
	"carma/gres/lease"
)

// broken are the Xids after which NVIDIA asks for a reset of the GPU or of the node, or for
// service (docs.nvidia.com/deploy/xid-errors, .../health-validation/reference/checks/xid).
// A program of a user causes none of them; the Xids of users' programs (13, 31, 43, 45, 68,
// 94, 109 and others) close no GPU, or a user could take GPUs from everybody.
var broken = map[uint64]string{
	46:  "GPU stopped processing",
	48:  "double bit ECC error",
	62:  "internal micro-controller halt",
	64:  "a row could not be remapped",
	74:  "NVLink error",
	79:  "GPU has fallen off the bus",
	95:  "uncontained memory error",
	119: "GSP does not answer",
	120: "GSP error",
	140: "unrecovered ECC error",
	143: "GPU initialization failed",
}

// sayXidEvery is how often one Xid of one GPU gets a line: users can cause many.
const sayXidEvery = time.Minute

// health is what was last said of a GPU.
type health struct {
	told    bool // the ledger knows whether NVML tells a fault
	fault   string
	pending bool
	xids    map[uint64]time.Duration
	again   []uint64 // not in the ledger yet
}

// watchHealth quarantines GPUs that are broken according to the driver, and ends
// the quarantine when the driver no longer says so.
func (a *Agent) watchHealth(ctx context.Context, samples []gres.Sample) {
	for _, s := range samples {
		st := a.gpus[s.UUID]
		if st == nil {
			continue
		}
		xids := slices.Sorted(slices.Values(append(st.health.again, s.Xids...)))
		st.health.again = nil
		for _, xid := range slices.Compact(xids) {
			a.onXid(ctx, &st.health, s, xid)
		}
		if s.Unreadable == "" {
			a.onState(ctx, &st.health, s)
		}
	}
}

// keepXids keeps the errors of a failed look for the next: the driver tells each of them once.
func (a *Agent) keepXids(samples []gres.Sample) {
	for _, s := range samples {
		h := &a.stateOf(s.UUID).health
		for _, xid := range s.Xids {
			if !slices.Contains(h.again, xid) {
				h.again = append(h.again, xid)
			}
		}
	}
}

// onXid quarantines the GPU each time: the GPU may have been readmitted since the last
// Xid.
func (a *Agent) onXid(ctx context.Context, h *health, s gres.Sample, xid uint64) {
	now := lease.Now()
	at, said := h.xids[xid]
	said = said && now-at < sayXidEvery
	words, bad := broken[xid]
	switch {
	case bad:
		if !a.quarantine(ctx, s, gres.CauseXid, fmt.Sprintf("Xid %d: %s", xid, words), !said) {
			h.again = append(h.again, xid)
			return
		}
	case !said:
		a.Log.Warn("the driver reports an error of a program on a GPU", "gpu", s.UUID, "xid", xid)
	}
	if said {
		return
	}
	if h.xids == nil {
		h.xids = map[uint64]time.Duration{}
	}
	h.xids[xid] = now
}

func (a *Agent) onState(ctx context.Context, h *health, s gres.Sample) {
	if s.RowsPending != h.pending {
		h.pending = s.RowsPending
		if h.pending {
			a.Log.Warn("rows of a GPU's memory wait to be remapped; reset the GPU when it is idle", "gpu", s.UUID)
		}
	}
	if h.told && s.Fault == h.fault {
		return
	}
	if s.Fault != "" {
		h.told = a.quarantine(ctx, s, gres.CauseDevice, s.Fault, true)
		h.fault = s.Fault
		return
	}
	ended, err := a.Ledger.EndFault(ctx, s.UUID, gres.CauseDevice)
	if err != nil {
		a.Log.Error("end the quarantine of a GPU", "error", err)
		return
	}
	if ended {
		a.Log.Info("quarantine of a GPU ended", "gpu", s.UUID, "before", h.fault)
	}
	h.told, h.fault = true, ""
}

// quarantine says so if say is set, and where the GPU was open until now.
func (a *Agent) quarantine(ctx context.Context, s gres.Sample, cause gres.Cause, reason string, say bool) (ok bool) {
	holders, fresh, err := a.Ledger.SetFault(ctx, s.UUID, cause, reason, 0)
	if err != nil {
		a.Log.Error("quarantine", "error", err)
		return false
	}
	if !say && !fresh {
		return true
	}
	a.Log.Error("GPU is broken; quarantined", "gpu", s.UUID, "index", s.Index, "reason", reason, "jobs", holders)
	return true
}
