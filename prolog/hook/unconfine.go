// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"

	"carma/gres/confine"
	"carma/slurmbridge/config"
)

// UnconfineCommand is the command of carma-node that removes the confinement of jobs,
// when CARMA is removed; packages start it.
const UnconfineCommand = "unconfine"

// Unconfine leaves nothing of CARMA in the cgroups and on the device nodes of a node.
func Unconfine(c config.Config, node string) error {
	return confine.Undo("none", nil, confine.ForNode(c.ForNode(node), node, os.Getenv("SLURM_CONF")))
}
