// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestPresent(t *testing.T) {
	etc, mount := t.TempDir(), t.TempDir() // a folder is no cgroup v2
	conf := "CgroupMountpoint=" + mount + "\n"
	if err := os.WriteFile(filepath.Join(etc, "cgroup.conf"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"slurm_n1/uid_1000/job_7/step_0", "slurm_n1/uid_1000/job_x", "slurm_n1/uid_1001/job_8",
		"slurm_n1/uid_1001/carma_9", "slurm/uid_0/job_10", "slurm_n2/uid_1000/job_11", "job_12"} {
		if err := os.MkdirAll(filepath.Join(mount, "freezer", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p, err := Host{Node: "n1", SlurmConf: filepath.Join(etc, "slurm.conf")}.Present()
	if got := p.Jobs(); err != nil || !slices.Equal(got, []uint32{7, 8, 10}) {
		t.Errorf("v1: %v, %v", got, err)
	}
	scope := filepath.Join(mount, "system.slice")
	p = Present{scopePatterns(scope, "n1")}
	for _, dir := range []string{"n1_slurmstepd.scope/job_7/step_0", "n1_slurmstepd.scope/system",
		"n2_slurmstepd.scope/job_8", "slurmstepd.scope/job_9", "n1_slurmstepd.scope/sC55M83S2ZNW00"} {
		if err := os.MkdirAll(filepath.Join(scope, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.Jobs(); !slices.Equal(got, []uint32{7, 9}) {
		t.Errorf("v2: %v", got)
	}
}
