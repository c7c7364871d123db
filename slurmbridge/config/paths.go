// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
)

// RunDir is the run directory of one node.
func (c Config) RunDir(node string) string { return forNode(c.Paths.RunDir, node) }

// DBPath is the accounting database of one node.
func (c Config) DBPath(node string) string { return forNode(c.Paths.DB, node) }

// LogPath is the log of one node's hooks.
func (c Config) LogPath(node string) string { return forNode(c.Paths.Log, node) }

// DevicesDir is where the device nodes of one node's GPUs are.
func (c Config) DevicesDir(node string) string { return forNode(c.Devices.Dir, node) }

// MPSLogDir is where the MPS daemons of one node write, beside the hooks' log.
func (c Config) MPSLogDir(node string) string {
	return strings.TrimSuffix(c.LogPath(node), ".log") + "-mps"
}

func forNode(path, node string) string { return strings.ReplaceAll(path, "%n", node) }
