// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"

	"carma/slurmbridge/config"
)

// ActsBy returns the first line of slurm.conf that has CARMA act, NAME=VALUE; empty: there is none.
func ActsBy(setting func(name string) string) (line string) {
	for _, name := range []string{"Prolog", "TaskProlog", "Epilog", "JobSubmitPlugins"} {
		if v := setting(name); strings.Contains(v, "carma") {
			return name + "=" + v
		}
	}
	return ""
}

// observing judges an agent that only observes (docs/adr/0022-observe.md): Slurm needs no line for
// such an agent, and no line may have CARMA act. Advice comes from the plugin alone.
func observing(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	advises := f.Config.Mode == config.ModeAdvise
	line, plugin := "", false
	if f.SlurmConfErr == nil {
		line, plugin = ActsBy(d.setting), has(d.setting("JobSubmitPlugins"), "carma")
	}
	mode := fmt.Sprintf("%s has mode = %q", f.ConfigPath, f.Config.Mode)
	if f.NoConfig {
		mode = "there is no " + f.ConfigPath
	}
	fine := mode
	switch {
	case advises:
		fine += ": jobs run as written, with an estimate in AdminComment"
	case !f.NoConfig || line == "": // else the agent does not start
		fine += ": jobs are measured and recorded, and nothing is changed"
	}
	d.part("carma.toml", fine, func(say func(Level, string, string)) {
		if advises && len(f.Config.Partition) == 0 {
			say(Fail, mode+", and no partition", "add a [partition.NAME] for each partition with GPUs")
		}
		if advises && f.Disabled {
			say(Warn, "switched off, so that no job gets an estimate: carma.disable is in the same directory",
				"remove carma.disable to switch CARMA on again")
		}
	})
	d.slurm()
	if f.SlurmConfErr == nil {
		fine := "has no line that has CARMA act"
		if plugin {
			does := "changes no job"
			if advises {
				does = "writes estimates and changes no request"
			}
			fine = fmt.Sprintf("JobSubmitPlugins names carma, which %s while mode = %q; no other line has CARMA act", does,
				f.Config.Mode)
		}
		d.part("slurm.conf", fine, func(say func(Level, string, string)) { observed(d, line, plugin, say) })
	}
	if f.Controller != nil && (advises || plugin) && !f.NoConfig {
		d.controller()
		if advises {
			d.history()
		}
	}
	if f.Node != nil {
		d.gpus()
		d.state()
	}
	return d.findings
}

// observed looks at slurm.conf for an agent in observe mode; line is the first by which CARMA acts.
func observed(d *diagnosis, line string, plugin bool, say func(Level, string, string)) {
	advises := d.Config.Mode == config.ModeAdvise
	switch {
	case line != "" && d.NoConfig:
		say(Fail, fmt.Sprintf("it has %s, and there is no %s: the agent does not start", line, d.ConfigPath),
			"restore the file, or take CARMA's lines out of slurm.conf")
		return
	case line != "" && !strings.HasPrefix(line, "JobSubmitPlugins="):
		say(Fail, "it has "+line+": hooks lease GPUs, and the agent only observes",
			"take CARMA's lines out of slurm.conf, or set mode = \"share\" in "+d.ConfigPath)
	case advises && !plugin:
		say(Fail, "JobSubmitPlugins does not name carma: no job gets an estimate",
			"add carma to JobSubmitPlugins in slurm.conf, and restart slurmctld")
	}
	if !advises {
		return
	}
	pluginDirs(d.PluginDirs, say)
	for _, name := range d.Config.PartitionNames() {
		if _, line, ok := d.nodesOf(name); !ok {
			say(Fail, "slurm.conf has no partition "+name+": no job gets an estimate there",
				"give [partition."+name+"] the name in slurm.conf")
		} else {
			sameDefault(name, line, d.Config.Partition[name], say)
		}
	}
	d.stale(say, "JobSubmitPlugins", "PluginDir")
}
