// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// confine has the job's tasks open the GPUs of these minors and no other.
func (n *Node) confine(h jobenv.Hook, minors []int) error {
	if n.GuardErr != nil {
		return fmt.Errorf("confine the job as devices.confine says: %w", n.GuardErr)
	}
	if n.Guard == nil {
		return nil
	}
	return n.Guard.Open(confined(h), minors)
}

func confined(h jobenv.Hook) confine.Job { return confine.Job{ID: h.JobID, UID: h.UID, SLUID: h.SLUID} }

// Ready notes that the hook of a Prolog has come to its end.
func (n *Node) Ready(h jobenv.Hook) {
	if n.Guard == nil {
		return
	}
	if err := n.Guard.Ready(confined(h)); err != nil {
		n.Log.Warn("record that the Prolog has ended; its cgroup stays until the job ends", "job", h.JobKey, "error", err)
	}
}

// Shut ends what a job may open, before its GPUs are released. Access lists follow the leases.
func (n *Node) Shut(h jobenv.Hook) {
	if n.Guard != nil && n.Guard.Exact() {
		n.unconfine(h)
	}
}

// unconfine ends the confinement of a job ended here.
func (n *Node) unconfine(h jobenv.Hook) {
	if n.Guard == nil {
		return
	}
	if err := n.Guard.Close(confined(h)); err != nil {
		n.Log.Warn("remove the job's confinement; the agent will retry", "job", h.JobKey, "error", err)
	}
}

// Left cleans up in Epilogs of jobs without GPUs.
func (n *Node) Left(h jobenv.Hook) {
	if n.Guard != nil && !n.Guard.Exact() {
		n.unconfine(h)
	}
	n.forgetUndecided(h)
}

// shutOut closes all GPUs to a job that has none. Where this fails, the job returns to
// the queue, or its tasks wait.
func (n *Node) shutOut(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
	for {
		err := n.confine(h, nil)
		if err == nil {
			return nil
		}
		n.Log.Error("confine a job without GPUs; retrying", "job", h.JobKey, "error", err)
		if time.Until(n.Until) < n.Config.Hooks.Wait.D() {
			returned := n.returnJob(ctx, h, slurm)
			if returned == nil {
				return nil
			}
			if err := n.markUndecided(h, false); err == nil {
				if errors.Is(returned, sctl.ErrBatchOnly) {
					notify(ctx, n, h, slurm, waitsForNode(h, "close its GPUs to it"))
				}
				return ErrUndecided
			}
		}
		time.Sleep(settlePause)
	}
}

// shutOutLate goes on where shutOut could not.
func (n *Node) shutOutLate(ctx context.Context, h jobenv.Hook, slurm Slurm) error {
	defer n.heartbeat(h)()
	for {
		err := n.confine(h, nil)
		if err == nil {
			return os.Remove(taskPath(n.RunDir, h.JobID))
		}
		if err := n.returnJob(ctx, h, slurm); err == nil {
			return nil
		} else if !errors.Is(err, sctl.ErrBatchOnly) {
			n.Log.Warn("not returned; retrying", "job", h.JobKey, "error", err)
		} else if n.gone(ctx, h, slurm) {
			return nil
		}
		if !n.undecided(h) { // the Epilog has run, or CARMA was removed from the node
			n.Log.Info("the job no longer waits", "job", h.JobKey)
			return nil
		}
		time.Sleep(settlePause)
	}
}

// granted returns the GPUs of a lease, in the order of its slots. Where jobs are not confined, a GPU not found
// in the readings is left out.
func (l *launch) granted(ctx context.Context, granted []lease.Granted) ([]gres.GPU, error) {
	s, err := l.ledger.Snapshot(ctx)
	if l.node.Guard != nil && err != nil {
		return nil, err
	}
	var gpus []gres.GPU
	for _, g := range granted {
		at := slices.IndexFunc(s.Readings, func(r gres.Reading) bool { return r.UUID == g.UUID })
		if l.node.Guard == nil && at < 0 {
			continue
		}
		if l.node.Guard != nil && (at < 0 || s.Readings[at].Minor < 0) {
			return nil, fmt.Errorf("find the device node of GPU %s: NVML reports no minor number for it", g.UUID)
		}
		gpus = append(gpus, s.Readings[at].GPU)
	}
	return gpus, nil
}

func minors(gpus []gres.GPU) []int {
	var minors []int
	for _, g := range gpus {
		minors = append(minors, g.Minor)
	}
	return minors
}

// ordinals are the numbers that CUDA gives the GPUs of a job that can open no other: as the
// MPS daemon counts them, or by PCI address as NVML does. A MIG instance has no number. Unless
// the site insists, there are none either where they could mean other GPUs: CUDA counts models
// by speed, and a daemon may serve GPUs of other jobs.
func (l *launch) ordinals(gpus []gres.GPU, granted []lease.Granted) []int {
	names := l.node.Config.Devices.Names
	if l.node.Guard == nil || !l.node.Guard.Exact() || names == "uuid" {
		return nil
	}
	order := make([]string, 0, len(gpus))
	for _, g := range slices.SortedFunc(slices.Values(gpus), func(a, b gres.GPU) int { return a.Index - b.Index }) {
		if g.MIG || names == "auto" && g.Model != gpus[0].Model {
			return nil
		}
		order = append(order, g.UUID)
	}
	if l.node.Config.MPS.Enabled && len(granted) > 0 && granted[0].Daemon != "" {
		order = granted[0].Daemon.UUIDs()
	}
	if names == "auto" && len(order) != len(granted) {
		return nil
	}
	var ordinals []int
	for _, g := range granted {
		ordinals = append(ordinals, slices.Index(order, g.UUID))
	}
	return ordinals
}

// names is how CUDA_VISIBLE_DEVICES names some of the job's GPUs. Ordinals count all of them, and a container may
// hold the step's alone.
func (t taskFile) names(uuids []string) string {
	if len(t.Ordinals) != len(t.UUIDs) || t.Together && len(uuids) != len(t.UUIDs) {
		return strings.Join(uuids, ",")
	}
	var names []string
	for _, uuid := range uuids {
		names = append(names, strconv.Itoa(t.Ordinals[slices.Index(t.UUIDs, uuid)]))
	}
	return strings.Join(names, ",")
}

// without tells a task that it has no GPU, where Slurm says nothing: a program of CUDA
// would then take the first GPU open to the program, and enroot's hook would bring in
// all, as most images ask for all. A component of a heterogeneous job finds the
// leader's variables.
func without(w io.Writer, component bool, get jobenv.Getenv) error {
	if !component && get("CUDA_VISIBLE_DEVICES") != "" {
		return nil
	}
	_, err := io.WriteString(w, "export CUDA_VISIBLE_DEVICES=\nexport NVIDIA_VISIBLE_DEVICES=void\n")
	return err
}
