// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/tres"
)

// Site is what the lines for a set of equal nodes are made of.
type Site struct {
	Nodes     string // Slurm's node list of the set
	Partition string // for shared jobs
	Hardware  string // first line of `slurmd -C`
	GPUs      int    // of one node
	GPUMemMiB int64  // of one GPU
	MaxJobs   int    // that may share a GPU
	Placement string // placement.mode: carma, slurm
	MarginMiB int64
	SlurmConf slurmconf.File // as it is; empty: none yet
	PluginDir string         // where Slurm's own plugins are
}

// The anchor must cover any job: what no node will have.
const (
	anchorMiB  = 16777216
	anchorCPUs = 1024
)

// Setup returns the lines of slurm.conf, gres.conf, carma.toml and tmpfiles.d
// that CARMA needs on the site. Nothing of the site's own is left out of a list that
// is to be extended.
func Setup(s Site) string {
	var b strings.Builder
	s.slurmConf(&b)
	s.gresConf(&b)
	s.carmaTOML(&b)
	if !s.bySlurm() {
		s.tmpfiles(&b)
	}
	return b.String()
}

func (s Site) slurmConf(b *strings.Builder) {
	names, books := carmaNames(s.GPUs), tres.Total
	if s.bySlurm() {
		names, books = []string{tres.Shard}, tres.Shard
	}
	fmt.Fprintf(b, "# ---- slurm.conf, on every machine. These lines replace those of the same name.\n")
	fmt.Fprintf(b, "JobSubmitPlugins=%s\n", s.extended("JobSubmitPlugins", "carma"))
	dirs := strings.Split(s.SlurmConf.Setting("PluginDir"), ":")
	if dirs[0] == "" {
		dirs[0] = s.PluginDir
	}
	if !slices.Contains(dirs, "/usr/lib/carma/slurm") {
		dirs = append(dirs, "/usr/lib/carma/slurm")
	}
	fmt.Fprintf(b, "PluginDir=%s\n", strings.Join(dirs, ":"))
	fmt.Fprintf(b, "GresTypes=%s\n", s.extended("GresTypes", append([]string{tres.GPU}, names...)...))
	if s.SlurmConf.Setting("AccountingStorageType") == "accounting_storage/slurmdbd" {
		fmt.Fprintf(b, "AccountingStorageTRES=%s\n", s.extended("AccountingStorageTRES", "gres/gpu", "gres/"+books))
	}
	fmt.Fprintf(b, "PrologFlags=%s\n", s.extended("PrologFlags", "Alloc"))
	for _, h := range hookNames {
		own := "/usr/sbin/carma-" + h.command
		if old := s.SlurmConf.Setting(h.setting); old != "" && old != own {
			fmt.Fprintf(b, "# %s=%s stays; let it end with: %s\n", h.setting, old, own)
			continue
		}
		fmt.Fprintf(b, "%s=%s\n", h.setting, own)
	}
	if seconds(s.SlurmConf.Setting("PrologEpilogTimeout")) < 120 {
		fmt.Fprintf(b, "PrologEpilogTimeout=120\n")
	}
	fmt.Fprintf(b, "SchedulerParameters=%s\n", s.extended("SchedulerParameters", "bf_continue", "nohold_on_prolog_fail"))
	if s.bySlurm() {
		s.shardLines(b)
	} else {
		s.nodeLines(b, names)
	}
}

func (s Site) nodeLines(b *strings.Builder, names []string) {
	hardware, cpus, memory := s.hardware()
	ceiling, anchor := []string{fmt.Sprintf("gpu:%d", s.slots())}, []string{"gpu:1024"}
	for _, name := range names {
		ceiling = append(ceiling, inSlurmConf(name, int64(s.GPUs)*s.GPUMemMiB))
		anchor = append(anchor, inSlurmConf(name, anchorMiB))
	}
	fmt.Fprintf(b, "NodeName=%s %s Gres=%s\n", s.Nodes, hardware, strings.Join(ceiling, ","))
	fmt.Fprintf(b, "NodeName=%s NodeAddr=127.0.0.1 CPUs=%d RealMemory=%d Gres=%s State=DOWN Reason=%[1]s\n", anchorName, anchorCPUs, memory, strings.Join(anchor, ","))
	fmt.Fprintf(b, "PartitionName=%s Nodes=%s,%s%s DefMemPerCPU=%d\n", s.Partition, s.Nodes, anchorName, s.defaultYes(), memory/cpus)
	fmt.Fprintf(b, "PartitionName=%s-recovery Nodes=%s,%s PriorityTier=2 DefMemPerCPU=%d\n\n", s.Partition, s.Nodes, anchorName, memory/cpus)
}

// hardware is what slurm.conf is to say of the nodes but for their GRES.
func (s Site) hardware() (line string, cpus, memory int64) {
	var hardware []string
	cpus, memory = 1, 1
	for _, w := range strings.Fields(s.Hardware) {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "NodeName", "Gres", "UpTime", "Found":
			continue
		case "RealMemory":
			memory = max(1, number(value))
		case "CPUs":
			cpus = max(1, number(value))
		}
		hardware = append(hardware, w)
	}
	return strings.Join(hardware, " "), cpus, memory
}

func (s Site) defaultYes() string {
	if s.isDefault() {
		return " Default=YES"
	}
	return ""
}

func (s Site) slots() int { return s.GPUs * s.MaxJobs }

func (s Site) isDefault() bool {
	for _, p := range s.SlurmConf.Partitions {
		if p.Name == s.Partition {
			return strings.EqualFold(p.Get("Default"), "YES")
		}
	}
	return false
}

// extended is a list of slurm.conf with words added that it lacks.
func (s Site) extended(name string, add ...string) string {
	list := words(s.SlurmConf.Setting(name))
	for _, w := range add {
		if !has(strings.Join(list, ","), w) {
			list = append(list, w)
		}
	}
	return strings.Join(list, ",")
}

func (s Site) gresConf(b *strings.Builder) {
	fmt.Fprintf(b, "# ---- gres.conf, on every machine; without AutoDetect for these nodes.\n")
	if s.bySlurm() {
		fmt.Fprintf(b, "NodeName=%s Name=gpu File=/dev/nvidia[0-%d]\n", s.Nodes, s.GPUs-1)
		fmt.Fprintf(b, "NodeName=%s Name=shard Count=%d\n\n", s.Nodes, s.shards())
		return
	}
	fmt.Fprintf(b, "NodeName=%s Name=gpu File=/dev/carma/slot[0-%d]\n", s.Nodes, s.slots()-1)
	for _, name := range carmaNames(s.GPUs) {
		fmt.Fprintf(b, "NodeName=%s Name=%s Count=%d\n", s.Nodes, name, int64(s.GPUs)*s.GPUMemMiB)
	}
	b.WriteString("\n")
}

func (s Site) carmaTOML(b *strings.Builder) {
	fmt.Fprintf(b, "# ---- /etc/carma/carma.toml, on every machine.\n[partition.%s]\n", s.Partition)
	if s.isDefault() {
		b.WriteString("default = true\n")
	}
	fmt.Fprintf(b, "gpus_per_node = %d\ngpu_mem_mib = %d\nshare = true\nrecovery = \"%s-recovery\"\n\n", s.GPUs, s.GPUMemMiB, s.Partition)
	fmt.Fprintf(b, "[partition.%s-recovery]\ngpus_per_node = %d\ngpu_mem_mib = %d\nshare = false\n\n[placement]\n", s.Partition, s.GPUs, s.GPUMemMiB)
	if s.bySlurm() {
		b.WriteString("mode = \"slurm\"\nsettle = \"0s\"\n")
	}
	fmt.Fprintf(b, "max_jobs = %d\n\n", s.MaxJobs)
}

func (s Site) tmpfiles(b *strings.Builder) {
	b.WriteString("# ---- /etc/tmpfiles.d/carma-slots.conf, on the nodes; then: systemd-tmpfiles --create\n")
	b.WriteString("d /dev/carma 0755 root root -\n")
	for i := range s.slots() {
		fmt.Fprintf(b, "c /dev/carma/slot%d 0600 root root - 120:%d\n", i, i)
	}
}
