// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// makeGroups makes a cgroup and those above it that are missing, as Slurm makes them: users may
// look into them, also where a hook's umask is stricter. enroot mounts a task's own cgroups, as
// its user (conf/hooks/10-cgroups.sh).
func makeGroups(path string) error {
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeGroups(filepath.Dir(path)); err != nil {
			return err
		}
		err = os.Mkdir(path, 0o755)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.Chmod(path, 0o755)
}
