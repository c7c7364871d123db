// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"os"
	"path/filepath"
)

// makeGroups makes a cgroup, and those above it that are missing. Users may look into the
// cgroup and the cgroups above it, so many in all, as into Slurm's own, whatever a hook's
// umask is: enroot mounts a task's cgroups as its user (conf/hooks/10-cgroups.sh).
func makeGroups(path string, levels int) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	for range levels {
		if err := os.Chmod(path, 0o755); err != nil {
			return err
		}
		path = filepath.Dir(path)
	}
	return nil
}
