// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"cmp"
	"os"
	"strings"

	"carma/slurmbridge/config"
)

// For returns the client described in carma.toml. conf is the SLURM_CONF of the
// environment, where carma.toml names none.
func For(c config.Slurm, conf string) Client {
	return Client{BinDir: c.BinDir, Conf: cmp.Or(c.Conf, conf)}
}

// NodeName is Slurm's name of the node: what the user says, what slurmd says, or
// the host name, as slurmd -C takes it.
func NodeName(said string) string {
	return cmp.Or(said, os.Getenv("SLURMD_NODENAME"), ShortHost())
}

// ShortHost is the host name up to the first dot.
func ShortHost() string {
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	short, _, _ := strings.Cut(host, ".")
	return short
}
