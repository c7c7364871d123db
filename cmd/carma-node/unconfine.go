// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"carma/gres/confine"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
)

// unconfineCommand takes away what confines jobs, when CARMA is removed; packages start it.
const unconfineCommand = "unconfine"

func runUnconfine(e env) error {
	c, err := config.Load(e.config, os.ReadFile)
	if err != nil {
		return err
	}
	node := sctl.NodeName(e.node)
	return confine.Undo("none", nil, confine.ForNode(c.ForNode(node), node, os.Getenv("SLURM_CONF")))
}
