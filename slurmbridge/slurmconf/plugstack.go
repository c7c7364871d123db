// SPDX-License-Identifier: Apache-2.0

package slurmconf

import (
	"path/filepath"
	"strings"
)

// Plugin is a line of plugstack.conf.
type Plugin struct {
	Required bool
	Path     string // as written: an absolute one, or a name in PluginDir
	Args     []string
}

// Name is the file's.
func (p Plugin) Name() string { return filepath.Base(p.Path) }

// Plugstack reads the text of a plugstack.conf (man spank; src/common/spank.c,
// _plugin_stack_parse_line, 22.05 to 26.05). include returns the texts of the files that a
// pattern matches, in their order.
func Plugstack(text string, include func(pattern string) []string) []Plugin {
	includes := 0
	var read func(text string) []Plugin
	read = func(text string) []Plugin {
		var plugins []Plugin
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, "#")
			words := strings.Fields(line)
			if len(words) < 2 {
				continue
			}
			switch words[0] {
			case "include":
				if includes++; includes > mostIncludes {
					return plugins
				}
				for _, text := range include(words[1]) {
					plugins = append(plugins, read(text)...)
				}
			case "required", "optional":
				plugins = append(plugins, Plugin{Required: words[0] == "required", Path: words[1], Args: words[2:]})
			}
		}
		return plugins
	}
	return read(text)
}
