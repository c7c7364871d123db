// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strings"
)

// ActsBy returns the first line of slurm.conf that has CARMA act, NAME=VALUE; empty: there is none.
func ActsBy(setting func(name string) string) (line string) {
	for _, name := range []string{"JobSubmitPlugins", "Prolog", "TaskProlog", "Epilog"} {
		if v := setting(name); strings.Contains(v, "carma") {
			return name + "=" + v
		}
	}
	return ""
}

// observing judges an agent that only observes (docs/adr/0022-observe.md): Slurm needs no line for
// such an agent, and no line may have CARMA act.
func observing(f Facts) []Finding {
	d := &diagnosis{Facts: f}
	why := f.ConfigPath + " has mode = \"observe\""
	if f.NoConfig {
		why = "there is no " + f.ConfigPath + ": the agent observes"
	}
	d.add(Pass, "carma.toml", why, "")
	d.slurm()
	if f.SlurmConfErr == nil {
		d.part("slurm.conf", "has no line that has CARMA act", func(say func(Level, string, string)) {
			switch line := ActsBy(d.setting); {
			case line != "" && f.NoConfig:
				say(Fail, fmt.Sprintf("it has %s, and there is no %s: the agent does not start", line, f.ConfigPath),
					"restore the file, or take CARMA's lines out of slurm.conf")
			case line != "":
				say(Fail, "it has "+line+": hooks and plugin share GPUs, and the agent only observes",
					"take CARMA's lines out of slurm.conf, or set mode = \"share\" in "+f.ConfigPath)
			}
		})
	}
	if f.Node != nil {
		d.gpus()
		d.state()
	}
	return d.findings
}
