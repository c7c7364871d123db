// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"flag"
	"os"
	"strings"
	"testing"

	"carma/estimator"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

var update = flag.Bool("update", false, "write the golden files")

const hardware = "NodeName=g1 CPUs=64 Boards=1 SocketsPerBoard=2 CoresPerSocket=16 ThreadsPerCore=2 " +
	"RealMemory=515000 Gres=gpu:a100:4"

func TestSetup(t *testing.T) {
	own, err := slurmconf.Parse(`JobSubmitPlugins=lua
PluginDir=/opt/slurm/lib
GresTypes=gpu
PrologFlags=Contain
Prolog=/etc/slurm/prolog.d/site
Epilog=/etc/slurm/epilog.d/site
PrologEpilogTimeout=300
EpilogTimeout=60
SchedulerParameters=bf_continue,bf_window=2880
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu
PartitionName=train Nodes=g[1-2] Default=YES
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	// What the site says of nodes and partition stays.
	lines, err := slurmconf.Parse(`GresTypes=gpu,bandwidth,nic
NodeName=gpu[1-4] NodeAddr=10.0.0.[1-4] Sockets=2 CoresPerSocket=24 RealMemory=900000 TmpDisk=800000 Gres=gpu:a100:2,shard:8,bandwidth:lustre:no_consume:4G,nic:2 Feature=a100,nvlink Weight=10
NodeName=head CPUs=8
NodeName=fat CPUs=64 Boards=1 SocketsPerBoard=4 CoresPerSocket=8 ThreadsPerCore=2 RealMemory=2000000 Gres=gpu:h100:8,nic:4
PartitionName=fat Nodes=fat
PartitionName=gpu Nodes=gpu[1-4] Default=YES MaxTime=2-00:00:00 AllowGroups=ml DefMemPerGPU=100000 PriorityTier=5 TRESBillingWeights="CPU=1.0,GRES/gpu=2.0"
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	old, recent := sctl.Version{Major: 22, Minor: 5, Micro: 8}, sctl.Version{Major: 24, Minor: 11, Micro: 5}
	if b := estimator.HopperBase(); b.CuBLASMiB != hopperCuBLASMiB || b.CuDNNMiB != hopperCuDNNMiB {
		t.Errorf("the estimator has %+v", b)
	}
	for file, s := range map[string]Site{
		"testdata/setup-bare.txt": {Nodes: "g1", Partition: "gpu", Hardware: "NodeName=g1 CPUs=8 RealMemory=1000", GPUs: 1,
			GPUMemMiB: 81559, Type: "h100", Hopper: true, MaxJobs: 2, Slurm: old},
		"testdata/setup-lines.txt": {Nodes: "gpu[1-2]", Partition: "gpu", Hardware: hardware, GPUs: 2, GPUMemMiB: 40536,
			MaxJobs: 2, SlurmConf: lines, Slurm: recent},
		"testdata/setup-own.txt": {Nodes: "g[1-2]", Partition: "train", Hardware: hardware, GPUs: 4, GPUMemMiB: 40536,
			MaxJobs: 4, SlurmConf: own, Slurm: recent},
	} {
		got := Setup(s)
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want := read(t, file); got != want {
			t.Errorf("%s: got\n%s", file, got)
		}
	}
}

// What Setup prints is what the doctor wants, and carma.toml is one.
func TestSetupPassesTheDoctor(t *testing.T) {
	recent := sctl.Version{Major: 24, Minor: 11, Micro: 5}
	out := Setup(Site{Nodes: "gpu[1-2]", Partition: "gpu", Hardware: hardware, GPUs: 4, GPUMemMiB: 40536, MaxJobs: 3,
		Type: "a100", Slurm: recent})
	parts := strings.Split(out, "# ---- ")
	if len(parts) != 5 {
		t.Fatalf("%d parts", len(parts))
	}
	f := site(t)
	var err error
	body := func(part string) string { _, text, _ := strings.Cut(part, "\n"); return text }
	if f.SlurmConf, err = slurmconf.Parse(body(parts[1]), nil); err != nil {
		t.Fatal(err)
	}
	if f.Config, err = config.Parse(body(parts[3])); err != nil {
		t.Fatal(err)
	}
	f.Running = map[string]string{"slurm_version": "24.11.5"}
	for name, value := range f.SlurmConf.Settings {
		f.Running[name] = value
	}
	for _, finding := range Diagnose(f) {
		if finding.Level != Pass {
			t.Errorf("%+v", finding)
		}
	}
	if !strings.Contains(out, "c /dev/carma/slot11 0600 root root - 120:11\n") || strings.Contains(out, "slot12 ") {
		t.Error("slots are not 0 to 11")
	}
}

// A cluster of one kind of node needs at most 12 lines of slurm.conf and gres.conf, slurmdbd's included.
func TestSetupIsShort(t *testing.T) {
	own, err := slurmconf.Parse("AccountingStorageType=accounting_storage/slurmdbd\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	out := Setup(Site{Nodes: "gpu[1-1000]", Partition: "gpu", Hardware: hardware, GPUs: 8, GPUMemMiB: 40536, MaxJobs: 3,
		SlurmConf: own, Slurm: sctl.Version{Major: 24, Minor: 11, Micro: 5}})
	before, _, _ := strings.Cut(out, "# ---- /etc/carma/carma.toml")
	n := 0
	for line := range strings.Lines(before) {
		if line != "\n" && line[0] != '#' {
			n++
		}
	}
	if n > 12 {
		t.Errorf("%d lines:\n%s", n, before)
	}
}
