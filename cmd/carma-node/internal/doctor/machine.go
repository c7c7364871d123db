// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"carma/db/figure"
	"carma/gres/confine"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/slurmconf"
	"carma/slurmbridge/tres"
)

// controller looks at slurmctld's plugins. A plugin that fails to load keeps
// slurmctld from starting, so ask before a restart.
func (d *diagnosis) controller() {
	c := d.Controller
	d.part("plugin", "built for Slurm "+versionText(c.PluginVersion), func(say func(Level, string, string)) {
		switch {
		case c.PluginPath == "":
			say(Fail, "no job_submit_carma.so in PluginDir="+cmp.Or(d.setting("PluginDir"), none),
				"install slurm-plugin-carma, or link job_submit_carma.so into Slurm's plugin directory")
			return
		case c.PluginErr != nil:
			say(Fail, c.PluginErr.Error(), "install slurm-plugin-carma again before slurmctld restarts")
		case c.PluginVersion != d.Installed:
			say(Fail, fmt.Sprintf("%s is built for Slurm %s, installed is %s: slurmctld would not start", c.PluginPath,
				versionText(c.PluginVersion), versionText(d.Installed)),
				"install slurm-plugin-carma for "+versionText(d.Installed)+" before slurmctld restarts")
		}
		if c.LibraryErr != nil {
			switch d.Config.Mode {
			case config.ModeShare:
				say(Fail, "jobs are accepted as written: "+c.LibraryErr.Error(), "install slurm-plugin-carma again")
			case config.ModeAdvise:
				say(Fail, "no job gets an estimate: "+c.LibraryErr.Error(), "install slurm-plugin-carma again")
			}
		} else if !c.Library.safe() {
			say(Fail, c.Library.Path+" can be changed by users other than root, and slurmctld runs it",
				"chown root "+c.Library.Path+"; chmod 644 "+c.Library.Path)
		}
	})
	d.part("permissions", "carma.toml belongs to root", func(say func(Level, string, string)) {
		if !c.ConfigFile.safe() {
			say(Fail, c.ConfigFile.Path+" can be changed by users other than root",
				"chown root "+c.ConfigFile.Path+"; chmod 644 "+c.ConfigFile.Path)
		} else if c.ConfigFile.Mode.Perm()&0o004 == 0 {
			say(Warn, c.ConfigFile.Path+" cannot be read by users: carma-estimate and carma-report need it",
				"chmod 644 "+c.ConfigFile.Path)
		}
	})
}

// historyLate is the greatest age of the history file; the timer writes the file every ten minutes.
const historyLate = 24 * time.Hour

// history looks at job_submit's knowledge of earlier runs. Without a history all works, but
// a job of `#CARMA on` has a GPU of its own each time, and its user waits for what never
// comes; where the plugin only advises, such a job gets no estimate.
func (d *diagnosis) history() {
	file := d.Config.History.File
	if file == "" {
		return
	}
	age := d.Controller.HistoryAge.Truncate(time.Minute)
	d.part("history", fmt.Sprintf("%s was written %s ago", file, age), func(say func(Level, string, string)) {
		const do = "systemctl enable --now carma-history.timer (docs/admin.md: records, slurmdbd, what is learned); " +
			"or history.file = \"\" in carma.toml"
		effect := "run exclusively each time"
		if d.Config.Observes() {
			effect = "get no estimate"
		}
		if err := d.Controller.HistoryErr; errors.Is(err, fs.ErrNotExist) {
			say(Warn, "nothing is learned, so jobs with `#CARMA on` "+effect+": no "+file, do)
		} else if err != nil {
			say(Warn, "read what was learned: "+err.Error(), "run the doctor as root")
		} else if age > historyLate {
			say(Warn, fmt.Sprintf("%s was written %s ago: what jobs have used since then is unknown", file, age), do)
		}
	})
}

// node looks at a GPU node. slurm.conf names the hooks for every node, so a node
// in no partition of CARMA's needs the hooks too, and nothing else.
func (d *diagnosis) node() {
	d.hooks()
	d.spank()
	if d.SlurmConfErr == nil && !slices.ContainsFunc(d.Config.PartitionNames(), d.inOurs) {
		what := "it needs the hooks only"
		if d.Node.Elsewhere {
			what = "the hooks leave jobs there the GPUs that Slurm gives"
		}
		d.add(Pass, "node", d.Node.Name+" is in no partition of carma.toml; "+what, "")
		return
	}
	d.registration()
	d.slots()
	d.gpus()
	d.confinement()
	d.memoryLimits()
	d.mps()
	d.state()
}

func (d *diagnosis) hooks() {
	d.part("hooks", "are there, and root's", func(say func(Level, string, string)) {
		for _, h := range hookNames {
			p, ok := d.Node.Hooks[h.setting]
			switch {
			case !ok: // said by settings
			case p.Err != nil:
				say(Fail, h.setting+": "+p.Err.Error(), "install carma-node, or correct "+h.setting+" in slurm.conf")
			case p.Mode.Perm()&0o111 == 0:
				say(Fail, h.setting+": "+p.Path+" is not executable: every job drains the node", "chmod 755 "+p.Path)
			case !p.safe():
				say(Fail, h.setting+": "+p.Path+" can be changed by users other than root",
					"chown root "+p.Path+"; chmod 755 "+p.Path)
			}
		}
	})
}

// A registration whose count differs from the last one's while jobs hold the
// GRES makes a node INVAL until slurmd registers with none held
// (gres.c, _node_config_validate, all versions from 22.05 to 26.05).
var countChanged = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\bcarma count changed and jobs are using them`)
})

func (d *diagnosis) registration() {
	n := d.Node
	if d.RunningErr != nil {
		return // the silence is reported already
	}
	d.part("node", n.Name+" is "+n.State, func(say func(Level, string, string)) {
		state := strings.ToUpper(n.State)
		switch {
		case n.StateErr != nil:
			say(Warn, "slurmctld does not tell the node's state: "+n.StateErr.Error(), "run it again when slurmctld answers")
		case n.State == "":
			say(Fail, "slurmctld has no node "+n.Name, "give --node the name in slurm.conf")
		case countChanged().MatchString(n.Reason):
			say(Fail, n.Name+" is "+n.State+": "+n.Reason,
				"when its jobs have ended: systemctl restart slurmd; scontrol update NodeName="+n.Name+" State=RESUME")
		case strings.Contains(state, "INVAL") || strings.Contains(state, "DRAIN") || strings.Contains(state, "DOWN") ||
			strings.Contains(state, "FAIL"):
			say(Fail, n.Name+" is "+n.State+": "+cmp.Or(n.Reason, none),
				"fix the reason, then scontrol update NodeName="+n.Name+" State=RESUME")
		default:
			d.counted(say)
		}
	})
}

// counted looks at slurmctld's counts on the node, and at the agent's.
func (d *diagnosis) counted(say func(Level, string, string)) {
	n, want := d.Node, counts(d.nodeRecord().Get("Gres"))[tres.Carma]
	if got := counts(n.Gres)[tres.Carma]; got != want {
		say(Fail, fmt.Sprintf("slurmctld counts carma:%d on %s, slurm.conf %d", got, n.Name, want),
			"restart slurmctld, then slurmd on "+n.Name)
	}
	text, asked := d.Extras[n.Name]
	if !d.publishes() || !asked || n.LedgerErr != nil {
		return
	}
	if told, err := extra.Counts(text); err == nil && len(told) == 0 {
		say(Warn, "the Extra of "+n.Name+" has no count of CARMA's: jobs that share do not start there",
			"systemctl restart carma-node; its log says why nothing is published")
	}
}

// nodeRecord is slurm.conf's line of the node.
func (d *diagnosis) nodeRecord() slurmconf.Record {
	for _, n := range d.SlurmConf.Nodes {
		if hostlist.Contains(n.Name, d.Node.Name) {
			return n
		}
	}
	return slurmconf.Record{}
}

func (d *diagnosis) slots() {
	n := d.Node
	d.part("gres.conf", fmt.Sprintf("names %d slots", len(n.Slots)), func(say func(Level, string, string)) {
		if n.GresConfErr != nil {
			say(Fail, n.GresConfErr.Error(), "write gres.conf as contrib/slurm/gres.conf does")
			return
		}
		if v := n.GresConf.Setting("AutoDetect"); v != "" && !strings.EqualFold(v, "off") {
			say(Fail, "AutoDetect="+v+" finds the real GPUs and not the slots",
				"remove AutoDetect from gres.conf for CARMA's nodes")
		}
		if len(n.Slots) == 0 {
			say(Fail, "gres.conf has no Name=gpu File= for "+n.Name, "Name=gpu File=/dev/carma/slot[0-...]")
		}
		d.gresCounts(say)
		for _, s := range n.Slots {
			switch {
			case s.Err != nil:
				say(Fail, "slot "+s.Err.Error(), "systemd-tmpfiles --create carma.conf carma-slots.conf")
				return
			case s.Major == confine.NVIDIAMajor && n.Constrained:
				say(Fail, s.Path+" is a real GPU: ConstrainDevices keeps jobs from the GPUs that CARMA gives them",
					"name the slots of /dev/carma in gres.conf")
				return
			}
		}
	})
}

// gresCounts compares gres.conf with slurm.conf: a node that registers with less
// is drained, "count reported lower than configured".
func (d *diagnosis) gresCounts(say func(Level, string, string)) {
	configured, registered := counts(d.nodeRecord().Get("Gres")), map[string]int64{}
	for _, r := range d.Node.GresConf.Other {
		name := r.Get("Name")
		if name == "" { // the line begins with Name=
			name = r.Name
		} else if !hostlist.Contains(r.Name, d.Node.Name) {
			continue
		}
		if count := r.Get("Count"); count != "" {
			registered[name] += counts(name + ":" + count)[name]
		}
	}
	if n := int64(len(d.Node.Slots)); n > 0 && n < configured[tres.GPU] {
		say(Fail, fmt.Sprintf("it names %d slots, slurm.conf counts gpu:%d: the node is drained when it registers", n,
			configured[tres.GPU]), fmt.Sprintf("Name=gpu File=/dev/carma/slot[0-%d]", configured[tres.GPU]-1))
	}
	if n, ok := registered[tres.Carma]; ok && n < configured[tres.Carma] {
		say(Fail, fmt.Sprintf("Name=carma Count=%d is less than slurm.conf's %d: the node is drained when it registers", n,
			configured[tres.Carma]), "remove the line Name=carma: slurm.conf has the count")
	}
}

func (d *diagnosis) gpus() {
	d.part("gpus", fmt.Sprintf("NVML shows %d", len(d.Node.Samples)), func(say func(Level, string, string)) {
		if d.Node.NVMLErr != nil {
			say(Fail, d.Node.NVMLErr.Error(), "install the NVIDIA driver, or set nvml.library in "+d.ConfigPath)
			return
		}
		gpus, unread, source := 0, 0, figure.SourceNone
		for _, s := range d.Node.Samples {
			if s.Unreadable != "" {
				say(Fail, fmt.Sprintf("GPU %d cannot be read: %s", s.Index, s.Unreadable), "see nvidia-smi and the kernel's log")
				unread++
				continue
			}
			source = s.Source
			if gpus++; s.MIG {
				continue
			}
			for _, name := range d.Config.PartitionNames() {
				p := d.Config.Partition[name]
				if d.inOurs(name) && !s.Whole(p.GPUMemMiB) {
					say(Fail, fmt.Sprintf("GPU %d has %d MiB, [partition.%s] says %d", s.Index, s.TotalMiB, name, p.GPUMemMiB),
						fmt.Sprintf("gpu_mem_mib = %d", s.TotalMiB))
				}
			}
		}
		for _, name := range d.Config.PartitionNames() {
			if p := d.Config.Partition[name]; d.inOurs(name) && (gpus > p.GPUsPerNode || gpus+unread < p.GPUsPerNode) {
				say(Fail, fmt.Sprintf("NVML shows %d GPUs, [partition.%s] says %d", gpus, name, p.GPUsPerNode),
					fmt.Sprintf("gpus_per_node = %d", gpus))
			}
		}
		if gpus > 0 && source.Coarse() && !d.Node.DCGMI {
			say(Warn, "SM activity is known only as NVML utilisation, which overstates it",
				"install DCGM (dcgmi), and set smact.dcgmi if it is not "+d.Config.SMAct.DCGMI)
		}
	})
}

// accessLists is a guard of users, not of jobs (confine.Guard, Exact).
const accessLists = "access lists"

// confinement tells the guard between a job's tasks and others' GPUs.
func (d *diagnosis) confinement() {
	n, fine := d.Node, "jobs are confined by "+d.Node.Guard
	counts := n.Guard != "" && n.Guard != accessLists && d.Config.Devices.Names != "uuid"
	switch {
	case counts && d.Config.Devices.Confine != "none":
		fine += ", and CUDA_VISIBLE_DEVICES counts a job's GPUs from 0"
	case d.Config.Devices.Confine == "none":
		fine = "jobs are not confined to their GPUs, as devices.confine says"
	case n.Guard == "":
		fine = d.Config.DevicesDir(n.Name) + " has no device nodes of GPUs"
	}
	d.part("confinement", fine, func(say func(Level, string, string)) {
		const mend = "ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup in slurm.conf, ConstrainDevices=yes in " +
			"cgroup.conf"
		switch {
		case n.GuardErr != nil && d.Config.Devices.Confine == "auto":
			say(Warn, "a task can open every GPU: "+oneLine(n.GuardErr), mend)
		case n.GuardErr != nil:
			say(Fail, "jobs wait because they cannot be confined: "+oneLine(n.GuardErr), mend+"; or devices.confine = \"auto\"")
		case n.Guard == accessLists:
			text := "jobs are confined by access lists: a user's jobs can open each other's GPUs"
			if d.Config.Devices.Names == "ordinal" {
				text += ", and devices.names = \"ordinal\" has no effect: CUDA_VISIBLE_DEVICES has UUIDs"
			}
			say(Warn, text, mend)
		}
		if line := n.TaskPrologSets; line > 0 {
			say(Warn, fmt.Sprintf("%s line %d sets CUDA_VISIBLE_DEVICES after carma-task-prolog: jobs look for other GPUs "+
				"than their own", n.Hooks["TaskProlog"].Path, line), "call carma-task-prolog last")
		}
		for _, file := range n.SetsDevices {
			say(Warn, file+" sets CUDA_VISIBLE_DEVICES: a job whose script is a login shell (#!/bin/bash -l) looks for other "+
				"GPUs than its own", "take "+file+" out, or let it be for sessions without SLURM_JOB_ID")
		}
	})
}

// memoryLimits tells the means to hold jobs to their booked GPU memory.
func (d *diagnosis) memoryLimits() {
	by := "the driver's own accounting"
	if d.Node.Dmem {
		by = "the kernel's dmem controller"
	}
	fine := "the GPU memory of each job is limited to its booking by " + by
	if d.Node.UnlimitedBy != nil {
		fine = "MPS alone limits jobs that share a GPU: " + oneLine(d.Node.UnlimitedBy)
	}
	d.part("memory", fine, func(say func(Level, string, string)) {
		if d.Node.UnlimitedBy != nil && !d.Config.MPS.Enabled && d.Config.Placement.MaxJobs > 1 {
			say(Warn, "nothing limits the memory of jobs that share a GPU: "+oneLine(d.Node.UnlimitedBy), "mps.enabled = true")
		}
	})
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// inOurs tells whether a partition holds this node.
func (d *diagnosis) inOurs(partition string) bool {
	_, line, ok := d.nodesOf(partition)
	return ok && line.HasNode(d.Node.Name)
}

// oldestMPS is the oldest driver whose MPS daemons are used (docs/admin.md, several users
// on one GPU).
const oldestMPS = 550

func (d *diagnosis) mps() {
	if !d.Config.MPS.Enabled {
		return
	}
	d.part("mps", d.Node.MPS.Path+" is there", func(say func(Level, string, string)) {
		if d.Node.MPS.Err != nil {
			say(Fail, "MPS: "+d.Node.MPS.Err.Error()+": jobs are time-sliced, without a memory limit",
				"set mps.control, or mps.enabled = false if that is intended")
		}
		if major, _, _ := strings.Cut(d.Node.Driver, "."); d.Node.Driver != "" && number(major) < oldestMPS {
			say(Fail, "MPS of driver "+d.Node.Driver+": any user may change its settings, and it does not report faults; "+
				"the agent does not use it", fmt.Sprintf("install driver %d or later, or set mps.enabled = false", oldestMPS))
		}
	})
}

// stale is how old the agent's last look at the GPUs may be.
const stale = 30 * time.Second

func (d *diagnosis) state() {
	n := d.Node
	d.part("agent", "sees the GPUs", func(say func(Level, string, string)) {
		switch {
		case n.LedgerErr != nil:
			say(Fail, n.LedgerErr.Error(), "systemctl start carma-node, and run the doctor as root")
		case n.AgentAge > stale+d.Config.NVML.Interval.D():
			say(Fail, fmt.Sprintf("the agent last saw the GPUs %s ago", n.AgentAge.Round(time.Second)),
				"systemctl restart carma-node")
		}
		if n.RunDir.Err == nil && !n.RunDir.safe() {
			say(Fail, n.RunDir.Path+" can be written by users other than root: they could forge leases",
				"chown root "+n.RunDir.Path+"; chmod 755 "+n.RunDir.Path)
		}
		if n.RunDir.Err == nil && !n.OnTmpfs {
			say(Warn, n.RunDir.Path+" is not on tmpfs: after a reboot old leases stay until the agent has checked them",
				"set paths.run_dir to a directory below /run")
		}
	})
	d.part("database", d.Config.DBPath(n.Name)+" can be written", func(say func(Level, string, string)) {
		if n.DBErr != nil {
			say(Fail, n.DBErr.Error(), "set paths.db to a directory that root owns, on a local disk")
		}
	})
}
