// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/config"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/slurmtime"
	"carma/slurmbridge/tres"
)

// anchorName is the node that is never up (contrib/slurm/slurm.conf). Others are
// carma-anchor2 and so on: a request for several nodes needs as many.
const anchorName = "carma-anchor"

// enoughAnchors is for how many nodes of a job there should be anchors.
const enoughAnchors = 8

// isAnchor tells whether a line of slurm.conf is for anchors.
func isAnchor(line slurmconf.Record) bool { return strings.HasPrefix(line.Name, anchorName) }

// nodesOf returns slurm.conf's lines for the nodes of a partition, but for the
// anchor, and the partition's line.
func (d *diagnosis) nodesOf(partition string) (lines []slurmconf.Record, line slurmconf.Record, ok bool) {
	at := slices.IndexFunc(d.SlurmConf.Partitions, func(p slurmconf.Record) bool { return p.Name == partition })
	if at < 0 {
		return nil, line, false
	}
	line = d.SlurmConf.Partitions[at]
	for _, n := range d.SlurmConf.Nodes {
		names, _ := hostlist.Expand(n.Name)
		if !isAnchor(n) && slices.ContainsFunc(names, func(name string) bool { return inPartition(line, name) }) {
			lines = append(lines, n)
		}
	}
	return lines, line, true
}

// nodesIn counts the nodes of a partition that these lines describe.
func nodesIn(partition slurmconf.Record, lines []slurmconf.Record) (n int) {
	for _, line := range lines {
		names, _ := hostlist.Expand(line.Name)
		for _, name := range names {
			if inPartition(partition, name) {
				n++
			}
		}
	}
	return n
}

func inPartition(partition slurmconf.Record, node string) bool {
	nodes := partition.Get("Nodes")
	return strings.EqualFold(nodes, "ALL") || hostlist.Contains(nodes, node)
}

// counts sums a GRES list by name.
func counts(list string) map[string]int64 {
	sums := map[string]int64{}
	for e := range tres.Parse(list) {
		sums[e.Name] += e.Count
	}
	return sums
}

// nodes compares what slurm.conf counts for the nodes with what they have.
func (d *diagnosis) nodes() {
	d.part("nodes", "have the right counts of slots and memory", func(say func(Level, string, string)) {
		seen := map[string]bool{}
		for _, name := range d.Config.PartitionNames() {
			lines, _, _ := d.nodesOf(name)
			for _, n := range lines {
				if !seen[n.Name] {
					seen[n.Name] = true
					d.nodeLine(n, d.Config.Partition[name], say)
				}
			}
		}
	})
}

func (d *diagnosis) nodeLine(n slurmconf.Record, p config.Partition, say func(Level, string, string)) {
	if d.Config.Placement.BySlurm() {
		d.shardLine(n, p, say)
		return
	}
	sums := counts(n.Get("Gres"))
	line := "NodeName=" + n.Name
	maxJobs := d.Config.ForNode(hostlist.First(n.Name)).Placement.MaxJobs
	switch slots := sums[tres.GPU]; {
	case slots == 0:
		say(Fail, line+" has no gpu in its Gres", fmt.Sprintf("Gres=gpu:%d,...", p.GPUsPerNode*maxJobs))
		return
	case slots < int64(p.GPUsPerNode*maxJobs):
		say(Warn, fmt.Sprintf("%s counts %d slots: %d GPUs shared by %d jobs need %d", line, slots, p.GPUsPerNode, maxJobs,
			p.GPUsPerNode*maxJobs),
			fmt.Sprintf("gpu:%d in slurm.conf, as many files in gres.conf", p.GPUsPerNode*maxJobs))
	}
	ceiling := int64(p.GPUsPerNode) * p.GPUMemMiB
	for _, name := range carmaNames(p.GPUsPerNode) {
		if sums[name] < ceiling {
			// A published count above slurm.conf's drains the node at the next
			// registration: "count reported lower than configured".
			say(Fail, fmt.Sprintf("%s: %s:%d is below the node's memory of %d MiB", line, name, sums[name], ceiling),
				inSlurmConf(name, ceiling))
			return
		}
	}
	for e := range tres.Parse(n.Get("Gres")) {
		if tres.K(e.Name) > 0 && e.Type != tres.NoConsume {
			// slurmctld drains a node that registers while a consumed count
			// is not what it was: "count changed and jobs are using them".
			say(Fail, fmt.Sprintf("%s: jobs would consume %s, and the node would be drained", line, e.Name),
				inSlurmConf(e.Name, e.Count))
			return
		}
		if e.Name == tres.Total && e.Type == tres.NoConsume {
			say(Fail, fmt.Sprintf("%s: jobs would not consume %s, and slurmctld could start any number of them at once", line,
				e.Name), inSlurmConf(e.Name, e.Count))
		}
	}
}

func (d *diagnosis) anchor() {
	if d.Config.Placement.BySlurm() {
		return // slurmctld keeps jobs pending that fit the node's count
	}
	d.part("anchor", "matches carma.toml", func(say func(Level, string, string)) {
		at := slices.IndexFunc(d.SlurmConf.Nodes, func(n slurmconf.Record) bool { return n.Name == anchorName })
		if !d.Config.Capacity.Anchor {
			if at >= 0 {
				say(Warn, "slurm.conf has an anchor, but with capacity.anchor=false it is not used",
					"set capacity.anchor = true, or remove "+anchorName+" from slurm.conf")
			}
			return
		}
		if at < 0 {
			say(Fail, "slurm.conf has no node "+anchorName+": jobs that fit nowhere now are refused",
				"add it (contrib/slurm/slurm.conf), or set capacity.anchor = false")
			return
		}
		d.anchorLine(d.SlurmConf.Nodes[at], say)
		d.shapes(say)
		d.anchors(say)
	})
}

// anchors tells whether there are enough for jobs on several nodes, and what must be said of each.
func (d *diagnosis) anchors(say func(Level, string, string)) {
	var all []string
	for _, n := range d.SlurmConf.Nodes {
		if names, err := hostlist.Expand(n.Name); err == nil && isAnchor(n) {
			all = append(all, names...)
		}
	}
	// Power saving acts on nodes that are down, too (power_save.c of 22.05 to 26.05).
	if program := d.setting("SuspendProgram"); program != "" && program != "(null)" &&
		!has(strings.ToUpper(d.setting("SuspendExcStates")), "DOWN") {
		acted := slices.DeleteFunc(slices.Clone(all), func(name string) bool {
			return hostlist.Contains(d.setting("SuspendExcNodes"), name)
		})
		if names := strings.Join(acted, ","); names != "" {
			say(Fail, "power saving would call SuspendProgram for "+names, "add "+names+" to SuspendExcNodes=")
		}
	}
	for _, name := range d.Config.PartitionNames() {
		lines, partition, ok := d.nodesOf(name)
		if !ok {
			continue
		}
		most := min(nodesIn(partition, lines), enoughAnchors)
		if n := number(partition.Get("MaxNodes")); n > 0 {
			most = min(most, int(n))
		}
		there := 0
		for _, anchor := range all {
			if inPartition(partition, anchor) {
				there++
			}
		}
		if inPartition(partition, anchorName) && there < most {
			say(Warn, fmt.Sprintf("partition %s has fewer anchors (%d) than nodes: jobs on several nodes that share GPUs, or "+
				"take some GPUs of each node, are refused while too few nodes offer what they ask for", name, there),
				fmt.Sprintf("%s with the rest of %s's line, also in Nodes= of the partition", moreAnchors(most), anchorName))
		}
	}
}

// moreAnchors is what slurm.conf calls the anchors beyond the first, so that there are n, and their
// addresses: a slurmctld that was built without --enable-multiple-slurmd wants as many.
func moreAnchors(n int) string {
	if n == 2 {
		return "NodeName=" + anchorName + "2 NodeAddr=127.0.0.2"
	}
	return fmt.Sprintf("NodeName=%s[2-%d] NodeAddr=127.0.0.[2-%[2]d]", anchorName, n)
}

func (d *diagnosis) anchorLine(anchor slurmconf.Record, say func(Level, string, string)) {
	if state := strings.ToUpper(anchor.Get("State")); !strings.HasPrefix(state, "DOWN") {
		say(Fail, anchorName+" is not State=DOWN", "State=DOWN Reason="+anchorName)
	}
	sums := counts(anchor.Get("Gres"))
	for _, name := range d.Config.PartitionNames() {
		p := d.Config.Partition[name]
		lines, partition, ok := d.nodesOf(name)
		if !ok {
			continue
		}
		if !inPartition(partition, anchorName) {
			say(Fail, "partition "+name+" has no "+anchorName+": its jobs that fit nowhere now are refused",
				"add "+anchorName+" to PartitionName="+name+" Nodes=")
		}
		for _, gres := range append([]string{tres.GPU}, carmaNames(p.GPUsPerNode)...) {
			least := p.GPUMemMiB
			if gres == tres.GPU {
				least = int64(p.GPUsPerNode)
			}
			if sums[gres] < least {
				say(Fail, fmt.Sprintf("%s has %s:%d, jobs of partition %s may ask for %d", anchorName, gres, sums[gres], name,
					least), "give it a large count: "+inSlurmConf(gres, anchorMiB))
				break
			}
		}
		for _, n := range lines {
			for _, feature := range words(featuresOf(n)) {
				if !has(featuresOf(anchor), feature) {
					say(Fail, fmt.Sprintf("%s has no feature %s, node %s has: jobs with --constraint=%s that fit nowhere now are "+
						"refused", anchorName, feature, n.Name, feature), "Features="+featuresOf(n)+" for "+anchorName)
				}
			}
		}
		if partition.Get("DefMemPerCPU") == "" && partition.Get("DefMemPerNode") == "" && d.setting("DefMemPerCPU") == "" &&
			d.setting("DefMemPerNode") == "" && d.setting("DefMemPerGPU") == "" {
			say(Warn, "partition "+name+" has no default memory: jobs are shown with the anchor's",
				"DefMemPerCPU= for the partition")
		}
	}
}

func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (d *diagnosis) partitions() {
	d.part("partitions", "match carma.toml", func(say func(Level, string, string)) {
		for _, name := range d.Config.PartitionNames() {
			p := d.Config.Partition[name]
			lines, line, ok := d.nodesOf(name)
			if !ok {
				say(Fail, "slurm.conf has no partition "+name,
					"PartitionName="+name+" in slurm.conf, or remove [partition."+name+"] from "+d.ConfigPath)
				continue
			}
			if isDefault := strings.EqualFold(line.Get("Default"), "YES"); isDefault != p.Default {
				say(Fail, fmt.Sprintf("partition %s has Default=%s in slurm.conf and default = %v in carma.toml", name,
					cmp.Or(line.Get("Default"), none), p.Default),
					fmt.Sprintf("[partition.%s] default = %v", name, isDefault))
			}
			if p.Share && line.Get("LLN") == "" && nodesIn(line, lines) > 1 &&
				!has(d.setting("SelectTypeParameters"), "CR_LLN") {
				// The site may say NO.
				say(Warn, "partition "+name+" has no LLN: jobs go to the first node with room, and share GPUs there while "+
					"others are idle", "PartitionName="+name+" LLN=YES")
			}
			if len(lines) == 0 {
				say(Fail, "partition "+name+" has no node that slurm.conf describes", "check Nodes= of PartitionName="+name)
			}
			d.recovery(name, p.Recovery, say)
			timeSlot(line, p.TimeSlot.D(), say)
		}
	})
}

// timeSlot compares a partition's time slot with its MaxTime: libcarma knows the slot alone.
func timeSlot(partition slurmconf.Record, slot time.Duration, say func(Level, string, string)) {
	if slot == 0 {
		return
	}
	text := cmp.Or(partition.Get("MaxTime"), "INFINITE")
	name, do := partition.Name, fmt.Sprintf("PartitionName=%s MaxTime=%d:%02d:00", partition.Name, int(slot.Hours()),
		int(slot.Minutes())%60)
	switch most, ok := slurmtime.Limit(text); {
	case !ok:
		say(Fail, fmt.Sprintf("partition %s has MaxTime=%s, which is no time", name, text), do)
	case most < slot:
		say(Fail, fmt.Sprintf("partition %s has MaxTime=%s, less than its time slot: jobs without a time limit get the slot "+
			"as their limit, and never start", name, text), do)
	case most > slot:
		say(Warn, fmt.Sprintf("partition %s has MaxTime=%s, more than its time slot: a job that is accepted as written, "+
			"without an answer of libcarma, may run so long", name, text), do)
	}
}

// recovery asks whether a requeued job can run where carma.toml sends it.
func (d *diagnosis) recovery(name, recovery string, say func(Level, string, string)) {
	if recovery == "" {
		if p := d.Config.Partition[name]; p.Share {
			say(Warn, "partition "+name+" has no recovery partition: a job that ran out of GPU memory stays failed",
				"[partition."+name+"] recovery = \"...\"")
		}
		return
	}
	// That it is missing or empty is said for itself.
	_, line, _ := d.nodesOf(recovery)
	if state := line.Get("State"); state != "" && !strings.EqualFold(state, "UP") {
		say(Fail, "recovery partition "+recovery+" is State="+state, "PartitionName="+recovery+" State=UP")
	}
}
