// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"

	"carma/gres/confine"
	"carma/slurmbridge/config"
)

// FindGuard returns the guard that keeps tasks from other jobs' GPUs; nil: none. The error says
// why the guard cannot be had where carma.toml wants one.
func FindGuard(c config.Config, node, slurmConf string) (confine.Guard, error) {
	h := confine.ForNode(c, node, slurmConf)
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

// usersOf tells who holds a lease on the GPU of each minor.
func usersOf(c config.Config, node string) (map[int][]uint32, error) {
	book, err := OpenBook(c, node)
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
