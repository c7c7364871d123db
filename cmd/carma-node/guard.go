// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"

	"carma/gres/confine"
	"carma/prolog"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// guard is what keeps tasks from GPUs that are not their job's; nil: nothing does. The
// error says why it cannot be had where carma.toml wants one.
func guard(c config.Config, node, slurmConf string) (confine.Guard, error) {
	h := confine.ForNode(c, node, slurmConf)
	if c.Placement.BySlurm() {
		return nil, confine.Undo("none", nil, h)
	}
	if !h.HasGPUs() {
		return nil, nil
	}
	h.Users = func() (map[int][]uint32, error) { return usersOf(c, node) }
	g, err := confine.Find(c.Devices.Confine, h)
	if c.Devices.Confine == "auto" && confine.Unavailable(err) {
		g, err = nil, nil // the agent and the doctor say so
	}
	if err != nil {
		return nil, err
	}
	return g, confine.Undo(c.Devices.Confine, g, h)
}

// unconfineCommand takes away what confines jobs, when CARMA is removed; packages start it.
const unconfineCommand = "unconfine"

func runUnconfine(_ context.Context, e env, _ []string) error {
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return err
	}
	node := nodeName(e)
	return confine.Undo("none", nil, confine.ForNode(c.ForNode(node), node, os.Getenv("SLURM_CONF")))
}

// usersOf tells who holds a lease on the GPU of each minor.
func usersOf(c config.Config, node string) (map[int][]uint32, error) {
	book, err := prolog.OpenBook(c, node)
	if err != nil {
		return nil, err
	}
	defer book.Close()
	s, err := book.Snapshot(context.Background())
	if err != nil {
		return nil, err
	}
	return confine.Users(s.Readings, s.Leases), nil
}

// withoutGPUs is what the hooks do for a job that has no GPUs. An Epilog's is done by
// prolog.Node.Left.
func withoutGPUs(ctx context.Context, name string, n *prolog.Node, h jobenv.Hook, slurm sctl.Client) error {
	switch name {
	case "prolog":
		return n.Prolog(ctx, h, nil, slurm)
	case settleCommand:
		return n.Settle(ctx, h, nil, slurm)
	}
	return nil
}
