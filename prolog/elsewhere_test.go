// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"carma/gres/confine"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// Slots, or a partition of carma.toml, make a node one of CARMA's; of a node that gres.conf or slurm.conf does not tell
// of, the hooks assume so.
func TestElsewhere(t *testing.T) {
	const partitions = "NodeName=n[1-3]\nNodeSet=big Nodes=n3\nPartitionName=gpu Nodes=n2,big\n" +
		"PartitionName=plain Nodes=ALL\n"
	for _, c := range []struct {
		node, partition, gres, slurm string
		want                         bool
	}{
		{"n1", "gpu", "AutoDetect=nvml\n", partitions, true},
		{"n1", "gpu", "AutoDetect=nvidia\nName=gpu Type=a100\n", partitions, true},
		{"n1", "gpu", "NodeName=n1 AutoDetect=nvml Name=gpu\n", partitions, true},
		{"n1", "gpu", "NodeName=n[1-2] AutoDetect=nvml\n", partitions, true},
		{"n1", "gpu", "NodeName=n2 AutoDetect=nvml\n", partitions, false},
		{"n1", "gpu", "AutoDetect=nvml\nNodeName=n1 AutoDetect=off\n", partitions, false},
		{"n1", "gpu", "AutoDetect=nvml\nName=gpu MultipleFiles=/dev/null,/dev/zero\n", partitions, false},
		{"n2", "gpu", "AutoDetect=nvml\n", partitions, false},
		{"n3", "gpu", "AutoDetect=nvml\n", partitions, false},
		{"n1", "plain", "AutoDetect=nvml\n", partitions, false},
		{"n1", "gpu", "AutoDetect=off\n", partitions, false},
		{"n1", "gpu", "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/null\n", partitions, false},
		{"n1", "gpu", "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu\n", partitions, false},
		{"n1", "gpu", "NodeName=n1 Name=gpu File=/dev/null\n", partitions, false},
		{"n1", "gpu", "NodeName=n2 AutoDetect=nvml Name=gpu\n", partitions, false},
		{"n1", "gpu", "", partitions, false},
		{"n1", "gpu", "AutoDetect=nvml\n", "", false},
	} {
		dir := t.TempDir()
		for name, text := range map[string]string{"gres.conf": c.gres, "slurm.conf": c.slurm} {
			if text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		conf := config.Default()
		conf.Partition = map[string]config.Partition{c.partition: {}}
		if got := Elsewhere(conf, c.node, filepath.Join(dir, "slurm.conf")); got != c.want {
			t.Errorf("%s with [partition.%s], gres.conf %q: %v", c.node, c.partition, c.gres, got)
		}
		conf.Slurm.Conf = filepath.Join(dir, "slurm.conf")
		if got := Elsewhere(conf, c.node, ""); got != c.want {
			t.Errorf("%s with [partition.%s], gres.conf %q, slurm.conf of carma.toml: %v", c.node, c.partition, c.gres, got)
		}
	}
}

// A step of a heterogeneous job is told the leader's id, whatever the component.
func TestComponentLeftAlone(t *testing.T) {
	dir := t.TempDir()
	h := jobenv.Hook{JobKey: jobenv.JobKey{JobID: 8}, UID: 1000, Slots: []int{0, 1}}
	if err := LeaveAlone(dir, h); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURM_HET_SIZE": "2",
		"SLURM_JOB_ID_HET_GROUP_0": "7", "SLURM_JOB_ID_HET_GROUP_1": "8", "SLURM_STEP_GPUS": "0,1",
		"CUDA_VISIBLE_DEVICES": "0,1"}
	var out strings.Builder
	if err := Task(&out, dir, func(name string) string { return vars[name] }); err != nil || out.Len() > 0 {
		t.Errorf("a task of the second component: %q, %v", out.String(), err)
	}
}

// Without AutoDetect the GPUs are named, MIG's by several files each: of these the first alone has NVIDIA's major.
func TestElsewhereByFiles(t *testing.T) {
	dir := t.TempDir()
	device := filepath.Join(dir, "nvidia0")
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(confine.NVIDIAMajor, 0))); err != nil {
		t.Skip("needs root:", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "slurm.conf"), []byte("PartitionName=p Nodes=n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]bool{"File=" + device: true, "MultipleFiles=" + device + ",/dev/null": true,
		"File=/dev/null,/dev/zero": false, "File=" + device + "\nName=gpu File=/dev/null": false} {
		if err := os.WriteFile(filepath.Join(dir, "gres.conf"), []byte("Name=gpu "+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Elsewhere(config.Default(), "n1", filepath.Join(dir, "slurm.conf")); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}
