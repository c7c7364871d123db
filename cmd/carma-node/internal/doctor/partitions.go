// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/slurmtime"
	"carma/slurmbridge/tres"
)

// nodesOf returns slurm.conf's lines for the nodes of a partition, and the partition's line.
func (d *diagnosis) nodesOf(partition string) (lines []slurmconf.Record, line slurmconf.Record, ok bool) {
	at := slices.IndexFunc(d.SlurmConf.Partitions, func(p slurmconf.Record) bool { return p.Name == partition })
	if at < 0 {
		return nil, line, false
	}
	line = d.SlurmConf.Partitions[at]
	for _, n := range d.SlurmConf.Nodes {
		names, _ := hostlist.Expand(n.Name)
		if slices.ContainsFunc(names, func(name string) bool { return line.HasNode(name) }) {
			lines = append(lines, n)
		}
	}
	return lines, line, true
}

// nodesIn counts the nodes of a partition described by these lines.
func nodesIn(partition slurmconf.Record, lines []slurmconf.Record) (n int) {
	for _, line := range lines {
		names, _ := hostlist.Expand(line.Name)
		for _, name := range names {
			if partition.HasNode(name) {
				n++
			}
		}
	}
	return n
}

// counts sums a GRES list by name.
func counts(list string) map[string]int64 {
	sums := map[string]int64{}
	for e := range tres.Parse(list) {
		sums[e.Name] += e.Count
	}
	return sums
}

// nodes compares the counts in slurm.conf for the nodes with what the nodes
// have.
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
	memory := int64(p.GPUsPerNode) * p.GPUMemMiB
	if sums[tres.Carma] != memory {
		say(Fail, fmt.Sprintf("%s counts carma:%d; its GPUs have %d MiB", line, sums[tres.Carma], memory),
			fmt.Sprintf("Gres=...,carma:%d", memory))
		return
	}
	for e := range tres.Parse(n.Get("Gres")) {
		if e.Name == tres.Carma && strings.HasPrefix(e.Type, "no_consume") {
			say(Fail, line+": jobs would not consume carma, and slurmctld could start any number of them at once",
				fmt.Sprintf("Gres=...,carma:%d", memory))
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

// sameDefault compares the default partitions of slurm.conf and carma.toml.
func sameDefault(name string, line slurmconf.Record, p config.Partition, say func(Level, string, string)) {
	if isDefault := strings.EqualFold(line.Get("Default"), "YES"); isDefault != p.Default {
		say(Fail, fmt.Sprintf("partition %s has Default=%s in slurm.conf and default = %v in carma.toml", name,
			cmp.Or(line.Get("Default"), none), p.Default),
			fmt.Sprintf("[partition.%s] default = %v", name, isDefault))
	}
}

func (d *diagnosis) partitions() {
	fine := "match carma.toml"
	if names := sharing(&d.Config); names != nil {
		fine += "; jobs that say nothing share in " + strings.Join(names, ", ") + " (directive)"
	}
	d.part("partitions", fine, func(say func(Level, string, string)) {
		for _, name := range d.Config.PartitionNames() {
			p := d.Config.Partition[name]
			lines, line, ok := d.nodesOf(name)
			if !ok {
				text := "slurm.conf has no partition " + name
				if p.Directive != "" {
					text += ", and its directive holds for no job"
				}
				say(Fail, text, "PartitionName="+name+" in slurm.conf, or remove [partition."+name+"] from "+d.ConfigPath)
				continue
			}
			sameDefault(name, line, p, say)
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
			directiveOf(&d.Config, name, say)
			timeSlot(line, p.TimeSlot.D(), say)
		}
		reservations(&d.Facts, say)
	})
}

// sharing returns the partitions whose jobs share although they say nothing.
func sharing(c *config.Config) (names []string) {
	for _, name := range c.PartitionNames() {
		p := c.Partition[name]
		if _, shares := defaultOf(p); shares && p.Share && !recovers(c, name) {
			names = append(names, name)
		}
	}
	return names
}

// defaultOf is what jobs of a partition say that say nothing, and whether they share by that.
func defaultOf(p config.Partition) (directive.Directive, bool) {
	said, err := directive.Directive{}.With(p.Directive, directive.OfPartition)
	return said, p.Directive != "" && err == nil && !said.Off && said.Policy != directive.PolicyExclusive
}

// directiveOf asks whether the keys for jobs that say nothing meet any job that may share.
func directiveOf(c *config.Config, name string, say func(Level, string, string)) {
	p := c.Partition[name]
	said, shares := defaultOf(p)
	ends := said.Signal.Number > 0 || said.Requeue == jobenv.RequeueTimeout // these two need no sharing
	switch key := fmt.Sprintf("[partition.%s] directive", name); {
	case p.Directive == "":
	case recovers(c, name):
		say(Warn, fmt.Sprintf("%s = %q meets no job: CARMA alone moves jobs to this recovery partition, with their booking",
			key, p.Directive), "remove the directive from carma.toml")
	case !p.Share && shares && !ends:
		say(Warn, fmt.Sprintf("%s = %q lets no job share: share = false there", key, p.Directive),
			"share = true in carma.toml, or remove the directive")
	}
}

// recovers tells whether a partition is the recovery partition of another.
func recovers(c *config.Config, name string) bool {
	return slices.ContainsFunc(c.PartitionNames(), func(other string) bool {
		return c.Partition[other].Recovery == name
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
		say(Warn, fmt.Sprintf("partition %s has MaxTime=%s, more than its time slot: its user can raise the time limit of "+
			"a job that waits so far, and a job without an answer of libcarma may have so long a limit", name, text), do)
	}
}

// reservations names the reservations whose jobs run in another partition than CARMA books for: slurmctld puts a job
// with a reservation and without a partition into the reservation's partition (job_mgr.c, _get_job_parts()), after the
// plugin.
func reservations(f *Facts, say func(Level, string, string)) {
	taken := ""
	for _, p := range f.SlurmConf.Partitions {
		if strings.EqualFold(p.Get("Default"), "YES") {
			taken = p.Name
		}
	}
	managed := f.Config.PartitionNames()
	for _, name := range slices.Sorted(maps.Keys(f.Reservations)) {
		runs := f.Reservations[name]
		if runs == taken || !slices.Contains(managed, runs) && !slices.Contains(managed, taken) {
			continue
		}
		how := "are not booked"
		if slices.Contains(managed, taken) {
			how = "are booked as jobs of partition " + taken
		}
		say(Warn, fmt.Sprintf("reservation %s is of partition %s: its jobs that name no partition run there, and %s", name,
			runs, how), fmt.Sprintf("tell its users to submit with --partition=%s --reservation=%s", runs, name))
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
	// A missing or empty partition has its own message.
	_, line, _ := d.nodesOf(recovery)
	if state := line.Get("State"); state != "" && !strings.EqualFold(state, "UP") {
		say(Fail, "recovery partition "+recovery+" is State="+state, "PartitionName="+recovery+" State=UP")
	}
}
