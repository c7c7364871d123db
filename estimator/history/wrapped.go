// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Limits of a script that a workflow tool wrote: Wrapped runs inside slurmctld.
const (
	maxWrappedLines = 512
	maxWrappedBytes = 64 << 10
	maxWrappedName  = 64
)

// Wrapped returns the name under which a workflow tool wrote a script, with the tool in front, as
// "snakemake:train"; empty: no tool, or no name of letters, digits, "._-" and ":", 64 at most. Such tools write a new
// script for each task of the same program. A user's own name (job=) has no colon.
//
//   - Nextflow: the process, without the tag of a task: "### name: 'ALIGN:SORT (sample 1)'" (24.04 and later),
//     "# NEXTFLOW TASK: ..." before (BashWrapperBuilder.groovy, command-run.txt).
//   - Snakemake: the rule, of "# properties = {...}" (7, --cluster), or behind --allowed-rules in the command (7 with
//     --slurm, and the plugin of 8 and 9). A group of several rules has no name.
//   - submitit: the SBATCH job name, if it is not the default, submitit (slurm.py, 1.5).
func Wrapped(script []byte) string {
	script = script[:min(len(script), maxWrappedBytes)]
	jobName := ""
	for n := 0; n < maxWrappedLines && len(script) > 0; n++ {
		var line []byte
		line, script, _ = bytes.Cut(script, newline)
		if len(line) == 0 {
			continue
		}
		if line[0] != '#' {
			if name, ok := ofCommand(line, jobName); ok {
				return name
			}
			continue
		}
		text := string(line)
		if name, ok := strings.CutPrefix(text, "#SBATCH --job-name="); ok {
			jobName = strings.Trim(name, `'"`)
		} else if name, ok := strings.CutPrefix(text, "# NEXTFLOW TASK: "); ok {
			return named("nextflow", process(name))
		} else if name, ok := strings.CutPrefix(text, "### name: '"); ok && strings.HasSuffix(name, "'") {
			return named("nextflow", process(strings.TrimSuffix(name, "'")))
		} else if properties, ok := strings.CutPrefix(text, "# properties = "); ok {
			var task struct{ Type, Rule string }
			if json.Unmarshal([]byte(properties), &task) != nil || task.Type != "single" {
				return ""
			}
			return named("snakemake", task.Rule)
		}
	}
	return ""
}

// ofCommand is the name in the line of a script that calls a tool's program on the node.
func ofCommand(line []byte, jobName string) (name string, ok bool) {
	if bytes.Contains(line, []byte(" -m submitit.core._submit ")) {
		if jobName == "submitit" {
			return "", true
		}
		return named("submitit", jobName), true
	}
	if !bytes.Contains(line, []byte("snakemake")) {
		return "", false
	}
	_, after, ok := strings.Cut(string(line), " --allowed-rules ")
	if !ok {
		return "", false
	}
	rules, _, _ := strings.Cut(after, " --")
	words := strings.Fields(rules)
	if len(words) != 1 {
		return "", true
	}
	return named("snakemake", strings.Trim(words[0], `'"`)), true
}

// process is the name of a task without the tag.
func process(task string) string {
	name, _, _ := strings.Cut(task, " (")
	return name
}

func named(tool, name string) string {
	plain := func(r rune) bool {
		return 'a' <= r|0x20 && r|0x20 <= 'z' || '0' <= r && r <= '9' || strings.ContainsRune("._-:", r)
	}
	if name == "" || len(name) > maxWrappedName ||
		strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return ""
	}
	return tool + ":" + name
}
