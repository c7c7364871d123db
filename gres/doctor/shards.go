// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/tres"
)

// What is to be right where slurmctld picks the GPU (placement.mode "slurm").

func (s Site) bySlurm() bool { return s.Placement == "slurm" }

// shards are those of one node.
func (s Site) shards() int64 { return int64(s.GPUs) * config.ShardsOf(s.GPUMemMiB, s.MarginMiB) }

// shardLines are slurm.conf's lines for the nodes and partitions.
func (s Site) shardLines(b *strings.Builder) {
	params := s.SlurmConf.Setting("SelectTypeParameters")
	if params == "" {
		params = "CR_Core_Memory" // Slurm's default
	}
	if !has(params, "LL_SHARED_GRES") {
		params += ",LL_SHARED_GRES"
	}
	fmt.Fprintf(b, "SelectTypeParameters=%s\n", params)
	s.nodeLine(b, fmt.Sprintf("%s,shard:%d", s.gpus(s.GPUs), s.shards()))
	s.partitionLines(b, s.Nodes, "")
}

// shardsUsable: 23.11 has LL_SHARED_GRES; 23.11.5 no longer gives a whole GPU to a
// job while others hold shards of it (30eacbe571), and 25.05 no longer plans that
// (f1d2365e4e).
func (d *diagnosis) shardsUsable(say func(Level, string, string)) {
	v := d.Installed
	const instead = `set placement.mode = "carma"`
	switch {
	case v == (sctl.Version{}): // said already
	case v.Before(23, 11):
		say(Fail, "placement.mode = \"slurm\" needs Slurm 23.11, this is "+versionText(v)+": jobs are accepted as "+
			"written", instead)
	case v.Major == 23 && v.Minor == 11 && v.Micro < 5:
		say(Fail, "Slurm "+versionText(v)+" gives a job a whole GPU while others hold shards of it",
			"update Slurm to 23.11.5 or later, or "+instead)
	case v.Before(25, 5):
		say(Warn, "backfill of Slurm "+versionText(v)+" plans whole GPUs without regard to shards: their jobs may start "+
			"later than it says", "update Slurm to 25.05 or later")
	}
}

func (d *diagnosis) shardSettings(say func(Level, string, string)) {
	if v := d.setting("SelectTypeParameters"); !has(v, "LL_SHARED_GRES") {
		say(Fail, "SelectTypeParameters lacks LL_SHARED_GRES: jobs pile up on the first GPU",
			"SelectTypeParameters="+strings.Join(append(words(v), "LL_SHARED_GRES"), ","))
	}
	for _, p := range d.SlurmConf.Partitions {
		if d.Config.Partition[p.Name].Share && strings.EqualFold(p.Get("OverSubscribe"), "EXCLUSIVE") {
			say(Fail, "partition "+p.Name+" has OverSubscribe=EXCLUSIVE: a job with shards never starts",
				"remove OverSubscribe from PartitionName="+p.Name)
		}
	}
	if p := d.Config.Placement; p.Settle.D() > d.Config.Hooks.Wait.D() {
		say(Warn, fmt.Sprintf("placement.settle = %s: slurmctld does not wait for it, and jobs are returned to the queue",
			p.Settle.D()), "placement.settle = \"0s\"")
	}
}

// shardLine looks at a node's line of slurm.conf.
func (d *diagnosis) shardLine(n slurmconf.Record, p config.Partition, say func(Level, string, string)) {
	sums, line := counts(n.Get("Gres")), "NodeName="+n.Name
	if sums[tres.GPU] != int64(p.GPUsPerNode) {
		say(Fail, fmt.Sprintf("%s counts gpu:%d, [partition] says %d GPUs", line, sums[tres.GPU], p.GPUsPerNode),
			fmt.Sprintf("Gres=gpu:%d,...", p.GPUsPerNode))
	}
	each := config.ShardsOf(p.GPUMemMiB, d.Config.Placement.MarginMiB)
	if want := each * int64(p.GPUsPerNode); sums[tres.Shard] != want {
		say(Fail, fmt.Sprintf("%s counts shard:%d; %d GPUs of %d MiB have %d GiB each without the margin", line,
			sums[tres.Shard], p.GPUsPerNode, p.GPUMemMiB, each), fmt.Sprintf("Gres=...,shard:%d", want))
	}
}

// devices looks at gres.conf and the GPUs: place i of gres.conf's files must be the
// GPU of minor number i, which the Prolog looks for.
func (d *diagnosis) devices() {
	n := d.Node
	d.part("gres.conf", fmt.Sprintf("names %d GPUs", len(n.Slots)), func(say func(Level, string, string)) {
		if n.GresConfErr != nil {
			say(Fail, n.GresConfErr.Error(), "write gres.conf with a File for each GPU")
			return
		}
		if v := n.GresConf.Setting("AutoDetect"); v != "" && !strings.EqualFold(v, "off") {
			say(Fail, "AutoDetect="+v+" numbers GPUs by the PCI bus, CARMA by device files",
				"remove AutoDetect from gres.conf for these nodes")
		}
		files := fmt.Sprintf("Name=gpu File=/dev/nvidia[0-%d]", max(len(n.Samples), 1)-1)
		if len(n.Slots) != len(n.Samples) && n.NVMLErr == nil {
			say(Fail, fmt.Sprintf("gres.conf names %d devices, NVML shows %d GPUs", len(n.Slots), len(n.Samples)), files)
		}
		for i, s := range n.Slots {
			if s.Err != nil {
				say(Fail, "device "+s.Err.Error(), "load the driver: nvidia-smi makes them")
			} else if lastNumber(s.Path) != i {
				say(Fail, fmt.Sprintf("%s is device %d of gres.conf: the Prolog would take it for another GPU", s.Path, i), files)
			}
		}
		for _, s := range n.Samples {
			if s.MIG {
				say(Fail, fmt.Sprintf("GPU %d is split into MIG instances", s.Index), "set placement.mode = \"carma\" for MIG")
			} else if s.Minor < 0 || s.Minor >= len(n.Slots) {
				say(Fail, fmt.Sprintf("GPU %d has the minor number %d, gres.conf names %d devices", s.Index, s.Minor,
					len(n.Slots)), files)
			}
		}
	})
}

// lastNumber is the number that a path ends with, -1 if with none.
func lastNumber(path string) int {
	n, err := strconv.Atoi(path[len(strings.TrimRight(path, "0123456789")):])
	if err != nil {
		return -1
	}
	return n
}
