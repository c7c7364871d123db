// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// slurmConf adds lines to slurm.conf, and has slurmctld take them.
func (c *cluster) slurmConf(lines ...string) {
	c.t.Helper()
	path := filepath.Join(c.dir, "etc", "slurm.conf")
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(string(text)+strings.Join(lines, "\n")+"\n"), 0o644)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.restart("slurmctld")
	c.eventually(func() string { return c.sh("", "sinfo -h -N -p plain -t idle,mix,alloc -o %N || true") }, "n1")
}

// known waits until libcarma books for jobs of a partition: libcarma looks every 2 s whether carma.toml is another.
func (c *cluster) known(partition string) {
	c.t.Helper()
	c.eventually(func() string {
		id := c.sbatch(alice, "-H -p "+partition, "#SBATCH --gres=gpu:1\n#CARMA mem=1G\ntrue\n")
		defer c.sh("", "scancel "+id)
		return c.adminComment(id)
	}, `"mode"`)
}

// managed tells carma.toml of a partition with the GPUs of gpu.
func (c *cluster) managed(name string, share bool) {
	c.t.Helper()
	c.settings(map[string]string{
		"partition." + name + ".share": fmt.Sprint(share), "partition." + name + ".gpus_per_node": "4",
		"partition." + name + ".gpu_mem_mib": "40536",
	})
}
