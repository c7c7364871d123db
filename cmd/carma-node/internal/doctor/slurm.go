// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/slurmbridge/sctl"
	"carma/slurmbridge/tres"
)

var lower = strings.ToLower

func (d *diagnosis) configuration() {
	d.part("carma.toml", d.ConfigPath+" can be read", func(say func(Level, string, string)) {
		switch {
		case d.ConfigErr != nil:
			say(Fail, d.ConfigErr.Error(), "correct it; contrib/slurm/carma.toml explains every key")
			return
		case len(d.Config.Partition) == 0:
			say(Fail, "no partition is CARMA's", "add a [partition.NAME] to "+d.ConfigPath)
		}
		if d.Disabled {
			say(Warn, "switched off: carma.disable is in the same directory", "remove carma.disable to switch CARMA on again")
		}
	})
}

// Munge tolerates a skew of 300 s by default; job records suffer earlier.
const (
	skewWarn = 5 * time.Second
	skewFail = 4 * time.Minute
)

func (d *diagnosis) slurm() {
	d.part("slurm", "slurmctld "+d.Running["slurm_version"]+" answers", func(say func(Level, string, string)) {
		if d.RunningErr != nil {
			say(Warn, "slurmctld does not answer: "+d.RunningErr.Error(),
				"start it; until then the doctor uses slurm.conf alone")
		}
		if d.SlurmConfErr != nil {
			say(Fail, d.SlurmConfErr.Error(), "make slurm.conf readable, or set slurm.conf in "+d.ConfigPath)
		}
		if d.Installed == (sctl.Version{}) {
			say(Fail, "Slurm's commands do not answer in "+d.Config.Slurm.BinDir, "set slurm.bin_dir in "+d.ConfigPath)
		} else if d.Installed.Before(22, 5) {
			say(Fail, "CARMA needs Slurm 22.05 or later; this is "+versionText(d.Installed),
				"update Slurm to 22.05 or later; 24.11 or later is recommended")
		} else if v := d.Running["slurm_version"]; v != "" && v != versionText(d.Installed) {
			say(Warn, fmt.Sprintf("slurmctld is %s, the commands here are %s", v, versionText(d.Installed)),
				"restart slurmctld once the plugin fits, or update this machine")
		}
		if d.Federation != "" && !d.Config.Observes() {
			say(Fail, "the cluster belongs to federation "+d.Federation+": a job that another cluster has submitted can be "+
				"neither returned to the queue nor requeued here",
				"use clusters without a federation (sbatch -M); docs/situations.md")
		}
		if v := d.Installed; v.Major == 25 && (v.Minor == 5 || v.Minor == 11 && v.Micro < 7) && !d.Config.Observes() {
			say(Warn, "Slurm "+versionText(v)+" forgets the licences of a job that is requeued: it runs again without them",
				"update Slurm to 25.11.7 or later where jobs ask for licences")
		}
		if skew := d.Skew.Abs(); skew > skewFail {
			say(Fail, fmt.Sprintf("the clock differs from slurmctld's by %s", d.Skew.Round(time.Second)),
				"synchronise the clocks: munge refuses messages if they differ by 300 s")
		} else if skew > skewWarn {
			say(Warn, fmt.Sprintf("the clock differs from slurmctld's by %s", d.Skew.Round(time.Second)),
				"synchronise the clocks: waiting and start times are wrong")
		}
	})
}

func versionText(v sctl.Version) string {
	return fmt.Sprintf("%d.%02d.%d", v.Major, v.Minor, v.Micro)
}

func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func has(list, word string) bool {
	return slices.ContainsFunc(words(list), func(w string) bool { return strings.EqualFold(w, word) })
}

func (d *diagnosis) settings() {
	d.part("slurm.conf", "has CARMA's lines", func(say func(Level, string, string)) {
		pluginDirs(d.PluginDirs, say)
		d.submitSettings(say)
		d.gresSettings(say)
		d.hookSettings(say)
		d.timeSettings(say)
		if v := d.setting("SelectType"); v != "" && v != "select/cons_tres" {
			say(Fail, "SelectType="+v+" does not count GRES per node, which CARMA needs", "SelectType=select/cons_tres")
		}
		params := d.setting("SchedulerParameters")
		for _, word := range []string{"nohold_on_prolog_fail", "bf_continue"} {
			if !has(params, word) {
				say(Warn, "SchedulerParameters lacks "+word, "add "+word+" to SchedulerParameters")
			}
		}
		if v := d.setting("JobRequeue"); v == "0" && d.Config.Recovers() {
			say(Warn, "JobRequeue=0: no job is requeued after OOM unless submitted with --requeue", "JobRequeue=1")
		}
		d.accountingSettings(say)
		d.preemptSettings(say)
		d.stale(say, "JobSubmitPlugins", "GresTypes", "Prolog", "Epilog", "TaskProlog", "PrologFlags", "PluginDir",
			"SchedulerParameters")
	})
}

func (d *diagnosis) submitSettings(say func(Level, string, string)) {
	plugins := words(d.setting("JobSubmitPlugins"))
	switch at := slices.Index(plugins, "carma"); {
	case at < 0:
		say(Fail, "JobSubmitPlugins lacks carma: no job is annotated",
			"JobSubmitPlugins="+strings.Join(append(plugins, "carma"), ","))
	case at != len(plugins)-1:
		rest := slices.Delete(slices.Clone(plugins), at, at+1)
		say(Warn, "JobSubmitPlugins runs "+strings.Join(plugins[at+1:], ", ")+" after carma, which may undo its booking",
			"JobSubmitPlugins="+strings.Join(append(rest, "carma"), ","))
	}
}

// pluginDirs: with a missing directory nothing of Slurm starts ("Bad value for
// PluginDir", read_config.c, 22.05 to 26.05), and all machines read the same line.
func pluginDirs(dirs []Path, say func(Level, string, string)) {
	for _, dir := range dirs {
		if dir.Err != nil {
			say(Fail, "PluginDir: "+dir.Err.Error()+": no daemon and no command of Slurm starts here",
				"remove "+dir.Path+" from PluginDir; the packages do not need it")
		}
	}
}

func (d *diagnosis) gresSettings(say func(Level, string, string)) {
	types := d.setting("GresTypes")
	var lacks []string
	for _, name := range []string{tres.GPU, tres.Carma} {
		if !has(types, name) {
			lacks = append(lacks, name)
		}
	}
	if len(lacks) > 0 {
		say(Fail, "GresTypes lacks "+strings.Join(lacks, ", "), "GresTypes="+strings.Join(append(words(types), lacks...),
			","))
	}
}

// hookNames are the hooks that slurm.conf must name, and how.
var hookNames = []struct{ setting, command string }{{"Prolog", "prolog"}, {"TaskProlog", "task-prolog"},
	{"Epilog", "epilog"}}

func (d *diagnosis) hookSettings(say func(Level, string, string)) {
	for _, h := range hookNames {
		if d.setting(h.setting) == "" && !(h.setting == "TaskProlog" && d.SPANK.Named()) {
			say(Fail, h.setting+" is not set", h.setting+"=/usr/sbin/carma-"+h.command+", or call that from a script of "+
				"your own")
		}
	}
	flags := d.setting("PrologFlags")
	if !has(flags, "Alloc") && !has(flags, "Contain") && !has(flags, "X11") { // both imply Alloc
		say(Fail, "PrologFlags lacks Alloc: steps start before a GPU is leased", "PrologFlags=Alloc")
	}
	if has(flags, "RunInJob") {
		say(Warn, "PrologFlags=RunInJob runs the Prolog inside the job's cgroup: without the agent it cannot read the GPUs",
			"remove RunInJob from PrologFlags")
	}
	if has(flags, "Serial") {
		say(Fail, "PrologFlags=Serial: a Prolog that waits for a GPU holds up the Epilogs that would free one",
			"remove Serial from PrologFlags")
	}
}

// seconds reads "120", "120 sec"; -1: none. Slurm shows an unset timeout as
// 65534, NO_VAL16.
func seconds(text string) int {
	number, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	n, err := strconv.Atoi(number)
	if err != nil || n >= 65534 {
		return -1
	}
	return n
}

// hookTimeouts are how long slurmd waits for hooks. The second and the third, from 25.05 on, replace the first.
var hookTimeouts = []string{"PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"}

func (d *diagnosis) timeSettings(say func(Level, string, string)) {
	h := d.Config.Hooks
	// A Prolog may wait for GPUs; an Epilog, besides ten parts with a deadline each (prolog: how the job ended, its
	// fate, its booking, putBack's four, comment, the record, the release), for its turn to requeue (turnWait).
	need := int(max(h.Wait.D()+h.WaitInteractive.D()+h.Deadline.D(), 10*h.Deadline.D()+45*time.Second).Seconds()) + 5
	for _, name := range hookTimeouts {
		v := seconds(d.setting(name))
		if v > 0 && v < need {
			say(Fail, fmt.Sprintf("%s=%d is less than a hook may take (%d s): slurmd would drain the node", name, v, need),
				fmt.Sprintf("%s=%d", name, max(150, need)))
		}
	}
}

func (d *diagnosis) accountingSettings(say func(Level, string, string)) {
	if d.setting("AccountingStorageType") != "accounting_storage/slurmdbd" {
		return
	}
	for _, name := range []string{"gres/gpu", "gres/" + tres.Carma} {
		if !has(d.setting("AccountingStorageTRES"), name) {
			say(Warn, "AccountingStorageTRES lacks "+name+": sacct will not show it", "add "+name+" to AccountingStorageTRES")
		}
	}
}

// preemptSettings: a suspended job keeps its memory on the GPUs, so that no other job
// can be given the memory, and CARMA does not know of the suspension.
func (d *diagnosis) preemptSettings(say func(Level, string, string)) {
	for _, p := range d.SlurmConf.Partitions {
		if _, ours := d.Config.Partition[p.Name]; ours {
			suspends(say, "PartitionName="+p.Name+" PreemptMode", p.Get("PreemptMode"))
		}
	}
	kind := strings.TrimPrefix(d.setting("PreemptType"), "preempt/")
	if kind != "partition_prio" && kind != "qos" {
		return
	}
	suspends(say, "PreemptMode", d.setting("PreemptMode"))
	if kind != "partition_prio" {
		return
	}
	for _, name := range d.Config.PartitionNames() {
		recovery := d.Config.Partition[name].Recovery
		_, low, ok1 := d.nodesOf(name)
		_, high, ok2 := d.nodesOf(recovery)
		if ok1 && ok2 && max(number(high.Get("PriorityTier")), 1) > max(number(low.Get("PriorityTier")), 1) &&
			!strings.EqualFold(low.Get("PreemptMode"), "OFF") {
			say(Warn, "jobs of "+recovery+", which were requeued after OOM, may preempt those of "+name+", as its "+
				"PriorityTier is higher",
				"give PartitionName="+recovery+" the PriorityTier of "+name+", or PartitionName="+name+" PreemptMode=OFF")
		}
	}
}

func suspends(say func(Level, string, string), setting, mode string) {
	for _, word := range []string{"SUSPEND", "GANG"} {
		if has(mode, word) {
			say(Fail, setting+"="+mode+": a suspended job keeps its GPU memory, which no other job can use",
				setting+"=REQUEUE or CANCEL")
			return
		}
	}
}

// stale tells of lines that slurmctld has not read yet.
func (d *diagnosis) stale(say func(Level, string, string), names ...string) {
	if d.RunningErr != nil {
		return
	}
	for _, name := range names {
		file, running := d.SlurmConf.Setting(name), d.Running[lower(name)]
		// From 23.11 on several Prologs are shown as Prolog[0] and so on.
		if name == "Prolog" || name == "Epilog" {
			if first, ok := d.Running[lower(name)+"[0]"]; ok {
				running = first
			}
		}
		if file != "" && !sameWords(file, running) {
			do := "restart slurmctld and slurmd, so that they use slurm.conf's " + name
			if name == "JobSubmitPlugins" { // slurmctld's alone
				do = "restart slurmctld, so that it uses slurm.conf's " + name
			}
			say(Warn, fmt.Sprintf("slurmctld still runs with %s=%s", name, cmp.Or(running, none)), do)
		}
	}
}

func sameWords(a, b string) bool {
	x, y := words(lower(a)), words(lower(b))
	for _, w := range x {
		if !slices.Contains(y, w) {
			return false
		}
	}
	return true
}

const none = "(none)"
