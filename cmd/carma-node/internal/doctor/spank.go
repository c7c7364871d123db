// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"

	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

// spankFile is the SPANK plugin's in plugstack.conf, and pyxisFile the file of pyxis.
const (
	spankFile = "spank_carma.so"
	pyxisFile = "spank_pyxis.so"
)

// SPANK is what plugstack.conf says, and CARMA's plugin in it.
type SPANK struct {
	Path    string // of plugstack.conf
	Plugins []slurmconf.Plugin
	File    string // the plugin's
	Version sctl.Version
	Err     error
	Program Path // run by the plugin
}

// SPANKVersion reads which release of Slurm a SPANK plugin was built for.
func SPANKVersion(path string) (sctl.Version, error) {
	return versionOf(path, "plugin_name", "plugin_type", "plugin_version", "slurm_spank_task_init")
}

// position is a plugin's place in the stack; -1: it is not there.
func (s SPANK) position(file string) int {
	return slices.IndexFunc(s.Plugins, func(p slurmconf.Plugin) bool { return p.Name() == file })
}

// Named tells whether plugstack.conf names the plugin of CARMA's.
func (s SPANK) Named() bool { return s.position(spankFile) >= 0 }

// Own is the line of CARMA's; only where Named.
func (s SPANK) Own() slurmconf.Plugin { return s.Plugins[s.position(spankFile)] }

// release is the part of the version that a SPANK plugin and its Slurm have in
// common.
func release(v sctl.Version) string { return fmt.Sprintf("%d.%02d", v.Major, v.Minor) }

// spank judges the plugin; nothing is said where there is neither CARMA's plugin nor
// pyxis.
func (d *diagnosis) spank() {
	s := d.SPANK
	at, pyxis := s.position(spankFile), s.position(pyxisFile)
	if at < 0 && pyxis < 0 {
		return
	}
	good := fmt.Sprintf("%s has %s, for Slurm %s", s.Path, spankFile, release(s.Version))
	d.part("spank", good, func(say func(Level, string, string)) {
		if at < 0 {
			say(Warn, "pyxis enters containers before TaskProlog has set their GPUs",
				"put \"optional /usr/lib/carma/slurm/"+spankFile+"\" before pyxis into "+s.Path)
			return
		}
		unheard := Warn // as TaskProlog tells tasks of their GPUs, too
		if d.setting("TaskProlog") == "" {
			unheard = Fail
		}
		switch {
		case s.Err != nil:
			say(unheard, s.Err.Error()+": slurmd does not load it", "install slurm-spank-carma for this Slurm")
		case d.Installed != (sctl.Version{}) && release(s.Version) != release(d.Installed):
			say(unheard, fmt.Sprintf("%s is for Slurm %s, this is %s: slurmd does not load it",
				s.File, release(s.Version), versionText(d.Installed)), "install slurm-spank-carma for this Slurm")
		}
		if s.Own().Required {
			say(Fail, s.Path+" says \"required\": if the plugin cannot be loaded, no job starts",
				"write \"optional "+s.Own().Path+"\"")
		}
		if p := s.Program; p.Err != nil {
			say(unheard, "the program that it runs: "+p.Err.Error(), "install carma-node, or correct the line in "+s.Path)
		} else if !p.safe() || p.Mode.Perm()&0o111 == 0 {
			say(Fail, p.Path+", which it runs, is not executable or can be changed by users other than root",
				"chown root "+p.Path+"; chmod 755 "+p.Path)
		}
		if pyxis >= 0 && pyxis < at {
			say(Warn, "pyxis is listed before "+spankFile+" and enters containers that do not know their GPUs",
				"put "+spankFile+" first in "+s.Path)
		}
		// From 24.11 on slurmstepd starts the program by a helper of its own, which no
		// image has (NVIDIA/pyxis#163).
		if v := d.setting("TaskProlog"); pyxis >= 0 && v != "" && !d.Installed.Before(24, 11) {
			say(Warn, "TaskProlog="+v+" is not in a container's image: tasks of pyxis fail from Slurm 24.11 on",
				"remove TaskProlog from slurm.conf: "+spankFile+" replaces it")
		}
	})
}
