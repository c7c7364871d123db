// SPDX-License-Identifier: Apache-2.0

package history

import (
	"strings"
	"testing"
)

func TestWrapped(t *testing.T) {
	const nextflow = "#!/bin/bash\n#SBATCH -J nf-ALIGN_SORT_(sample_1)\n#SBATCH --no-requeue\n"
	const submitit = "#!/bin/bash\n\n# Parameters\n#SBATCH --gpus-per-node=1\n#SBATCH --job-name=%s\n\n# command\n" +
		"export SUBMITIT_EXECUTOR=slurm\nsrun --unbuffered /usr/bin/python3 -u -m submitit.core._submit /home/u/runs\n"
	for _, c := range []struct{ name, script, want string }{
		{"no tool", "#!/bin/sh\npython train.py --rule train\n", ""},
		{"nothing", "", ""},
		{"nextflow", nextflow + "### ---\n### name: 'ALIGN:SORT (sample 1)'\n### outputs:\n### ...\nset -e\n",
			"nextflow:ALIGN:SORT"},
		{"nextflow without a tag", nextflow + "### ---\n### name: 'TRAIN'\n", "nextflow:TRAIN"},
		{"nextflow 22", nextflow + "# NEXTFLOW TASK: TRAIN (7)\nset -e\n", "nextflow:TRAIN"},
		{"nextflow, a name of other letters", nextflow + "### name: 'TRÄIN (1)'\n", ""},
		{"snakemake 7", "#!/bin/sh\n# properties = {\"type\": \"single\", \"rule\": \"train\", \"params\": {\"x\": 1}}\n" +
			"conda activate snakemake\ncd /w && python3 -m snakemake --cores 1\n", "snakemake:train"},
		{"snakemake 7, a group", "#!/bin/sh\n# properties = {\"type\": \"group\", \"groupid\": \"g\"}\n", ""},
		{"snakemake 7, no JSON", "#!/bin/sh\n# properties = {\"type\": \"single\", \"rule\": \"tr\n", ""},
		{"snakemake 9", "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" +
			"python3 -m snakemake --target-jobs 'train:x=1' --allowed-rules 'train' --cores 1\n",
			"snakemake:train"},
		{"snakemake 9, at the end", "snakemake --allowed-rules train", "snakemake:train"},
		{"snakemake 9, a group", "snakemake --allowed-rules 'a' 'b' --cores 1\n", ""},
		{"another program", "tool --allowed-rules 'a' --cores 1\n", ""},
		{"submitit", strings.Replace(submitit, "%s", "resnet50", 1), "submitit:resnet50"},
		{"submitit, quoted", strings.Replace(submitit, "%s", "'resnet50'", 1), "submitit:resnet50"},
		{"submitit by default", strings.Replace(submitit, "%s", "submitit", 1), ""},
		{"a long name", strings.Replace(submitit, "%s", strings.Repeat("x", 65), 1), ""},
		{"beyond the limit", strings.Repeat("true\n", maxWrappedLines) + "snakemake --allowed-rules train\n", ""},
	} {
		if got := Wrapped([]byte(c.script)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Rules of the same name in two workflows are two programs; all tasks of a rule are a single program, whatever else
// the scripts say.
func TestWrappedTellsWorkflowsApart(t *testing.T) {
	const task7 = "#!/bin/sh\n" +
		"# properties = {\"type\": \"single\", \"rule\": \"train\", \"wildcards\": {\"x\": \"%x\"}}\n" +
		"conda activate snakemake\n" +
		"cd /w && /usr/bin/python3 -m snakemake --snakefile %f --target-jobs 'train:x=%x' --allowed-rules 'train' " +
		"--cores 'all'\n"
	const task9 = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" +
		"/v/python -m snakemake --snakefile %f --target-jobs 'train:x=%x' --allowed-rules train --cores 1\n"
	name := func(script, file, x string) string {
		return Wrapped([]byte(strings.NewReplacer("%f", file, "%x", x).Replace(script)))
	}
	for _, script := range []string{task7, task9} {
		one := name(script, "'/w/one/Snakefile'", "a")
		if !strings.HasPrefix(one, "snakemake:train:") || one != name(script, "'/w/one/Snakefile'", "b") ||
			one != name(script, "/w/one/Snakefile", "c") {
			t.Errorf("tasks of one rule: %q, %q, %q", one, name(script, "'/w/one/Snakefile'", "b"),
				name(script, "/w/one/Snakefile", "c"))
		}
		if two := name(script, "'/w/two/Snakefile'", "a"); two == one {
			t.Errorf("rules of two workflows are one: %q", two)
		}
	}
	const process = "#!/bin/bash\n#SBATCH -J nf-TRAIN_(%x)\n#SBATCH -o %f/ab/%x/.command.log\n### ---\n" +
		"### name: 'TRAIN (%x)'\n"
	if one := name(process, "/w/one/work", "1"); !strings.HasPrefix(one, "nextflow:TRAIN:") ||
		one != name(process, "/w/one/work", "2") || one == name(process, "/w/two/work", "1") {
		t.Errorf("a process in two workflows: %q, %q, %q", one, name(process, "/w/one/work", "2"),
			name(process, "/w/two/work", "1"))
	}
	qualified := strings.ReplaceAll(process, "'TRAIN", "'FLOW:TRAIN") // has the workflow's name
	if got := name(qualified, "/w/one/work", "1"); got != "nextflow:FLOW:TRAIN" {
		t.Errorf("a process with the name of its workflow: %q", got)
	}
	if a, b := name(task7, "/w/S", "a"), name(task9, "/w/S", "a"); a != b {
		t.Errorf("two executors of one workflow: %q, %q", a, b)
	}
}

// FuzzWrapped: a name is short and of plain letters, whatever a script has.
func FuzzWrapped(f *testing.F) {
	f.Add("#SBATCH -o /w/ab/cd/.command.log\n### name: 'a (b)'\n")
	f.Add("# properties = {\"type\": \"single\", \"rule\": \"a\"}\n")
	f.Add("#SBATCH --job-name=a\nx -m submitit.core._submit y\n")
	f.Add("snakemake --allowed-rules a\n")
	f.Add("snakemake --snakefile S --allowed-rules a\n")
	f.Fuzz(func(t *testing.T, script string) {
		got := Wrapped([]byte(script))
		if len(got) > maxWrappedName+len("snakemake::0123456789abcdef") || strings.Trim(got, "._-:0123456789"+
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			t.Errorf("%q", got)
		}
	})
}
