// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

func TestSPANK(t *testing.T) {
	own := slurmconf.Plugin{Path: "/usr/lib/carma/slurm/spank_carma.so"}
	pyxis := slurmconf.Plugin{Required: true, Path: "/usr/local/lib/slurm/spank_pyxis.so"}
	noHook := []string{"TaskProlog=/usr/sbin/carma-task-prolog", ""}
	add := func(f *Facts) { f.SPANK.Plugins = append(f.SPANK.Plugins, pyxis) }
	alone := func(f *Facts) { f.SPANK = SPANK{Plugins: []slurmconf.Plugin{pyxis}} }
	first := func(f *Facts) { f.SPANK.Plugins = []slurmconf.Plugin{pyxis, own} }
	other := func(f *Facts) { f.SPANK.Version.Major = 23 }
	gone := func(f *Facts) { f.SPANK.Program = Path{Err: os.ErrNotExist} }
	broken := func(f *Facts) { f.SPANK.Err = errors.New("x.so: no symbols") }
	required := func(f *Facts) { f.SPANK.Plugins[0].Required = true }
	writable := func(f *Facts) { f.SPANK.Program.Mode = 0o777 }
	older := func(f *Facts) {
		add(f)
		f.Installed = sctl.Version{Major: 22, Minor: 5, Micro: 8}
		f.SPANK.Version = f.Installed
	}
	for name, c := range map[string]struct {
		conf   []string // edits of slurm.conf
		change func(*Facts)
		want   string // of all findings of the part, or of slurm.conf
	}{
		"as it should be":     {noHook, nil, "pass /etc/slurm/plugstack.conf has spank_carma.so, for Slurm 24.11"},
		"with TaskProlog":     {nil, nil, "pass /etc/slurm/plugstack.conf has spank_carma.so, for Slurm 24.11"},
		"no plugin, no pyxis": {nil, func(f *Facts) { f.SPANK = SPANK{} }, ""},
		"neither":             {noHook, func(f *Facts) { f.SPANK = SPANK{} }, "fail TaskProlog is not set"},
		"pyxis alone":         {nil, alone, "warn pyxis enters containers before TaskProlog"},
		"pyxis last":          {noHook, add, "pass /etc"},
		"pyxis first":         {noHook, first, "warn pyxis is listed before"},
		"another Slurm": {noHook, other,
			"fail /usr/lib/carma/slurm/spank_carma.so is for Slurm 23.11, this is 24.11.5"},
		"beside TaskProlog":    {nil, other, "warn /usr/lib/carma/slurm/spank_carma.so is for Slurm 23.11"},
		"another micro":        {noHook, func(f *Facts) { f.SPANK.Version.Micro = 1 }, "pass /etc"},
		"cannot be read":       {noHook, broken, "fail x.so: no symbols: slurmd does not load it"},
		"required":             {noHook, required, "fail /etc/slurm/plugstack.conf says \"required\""},
		"program missing":      {noHook, gone, "fail the program that it runs: file does not exist"},
		"program writable":     {noHook, writable, "fail /usr/sbin/carma-task-prolog, which it runs, is not executable"},
		"TaskProlog and pyxis": {nil, add, "warn TaskProlog=/usr/sbin/carma-task-prolog is not in a container's image"},
		"the same in 22.05":    {nil, older, "pass /etc"},
	} {
		t.Run(name, func(t *testing.T) {
			f := site(t, c.conf...)
			f.SPANK = SPANK{Path: "/etc/slurm/plugstack.conf", Plugins: []slurmconf.Plugin{own}, File: own.Path,
				Version: f.Installed, Program: Path{Path: "/usr/sbin/carma-task-prolog", Mode: 0o755}}
			if c.change != nil {
				c.change(&f)
			}
			var found []string
			for _, got := range Diagnose(f) {
				if got.Part == "spank" || got.Part == "slurm.conf" && got.Level != Pass {
					found = append(found, fmt.Sprintf("%s %s", got.Level, got.What))
				}
			}
			if (c.want == "") != (len(found) == 0) || len(found) > 1 || c.want != "" && !strings.HasPrefix(found[0], c.want) {
				t.Errorf("got %q, want %s", found, c.want)
			}
		})
	}
}
