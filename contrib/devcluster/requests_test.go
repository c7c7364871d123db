// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// managed tells carma.toml of a partition with the GPUs of gpu.
func (c *cluster) managed(name string, share bool) {
	c.t.Helper()
	c.settings(map[string]string{
		"partition." + name + ".share": fmt.Sprint(share), "partition." + name + ".gpus_per_node": "4",
		"partition." + name + ".gpu_mem_mib": "40536",
	})
}

// What a Prolog keeps free for some estimates beyond others is asked of slurmctld: the job
// waits in the queue, and comes when there is room.
func TestMarginOfAMethod(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"placement.margin.user": "12288", "placement.settle": `"0s"`})
	c.restart("slurmctld")
	var ids []string
	for range 4 {
		id := c.sbatch(alice, "--gres=gpu:1", "#CARMA mem=20G\nuntil [ -e go ]; do sleep 0.1; done\n")
		c.eventually(func() string { return fmt.Sprint(c.index(id) >= 0) }, "true")
		ids = append(ids, id)
	}
	if busy := map[int]bool{}; true {
		for _, id := range ids {
			busy[c.index(id)] = true
		}
		if len(busy) != 4 {
			t.Fatalf("the four are on GPUs %v", busy)
		}
	}
	// 19.6 GiB are free of each, 17.6 published, 22 needed with the margin of 12.
	id := c.sbatch(alice, "--gres=gpu:1", "#CARMA mem=10G\ntrue\n")
	time.Sleep(8 * time.Second)
	if got := c.job(id, "%T"); got != "PENDING" || c.hookLog(id) != "" {
		t.Errorf("%s\n%s", got, c.hookLog(id))
	}
	c.sh(alice, "touch go")
	c.ends(id, "COMPLETED")
	if got := c.sh("", "squeue -h -t all -j "+id+" -O RestartCnt"); got != "0" {
		t.Errorf("returned to the queue %s times", got)
	}
}
