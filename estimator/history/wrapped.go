// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path"
	"strings"
)

// Limits of a script that a workflow tool wrote: Wrapped runs inside slurmctld.
const (
	maxWrappedLines = 512
	maxWrappedBytes = 64 << 10
	maxWrappedName  = 64
)

// Wrapped returns the name under which a workflow tool wrote a script, with the tool in front, as
// "nextflow:TRAIN"; empty: no tool, or no name of letters, digits, "._-" and ":", 64 at most. Workflow tools write
// a new script for each task of the same program. A user's own name (job=) has no colon.
//
//   - Nextflow: the process, without the tag of a task: "### name: 'ALIGN:SORT (sample 1)'" (24.04 and later),
//     "# NEXTFLOW TASK: ..." before (BashWrapperBuilder.groovy, command-run.txt). A process without the name of a
//     workflow in front has a hash of the work directory, of "#SBATCH -o WORK/ab/cd.../.command.log"
//     (SlurmExecutor.groovy), for the same reason as Snakemake's rules.
//   - Snakemake: the rule, of "# properties = {...}" (7, --cluster), or behind --allowed-rules in the command (7 with
//     --slurm, and the plugin of 8 and 9), and a hash of the file behind --snakefile: rules of two workflows often have
//     the same name, as "train". A group of several rules has no name.
//   - submitit: the SBATCH job name, if it is not the default, submitit (slurm.py, 1.5).
func Wrapped(script []byte) string {
	script = script[:min(len(script), maxWrappedBytes)]
	jobName, rule, work := "", "", ""
	for n := 0; n < maxWrappedLines && len(script) > 0; n++ {
		var line []byte
		line, script, _ = bytes.Cut(script, newline)
		if len(line) == 0 {
			continue
		}
		if line[0] != '#' {
			if name, ok := ofCommand(line, jobName, rule); ok {
				return name
			}
			continue
		}
		text := string(line)
		if name, ok := strings.CutPrefix(text, "#SBATCH --job-name="); ok {
			jobName = strings.Trim(name, `'"`)
		} else if name, ok := strings.CutPrefix(text, "# NEXTFLOW TASK: "); ok {
			return process(name, work)
		} else if name, ok := strings.CutPrefix(text, "### name: '"); ok && strings.HasSuffix(name, "'") {
			return process(strings.TrimSuffix(name, "'"), work)
		} else if log, ok := strings.CutPrefix(text, "#SBATCH -o "); ok {
			work = path.Dir(path.Dir(path.Dir(strings.Trim(log, `'"`))))
		} else if properties, ok := strings.CutPrefix(text, "# properties = "); ok {
			var task struct{ Type, Rule string }
			if json.Unmarshal([]byte(properties), &task) != nil || task.Type != "single" {
				return ""
			}
			rule = task.Rule
		}
	}
	return named("snakemake", rule)
}

// ofCommand is the name in the line of a script with the call of a tool's program on the node. rule is Snakemake's,
// if a line before has named a rule.
func ofCommand(line []byte, jobName, rule string) (name string, ok bool) {
	if bytes.Contains(line, []byte(" -m submitit.core._submit ")) {
		if jobName == "submitit" {
			return "", true
		}
		return named("submitit", jobName), true
	}
	if !bytes.Contains(line, []byte("snakemake")) {
		return "", false
	}
	_, after, allows := strings.Cut(string(line), " --allowed-rules ")
	_, file, hasFile := strings.Cut(string(line), " --snakefile ")
	if !allows && (rule == "" || !hasFile) { // a line of the user's own, as conda activate snakemake
		return "", false
	}
	if rule == "" {
		rules, _, _ := strings.Cut(after, " --")
		words := strings.Fields(rules)
		if len(words) != 1 {
			return "", true
		}
		rule = strings.Trim(words[0], `'"`)
	}
	file, _, _ = strings.Cut(file, " --")
	return apart(named("snakemake", rule), strings.Trim(file, ` '"`)), true
}

// process is the name of Nextflow's task without the tag.
func process(task, work string) string {
	name, _, _ := strings.Cut(task, " (")
	if strings.Contains(name, ":") || !path.IsAbs(work) {
		return named("nextflow", name)
	}
	return apart(named("nextflow", name), work)
}

// apart tells a name from the same name in other workflows, by the place of the workflow; empty: not known.
func apart(name, place string) string {
	if name == "" || place == "" {
		return name
	}
	sum := sha256.Sum256([]byte(place))
	return name + ":" + hex.EncodeToString(sum[:8])
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
