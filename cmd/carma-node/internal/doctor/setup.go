// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"carma/slurmbridge/config"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/tres"
)

// Site holds the facts for the lines of a set of equal nodes.
type Site struct {
	Nodes     string // Slurm's node list of the set
	Partition string // for shared jobs
	Hardware  string // first line of `slurmd -C`
	GPUs      int    // of one node
	GPUMemMiB int64  // of one GPU
	Type      string // of the GPUs, as in gpu:a100:1; empty: none
	Hopper    bool   // the GPUs are of Hopper's generation or a later one
	MaxJobs   int    // that may share a GPU
	Slurm     sctl.Version
	SlurmConf slurmconf.File // the present file; empty: none yet
}

// Setup returns the lines of slurm.conf, gres.conf, carma.toml and tmpfiles.d needed
// by CARMA on the site. A list that is extended keeps all of the site's own words.
func Setup(s Site) string {
	var b strings.Builder
	s.slurmConf(&b)
	s.gresConf(&b)
	s.carmaTOML(&b)
	s.tmpfiles(&b)
	return b.String()
}

func (s Site) slurmConf(b *strings.Builder) {
	fmt.Fprintf(b, "# ---- slurm.conf, on every machine. These lines replace those of the same name.\n")
	fmt.Fprintf(b, "JobSubmitPlugins=%s\n", s.extended("JobSubmitPlugins", "carma"))
	fmt.Fprintf(b, "GresTypes=%s\n", s.extended("GresTypes", tres.GPU, tres.Carma))
	if s.accounts() {
		fmt.Fprintf(b, "AccountingStorageTRES=%s\n", s.extended("AccountingStorageTRES", "gres/gpu", "gres/"+tres.Carma))
	}
	if flags := s.SlurmConf.Setting("PrologFlags"); !has(flags, "Contain") && !has(flags, "X11") { // both imply Alloc
		fmt.Fprintf(b, "PrologFlags=%s\n", s.extended("PrologFlags", "Alloc"))
	}
	for _, h := range hookNames {
		own := "/usr/sbin/carma-" + h.command
		if old := s.SlurmConf.Setting(h.setting); old != "" && old != own {
			place := "end"
			if h.setting == "Epilog" { // the GPUs are free though the rest fails
				place = "begin"
			}
			fmt.Fprintf(b, "# %s=%s stays; let it %s with: %s\n", h.setting, old, place, own)
			continue
		}
		fmt.Fprintf(b, "%s=%s\n", h.setting, own)
	}
	for _, name := range hookTimeouts {
		if v := seconds(s.SlurmConf.Setting(name)); v > 0 && v < 150 {
			fmt.Fprintf(b, "%s=150\n", name)
		}
	}
	params := []string{"bf_continue", "nohold_on_prolog_fail"}
	if s.Slurm.Publishes() {
		params = append(params, extraConstraints)
	}
	fmt.Fprintf(b, "SchedulerParameters=%s\n", s.extended("SchedulerParameters", params...))
	cpus, memory := s.nodeLine(b, fmt.Sprintf("%s,%s:%d", s.gpus(s.slots()), tres.Carma, int64(s.GPUs)*s.GPUMemMiB))
	s.partitionLines(b, fmt.Sprint(memory/cpus))
}

// accounts tells whether slurmdbd accounts for jobs.
func (s Site) accounts() bool {
	return s.SlurmConf.Setting("AccountingStorageType") == "accounting_storage/slurmdbd"
}

// nodeLine writes the line of the nodes, and returns what they have at most.
func (s Site) nodeLine(b *strings.Builder, gres string) (cpus, memory int64) {
	own, node := s.ownNodes(), s.hardware()
	for _, e := range otherGRES(own.Get("Gres")) {
		gres += "," + e.String()
	}
	cpus, memory = max(1, number(valueOf(node, "CPUs"))), max(1, number(valueOf(node, "RealMemory")))
	if own.Name != "" {
		node = own.Words
		cpus, memory = max(cpus, number(own.Get("CPUs"))), max(memory, number(own.Get("RealMemory")))
		if !hostlist.Same(own.Name, s.Nodes) {
			fmt.Fprintf(b, "# remove %s from NodeName=%s, and divide NodeAddr and all else that has an entry for each node\n",
				s.Nodes, own.Name)
		}
	}
	fmt.Fprintf(b, "NodeName=%s %s\n", s.Nodes, strings.Join(with(node, "Gres", gres), " "))
	return cpus, memory
}

// partitionLines are the lines of the partition and of the recovery partition.
// defMem is the DefMemPerCPU of a partition without default memory.
func (s Site) partitionLines(b *strings.Builder, defMem string) {
	own := s.ownPartition()
	if had := own.Get("Nodes"); had != "" && !hostlist.Same(had, s.Nodes) {
		fmt.Fprintf(b, "# partition %s has Nodes=%s: nodes outside %s are no longer in it\n", s.Partition, had, s.Nodes)
	}
	partition := with(own.Words, "Nodes", s.Nodes)
	if !s.hasDefaultMemory(own) {
		partition = with(partition, "DefMemPerCPU", defMem)
	}
	if own.Get("LLN") == "" {
		partition = with(partition, "LLN", "YES")
	}
	size := config.Partition{GPUMemMiB: s.GPUMemMiB}
	if by, scale, changed := byCarma(own.Get("TRESBillingWeights"), size); changed {
		if scale > 1 {
			fmt.Fprintf(b, "# Billing is a whole number: weights x %d%s\n", scale, alike(scale))
		}
		partition = with(partition, "TRESBillingWeights", `"`+by+`"`)
	} else if s.accounts() {
		fmt.Fprintf(b, "# To charge and limit by GPU memory: TRESBillingWeights=\"gres/carma=%s\" (one GPU: %d), "+
			"GrpTRES=gres/carma=%d (8 GPUs)\n", perMiB(leastOfGPU, s.GPUMemMiB), leastOfGPU, 8*s.GPUMemMiB)
	}
	fmt.Fprintf(b, "PartitionName=%s %s\n", s.Partition, strings.Join(partition, " "))
	recovery := slices.DeleteFunc(slices.Clone(partition), func(w string) bool {
		return strings.EqualFold(keyOf(w),
			"Default")
	})
	fmt.Fprintf(b, "PartitionName=%s-recovery %s\n\n", s.Partition,
		strings.Join(with(recovery, "PriorityTier", s.above(own)), " "))
}

// gpuType is the present name of the nodes' GPUs, or else their model.
func (s Site) gpuType() string {
	for _, g := range strings.Split(s.ownNodes().Get("Gres"), ",") {
		if w := strings.Split(g, ":"); len(w) == 3 && w[0] == tres.GPU {
			return w[1]
		}
	}
	return s.Type
}

// gpus counts GPUs, with their type.
func (s Site) gpus(n int) string {
	if t := s.gpuType(); t != "" {
		return fmt.Sprintf("gpu:%s:%d", t, n)
	}
	return fmt.Sprintf("gpu:%d", n)
}

// hardware are the words of `slurmd -C` that a NodeName line takes.
func (s Site) hardware() []string {
	return slices.DeleteFunc(strings.Fields(s.Hardware), func(w string) bool {
		return slices.Contains([]string{"NodeName", "Gres", "UpTime", "Found"}, keyOf(w))
	})
}

// ownNodes is slurm.conf's line of the first node of the set; empty: none.
func (s Site) ownNodes() slurmconf.Record {
	for _, n := range s.SlurmConf.Nodes {
		if hostlist.Contains(n.Name, hostlist.First(s.Nodes)) {
			return n
		}
	}
	return slurmconf.Record{}
}

// ownPartition is slurm.conf's line of the partition; empty: none.
func (s Site) ownPartition() slurmconf.Record {
	for _, p := range s.SlurmConf.Partitions {
		if p.Name == s.Partition {
			return p
		}
	}
	return slurmconf.Record{}
}

func (s Site) hasDefaultMemory(partition slurmconf.Record) bool {
	for _, key := range []string{"DefMemPerCPU", "DefMemPerNode", "DefMemPerGPU"} {
		if partition.Get(key) != "" || s.SlurmConf.Setting(key) != "" {
			return true
		}
	}
	return false
}

// above is a PriorityTier above the partition's own, which is 1 if not said.
func (s Site) above(partition slurmconf.Record) string {
	return fmt.Sprint(max(1, number(partition.Get("PriorityTier"))) + 1)
}

func keyOf(word string) string { key, _, _ := strings.Cut(word, "="); return key }

// valueOf returns the value of a key among "Key=value" words.
func valueOf(words []string, key string) string {
	for _, w := range words {
		if strings.EqualFold(keyOf(w), key) {
			_, value, _ := strings.Cut(w, "=")
			return value
		}
	}
	return ""
}

// with returns words in which key has the value, in its old place or at the end.
func with(words []string, key, value string) []string {
	words = slices.Clone(words)
	for i, w := range words {
		if strings.EqualFold(keyOf(w), key) {
			words[i] = key + "=" + value
			return words
		}
	}
	return append(words, key+"="+value)
}

func (s Site) slots() int { return s.GPUs * s.MaxJobs }

func (s Site) isDefault() bool { return strings.EqualFold(s.ownPartition().Get("Default"), "YES") }

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
	fmt.Fprintf(b, "# ---- gres.conf, on every machine; without AutoDetect for these nodes. "+
		"No Cores=: a slot is not a GPU.\n")
	fmt.Fprintf(b, "NodeName=%s Name=gpu", s.Nodes)
	if t := s.gpuType(); t != "" {
		fmt.Fprintf(b, " Type=%s", t)
	}
	fmt.Fprintf(b, " File=/dev/carma/slot%s\n\n", span(0, s.slots()-1))
}

// otherGRES are the entries of a node's Gres that are not for GPUs.
func otherGRES(list string) (other []tres.Entry) {
	for e := range tres.Parse(list) {
		if e.Name != tres.GPU && e.Name != "shard" && e.Name != tres.Carma {
			other = append(other, e)
		}
	}
	return other
}

// span is the notation of files with numbers.
func span(first, last int) string {
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("[%d-%d]", first, last)
}

// estimator.HopperBase, which a program of root's does not link.
const hopperCuBLASMiB, hopperCuDNNMiB = 732, 800

func (s Site) carmaTOML(b *strings.Builder) {
	fmt.Fprintf(b, "# ---- /etc/carma/carma.toml, on every machine.\n[partition.%s]\n", s.Partition)
	if s.isDefault() {
		b.WriteString("default = true\n")
	}
	fmt.Fprintf(b, "gpus_per_node = %d\ngpu_mem_mib = %d\n", s.GPUs, s.GPUMemMiB)
	if s.Hopper {
		fmt.Fprintf(b, "base_cublas_mib = %d\nbase_cudnn_mib = %d\n", hopperCuBLASMiB, hopperCuDNNMiB)
	}
	fmt.Fprintf(b, "share = true\nrecovery = \"%s-recovery\"\n\n", s.Partition)
	fmt.Fprintf(b, "[partition.%s-recovery]\ngpus_per_node = %d\ngpu_mem_mib = %d\nshare = false\n\n[placement]\n",
		s.Partition, s.GPUs, s.GPUMemMiB)
	fmt.Fprintf(b, "max_jobs = %d\n\n", s.MaxJobs)
}

func (s Site) tmpfiles(b *strings.Builder) {
	b.WriteString("# ---- /etc/tmpfiles.d/carma-slots.conf, on the nodes; then: systemd-tmpfiles --create\n")
	b.WriteString("d /dev/carma 0755 root root -\n")
	for i := range s.slots() {
		fmt.Fprintf(b, "c /dev/carma/slot%d 0600 root root - 120:%d\n", i, i)
	}
}
