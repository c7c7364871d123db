// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"slices"
	"strings"
)

// away lists the flags of a node's state which mean that no agent can be counted on: the node
// is off or reboots, nobody answers there, or somebody works on it; 22.05 to 26.05
// (src/common/slurm_protocol_defs.c, node_state_flags).
var away = []string{"NOT_RESPONDING", "EXTERNAL", "INVALID_REG", "DRAIN", "FAIL", "MAINTENANCE", "REBOOT_REQUESTED",
	"REBOOT_ISSUED", "POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"}

// nodeState reads a node's state as sinfo's StateComplete shows it, "mixed+cloud+planned":
// whether slurmd, and with it the agent, can be counted on, and whether the node takes jobs as
// well, now or when others have ended there. An unknown flag changes nothing.
func nodeState(text string) (lives, takes bool) {
	words := strings.Split(strings.ToUpper(strings.TrimSpace(text)), "+")
	base, flags := words[0], words[1:]
	lives = (base == "IDLE" || base == "MIXED" || base == "ALLOCATED") &&
		!slices.ContainsFunc(flags, func(f string) bool { return slices.Contains(away, f) })
	return lives, lives && !slices.Contains(flags, "RESERVED") && !slices.Contains(flags, "BLOCKED")
}
