// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

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
PrologEpilogTimeout=300
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
NodeName=carma-anchor CPUs=1024 Gres=gpu:a100:1024,gpu:h100:1024,carmatotal:16777216 State=DOWN
PartitionName=fat Nodes=fat,carma-anchor
PartitionName=gpu Nodes=gpu[1-4] Default=YES MaxTime=2-00:00:00 AllowGroups=ml DefMemPerGPU=100000 PriorityTier=5
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	for file, s := range map[string]Site{
		"testdata/setup-bare.txt": {Nodes: "g1", Partition: "gpu", Hardware: "NodeName=g1 CPUs=8 RealMemory=1000", GPUs: 1,
			GPUMemMiB: 81559, Type: "h100", Cores: []string{"0-3"}, MaxJobs: 2},
		"testdata/setup-lines.txt": {Nodes: "gpu[1-2]", Partition: "gpu", Hardware: hardware, GPUs: 2, GPUMemMiB: 40536,
			MaxJobs: 2, SlurmConf: lines},
		"testdata/setup-shards.txt": {Nodes: "gpu[1-2]", Partition: "gpu", Hardware: hardware, GPUs: 2, GPUMemMiB: 40536,
			MaxJobs: 4, SlurmConf: lines, Type: "nvidia", Cores: []string{"0-23", "24-47"},
			Placement: "slurm", MarginMiB: 2048},
		"testdata/setup-own.txt": {Nodes: "g[1-2]", Partition: "train", Hardware: hardware, GPUs: 4, GPUMemMiB: 40536,
			MaxJobs: 4, SlurmConf: own},
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

// The same where slurmctld picks the GPU: no slots, no anchor.
func TestSetupOfShardsPassesTheDoctor(t *testing.T) {
	f, out := shardSite(t)
	for _, finding := range Diagnose(f) {
		if finding.Level != Pass {
			t.Errorf("%+v", finding)
		}
	}
	if strings.Contains(out, "/dev/carma") || strings.Contains(out, anchorName) || strings.Contains(out, "carmatotal") {
		t.Errorf("got\n%s", out)
	}
}

// shardSite is the site that Setup describes, and what it prints.
func shardSite(t *testing.T, change ...string) (f Facts, out string) {
	t.Helper()
	out = Setup(Site{Nodes: "gpu[1-2]", Partition: "gpu", Hardware: hardware, GPUs: 4, GPUMemMiB: 40536, MaxJobs: 4,
		Placement: "slurm", MarginMiB: 2048,
		Type: "a100", Cores: []string{"0-15", "0-15", "16-31", "16-31"}})
	changed := out
	for i := 0; i < len(change); i += 2 {
		if !strings.Contains(changed, change[i]) {
			t.Fatalf("setup prints no %q", change[i])
		}
		changed = strings.ReplaceAll(changed, change[i], change[i+1])
	}
	parts := strings.Split(changed, "# ---- ")
	if len(parts) != 4 {
		t.Fatalf("%d parts", len(parts))
	}
	f = site(t)
	var err error
	body := func(part string) string { _, text, _ := strings.Cut(part, "\n"); return text }
	if f.SlurmConf, err = slurmconf.Parse(body(parts[1]), nil); err != nil {
		t.Fatal(err)
	}
	if f.Node.GresConf, err = slurmconf.Parse(body(parts[2]), nil); err != nil {
		t.Fatal(err)
	}
	if f.Config, err = config.Parse(body(parts[3])); err != nil {
		t.Fatal(err)
	}
	f.Installed = sctl.Version{Major: 25, Minor: 11, Micro: 7}
	f.Controller.PluginVersion = f.Installed
	f.Running = map[string]string{"slurm_version": "25.11.7"}
	for name, value := range f.SlurmConf.Settings {
		f.Running[name] = value
	}
	f.Node.Gres = "gpu:4,shard:148"
	f.Node.Slots = nil
	for i := range 4 {
		f.Node.Slots = append(f.Node.Slots, Path{Path: fmt.Sprintf("/dev/nvidia%d", i), Major: nvidiaMajor})
		f.Node.Samples[i].Minor = (i + 2) % 4
	}
	return f, out
}

// Each mistake is found, and nothing else is said.
func TestShardsWrong(t *testing.T) {
	for _, c := range []struct {
		name   string
		conf   []string // changes what setup prints
		facts  func(*Facts)
		level  Level
		part   string
		phrase string
	}{
		{"an older Slurm", nil, func(f *Facts) { old(f, 22, 5, 8) }, Fail, "slurm", "needs Slurm 23.11, this is 22.05.8"},
		{"a 23.11 that gives out used GPUs", nil, func(f *Facts) { old(f, 23, 11, 4) }, Fail, "slurm",
			"while others hold shards"},
		{"a backfill that plans without shards", nil, func(f *Facts) { old(f, 23, 11, 11) }, Warn, "slurm", "backfill"},
		{"no shard in GresTypes", []string{"GresTypes=gpu,shard", "GresTypes=gpu"}, nil, Fail, "slurm.conf",
			"GresTypes lacks shard"},
		{"no LL_SHARED_GRES", []string{"CR_Core_Memory,LL_SHARED_GRES", "CR_Core_Memory"}, nil, Fail, "slurm.conf",
			"lacks LL_SHARED_GRES"},
		{"whole nodes", []string{"PartitionName=gpu Nodes=gpu[1-2] LLN=YES\n",
			"PartitionName=gpu Nodes=gpu[1-2] LLN=YES OverSubscribe=EXCLUSIVE\n"}, nil, Fail, "slurm.conf",
			"partition gpu has OverSubscribe=EXCLUSIVE"},
		{"settling", []string{`settle = "0s"`, `settle = "30s"`}, nil, Warn, "slurm.conf", "placement.settle = 30s"},
		{"shards of all memory", []string{"Gres=gpu:a100:4,shard:148", "Gres=gpu:a100:4,shard:156"}, nil, Fail, "nodes",
			"shard:156; 4 GPUs of 40536 MiB have 37 GiB each"},
		{"slots", []string{"Gres=gpu:a100:4,", "Gres=gpu:a100:16,"}, nil, Fail, "nodes", "counts gpu:16"},
		{"a node that does not know shards", nil, func(f *Facts) { f.Node.Gres = "gpu:4" }, Fail, "node", "counts no shard"},
		{"AutoDetect", []string{"NodeName=gpu[1-2] Name=shard", "AutoDetect=nvml\nNodeName=gpu[1-2] Name=shard"}, nil, Fail,
			"gres.conf", "AutoDetect=nvml"},
		{"a device too few", nil, func(f *Facts) { f.Node.Slots = f.Node.Slots[:3] }, Fail, "gres.conf",
			"names 3 devices, NVML shows 4"},
		{"devices in another order", nil, func(f *Facts) { f.Node.Slots[0].Path = "/dev/nvidia4" }, Fail, "gres.conf",
			"/dev/nvidia4 is device 0"},
		{"MIG", nil, func(f *Facts) { f.Node.Samples[1].MIG = true }, Fail, "gres.conf", "MIG"},
		{"a minor number beyond", nil, func(f *Facts) { f.Node.Samples[1].Minor = 7 }, Fail, "gres.conf", "minor number 7"},
	} {
		f, _ := shardSite(t, c.conf...)
		if c.facts != nil {
			c.facts(&f)
		}
		found := 0
		for _, finding := range Diagnose(f) {
			if finding.Level == Pass {
				continue
			}
			if found++; finding.Level != c.level || finding.Part != c.part || !strings.Contains(finding.What, c.phrase) ||
				finding.Do == "" {
				t.Errorf("%s: %+v", c.name, finding)
			}
		}
		if found != 1 {
			t.Errorf("%s: %d findings", c.name, found)
		}
	}
}

func old(f *Facts, major, minor, micro int) {
	f.Installed = sctl.Version{Major: major, Minor: minor, Micro: micro}
	f.Controller.PluginVersion = f.Installed
	f.Running["slurm_version"] = versionText(f.Installed)
}

// What Setup prints is what the doctor wants, and carma.toml is one.
func TestSetupPassesTheDoctor(t *testing.T) {
	out := Setup(Site{Nodes: "gpu[1-2]", Partition: "gpu", Hardware: hardware, GPUs: 4, GPUMemMiB: 40536, MaxJobs: 3,
		Type: "a100"})
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
	f.Running = map[string]string{"slurm_version": "22.05.8"}
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
