// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// A directory of hooks has numbers before their names. A Prolog that does not know its name fails, and the node drains.
func TestCommandOf(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/sbin/carma-prolog":               "prolog",
		"carma-task-prolog":                    "task-prolog",
		"/etc/slurm/prolog.d/90-carma-prolog":  "prolog",
		"/etc/slurm/epilog.d/00_carma-epilog":  "epilog",
		"/etc/slurm/prolog.d/carma-prolog.sh":  "prolog",
		"/usr/sbin/carma-node":                 "",
		"/opt/carma-status/bin/carma-node":     "",
		"/etc/slurm/prolog.d/90-carma-unknown": "",
		"carma-node-0.1":                       "",
	} {
		if got := commandOf(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
