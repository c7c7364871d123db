// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"carma/db/file"
)

// earlyPath is a file with the ids of the jobs running when the node first had a guard. The
// file goes when carma.toml wants no guard, and with the machine.
func earlyPath(runDir string) string { return filepath.Join(runDir, "early-jobs.json") }

// Early divides the unconfined jobs into jobs from before the node's guard and jobs that came
// later. The first call keeps all as early.
func Early(runDir string, unconfined []Job) (first bool, late []Job, err error) {
	path := earlyPath(runDir)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		ids := []uint32{}
		for _, j := range unconfined {
			ids = append(ids, j.ID)
		}
		if text, err = json.Marshal(ids); err == nil {
			err = file.Replace(path, text, 0o600)
		}
		if err != nil {
			return false, nil, fmt.Errorf("note the jobs that are not confined: %w", err)
		}
		return true, nil, nil
	}
	var ids []uint32
	if err == nil {
		err = json.Unmarshal(text, &ids)
	}
	if err != nil {
		return false, nil, fmt.Errorf("read which jobs were there before they could be confined, in %s: %w; remove it "+
			"and those that run now are kept as such", path, err)
	}
	for _, j := range unconfined {
		if !slices.Contains(ids, j.ID) {
			late = append(late, j)
		}
	}
	return false, late, nil
}
