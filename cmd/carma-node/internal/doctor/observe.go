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
	why := fmt.Sprintf("%s has mode = %q", f.ConfigPath, f.Config.Mode)
	if f.NoConfig {
		why = "there is no " + f.ConfigPath + ": the agent observes"
	}
	d.part("carma.toml", why, func(say func(Level, string, string)) {
		if advises && len(f.Config.Partition) == 0 {
			say(Fail, why+", and no partition", "add a [partition.NAME] for each partition with GPUs")
		}
	})
	d.slurm()
	if f.SlurmConfErr == nil {
		d.part("slurm.conf", "has no line that has CARMA act", func(say func(Level, string, string)) {
			switch line := ActsBy(d.setting); {
			case line != "" && f.NoConfig:
				say(Fail, fmt.Sprintf("it has %s, and there is no %s: the agent does not start", line, f.ConfigPath),
					"restore the file, or take CARMA's lines out of slurm.conf")
			case line == "" && advises:
				say(Fail, "JobSubmitPlugins does not name carma: no job gets an estimate",
					"add JobSubmitPlugins=carma to slurm.conf, and restart slurmctld")
			case strings.HasPrefix(line, "JobSubmitPlugins="): // by the mode libcarma changes nothing
			case line != "":
				say(Fail, "it has "+line+": hooks lease GPUs, and the agent only observes",
					"take CARMA's lines out of slurm.conf, or set mode = \"share\" in "+f.ConfigPath)
			}
		})
	}
	if advises && f.Controller != nil {
		d.controller()
	}
	if f.Node != nil {
		d.gpus()
		d.state()
	}
	return d.findings
}
