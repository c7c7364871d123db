// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSetsDevicesLast(t *testing.T) {
	t.Parallel()
	const sets = "echo \"export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\"\n"
	for name, c := range map[string]struct {
		text string
		line int
	}{
		"carma's last":     {"#!/bin/sh\n" + sets + "exec /usr/sbin/carma-task-prolog\n", 0},
		"the site's last":  {"#!/bin/sh\n/usr/sbin/carma-task-prolog\necho export A=1\n" + sets, 4},
		"carma's alone":    {"#!/bin/sh\nexec carma-node task-prolog # carma-task-prolog\n", 0},
		"without CARMA's":  {"#!/bin/sh\n" + sets, 0},
		"keeps CARMA's":    {"#!/bin/sh\ncarma-task-prolog\necho export CUDA_VISIBLE_DEVICES=$CARMA_GPU_UUIDS\n", 0},
		"on the same line": {"#!/bin/sh\ncarma-task-prolog; " + sets, 2},
		"carma-node":       {"\x7fELF carma-task-prolog " + sets, 0},
	} {
		path := filepath.Join(t.TempDir(), "task_prolog")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := setsDevicesLast(path); got != c.line {
			t.Errorf("%s: line %d, want %d", name, got, c.line)
		}
	}
	if got := setsDevicesLast(""); got != 0 {
		t.Errorf("no TaskProlog: line %d", got)
	}
}
