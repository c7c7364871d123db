// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// booking prints what a job was booked for, from inside of the job.
const booking = `scontrol show job $SLURM_JOB_ID | sed -n 's/.*AdminComment=//p'`

// What has no script to write a line in says it by option or variable, and books and shares as by a line.
func TestWaysToSayIt(t *testing.T) {
	c := up(t, "--nodes", "1", "--spank")
	if help := c.sh(alice, "sbatch --help; srun --help; salloc --help"); strings.Count(help, "--carma=KEYS") != 3 {
		t.Errorf("--help has --carma %d times", strings.Count(help, "--carma=KEYS"))
	}
	inside := quote(booking)
	for name, w := range map[string]struct{ command, want string }{
		"sbatch, option":       {"sbatch -W -o %s --gres=gpu:1 --carma=mem=10G --wrap " + inside, "10240"},
		"sbatch, variable":     {"CARMA=mem=11G sbatch -W -o %s --gres=gpu:1 --wrap " + inside, "11264"},
		"sbatch, both":         {"CARMA=mem=11G sbatch -W -o %s --gres=gpu:1 --carma mem=10G --wrap " + inside, "10240"},
		"sbatch, no variables": {"CARMA=mem=11G sbatch --export=NONE -W -o %s --gres=gpu:1 --wrap " + inside, "11264"},
		"srun, option":         {"srun --gres=gpu:1 --carma=mem=10G,smact=20 bash -c " + inside + " >%s", "10240"},
		"srun, variable":       {"CARMA='mem=12G smact=20' srun --gres=gpu:1 bash -c " + inside + " >%s", "12288"},
		"salloc, option":       {"salloc --gres=gpu:1 --carma=mem=10G srun bash -c " + inside + " >%s", "10240"},
		"salloc, variable":     {"CARMA=mem=13G salloc --gres=gpu:1 srun bash -c " + inside + " >%s", "13312"},
	} {
		out := c.file(alice, "said", "")
		if _, stderr, err := c.answered(alice, strings.Replace(w.command, "%s", out, 1)); err != nil {
			t.Errorf("%s: %v: %s", name, err, stderr)
			continue
		}
		said := c.sh("", "cat "+out)
		if !strings.Contains(said, `"mode":"shared","method":"user"`) || !strings.Contains(said, `"reserve_mib":`+w.want) {
			t.Errorf("%s: booked %s, want %s MiB, shared", name, said, w.want)
		}
	}
	over := "#SBATCH --gres=gpu:1 -o /dev/null\n#CARMA mem=20G smact=30\n"
	for options, want := range map[string]string{"--carma=mem=10G": "10240", "": "20480", "--carma=smact=40": "20480"} {
		id := c.sbatch(alice, options, over)
		if said := c.adminComment(id); !strings.Contains(said, `"reserve_mib":`+want) {
			t.Errorf("%q over a line: %s, want %s MiB", options, said, want)
		}
	}
	id := c.sbatch(alice, "", "#SBATCH --gres=gpu:1 -o /dev/null --carma=mem=10G\n")
	if said := c.adminComment(id); !strings.Contains(said, `"reserve_mib":10240`) {
		t.Errorf("an #SBATCH line: %s", said)
	}
	_, said, _ := c.answered(alice, "sbatch -H --gres=gpu:1 "+c.file(alice, "late.sh", "#!/bin/sh\ntrue\n#CARMA mem=1G\n"))
	if !strings.Contains(said, "carma: line 3: a #CARMA line behind the first command is not read; put it before") {
		t.Errorf("a line that is not read: %q", said)
	}
	id = c.sbatch(alice, "", "#SBATCH --gres=gpu:1 -o /dev/null\n# CARMA mem=1G\ntrue\n")
	c.ends(id, "COMPLETED")
	c.complete(id)
	if said := c.sh("", "carma-report "+id); !strings.Contains(said, "line 3 of its script was meant for CARMA") {
		t.Errorf("the report of a line that is not read:\n%s", said)
	}
	// A user's text is never more than that.
	c.refuses("sbatch --gres=gpu:1 --carma=mem=banana --wrap true", "carma: --carma: mem=banana: not a size; write mem=12G")
	c.refuses("CARMA=/opt/carma sbatch --gres=gpu:1 --wrap true", "carma: the variable CARMA: /opt/carma: unknown key")
	c.refuses(`CARMA=$'mem=1G\nenv MODE=shared' sbatch --gres=gpu:1 --wrap true`, "carma: the variable CARMA: env: unknown key")
	c.refuses(`sbatch --gres=gpu:1 --carma=$'on\e[2J' --wrap true`, "carma: --carma: on?[2J: unknown key")
	c.refuses("sbatch --gres=gpu:1 --carma=$(head -c 2000 /dev/zero | tr '\\0' x) --wrap true", "longer than 1024 bytes")
	c.refuses("CARMA=$(head -c 2000 /dev/zero | tr '\\0' x) sbatch --gres=gpu:1 --wrap true", "longer than 1024 bytes")
	// For Slurm an option holds for the components of a heterogeneous job behind it, too.
	for command, want := range map[string][2]string{
		"sbatch --carma=mem=10G --gres=gpu:1 : --gres=gpu:1 --carma=mem=11G": {"10240", "11264"},
		"sbatch --gres=gpu:1 : --gres=gpu:1 --carma=mem=11G":                 {"40536", "11264"},
		"sbatch --carma=mem=10G --gres=gpu:1 : --gres=gpu:1":                 {"10240", "10240"},
		"CARMA=mem=12G sbatch --gres=gpu:1 : --gres=gpu:1 --carma=mem=11G":   {"12288", "11264"},
		"CARMA=mem=12G sbatch --gres=gpu:1 : --gres=gpu:1":                   {"12288", "12288"},
	} {
		id := c.submit(alice, command+" -H --parsable "+c.file(alice, "het.sh", "#!/bin/sh\n"), false)
		said := c.sh("", "scontrol show job "+id)
		parts := strings.Split(said, "HetJobOffset=")
		if len(parts) != 3 || !strings.Contains(parts[1], `"reserve_mib":`+want[0]) ||
			!strings.Contains(parts[2], `"reserve_mib":`+want[1]) {
			t.Errorf("%s: %s", command, said)
		}
	}
	// A step of a job that has the variable is none that is submitted.
	id = c.sbatch(alice, "", "#SBATCH --gres=gpu:1\nexport CARMA=mem=5G\nsrun --overlap true && echo stepped\n")
	c.ends(id, "COMPLETED")
	if !strings.Contains(c.output(id), "stepped") {
		t.Errorf("a step: %s", c.output(id))
	}
	c.noDrain()
}

// An administrator has a partition share for jobs that say nothing; those that say something mean it.
func TestPartitionsDirective(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"partition.gpu.directive": `"mem=9G"`})
	const gpu = "#SBATCH --gres=gpu:1 -o /dev/null\n"
	c.eventually(func() string { return c.adminComment(c.sbatch(alice, "", gpu)) }, `"mode":"shared".*"reserve_mib":9216`)
	for script, want := range map[string]string{gpu + "#CARMA off\n": `"mode":"off"`,
		gpu + "#CARMA mem=7G\n": `"reserve_mib":7168`, gpu + "#CARMA policy=exclusive\n": `"mode":"exclusive"`} {
		if said := c.adminComment(c.sbatch(alice, "", script)); !strings.Contains(said, want) {
			t.Errorf("%s: %s, want %s", script, said, want)
		}
	}
}

// Runs of one script that train a small and a large model learn apart where a variable or a name tells them apart,
// and the third run of each shares at its own need. Otherwise the runs are said to differ, and book the largest.
func TestLearnApart(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1", "--time-scale", "10", "--spank")
	train := "case $MODEL in large*) mem=20480;; *) mem=6144;; esac\n" +
		"simjob --mem ${mem}M --smact 20" + untilPeak("$mem")
	c.notePeaks()
	vars := c.file(alice, "vars.sh", "#!/bin/bash\n#SBATCH --gres=gpu:1 -o /dev/null\n#CARMA on vars=SEED,MODEL\n"+train)
	plain := c.file(alice, "plain.sh", "#!/bin/bash\n#SBATCH --gres=gpu:1 -o /dev/null\n#CARMA on\n"+train)
	type booked [2][2]int64 // MiB, of the second and the third run, small and large
	apart, together := booked{{6759, 22528}, {6452, 21504}}, booked{{21504, 21504}, {21504, 21504}}
	const submits = "sbatch --parsable "
	ways := map[string]struct {
		command string
		want    booked
	}{
		"vars= of a line":   {"MODEL=%weights " + submits + vars, apart},
		"vars= of --carma":  {"MODEL=%weights " + submits + "--carma=on,vars=MODEL,job=v " + plain, apart},
		"job= of CARMA":     {"CARMA=on,job=resnet-% MODEL=%weights " + submits + plain, apart},
		"neither, together": {"MODEL=%weights " + submits + plain, together},
	}
	round := func(n int) {
		t.Helper()
		ids := map[string][2]string{}
		for name, w := range ways {
			submit := func(model string) string {
				return c.submit(alice, strings.ReplaceAll(w.command, "%", model), false)
			}
			ids[name] = [2]string{submit("small"), submit("large")}
		}
		for _, both := range ids {
			for _, id := range both {
				c.ends(id, "COMPLETED")
				c.complete(id)
			}
		}
		all := c.accounts("")
		for name, w := range ways {
			var want [2]int64
			if n > 1 {
				want = w.want[n-2]
			}
			for i, id := range ids[name] {
				number, _ := strconv.Atoi(id)
				a, said := all[uint32(number)], c.adminComment(id)
				switch {
				case n == 1 && (a.Mode != "exclusive" || a.Method != "none"):
					t.Errorf("%s, first run: %+v", name, a)
				case n > 1 && (a.Mode != "shared" || a.Method != "history" || a.ReserveMiB != want[i] || a.Attempts != 1):
					t.Errorf("%s, run %d: %+v, want %d MiB", name, n, a, want[i])
				}
				if strings.Contains(said, "weights") {
					t.Errorf("%s: a variable's value is in %s", name, said)
				}
				differ := n > 1 && w.want == together
				if strings.Contains(said, "its runs differ, 6144 to 20480 MiB, and the largest is booked") != differ {
					t.Errorf("%s, run %d: %s", name, n, said)
				}
			}
		}
	}
	for n := range 3 {
		round(n + 1)
		if n < 2 {
			c.learn("MODEL=smallweights "+submits+"-H "+vars, fmt.Sprintf(`"reserve_mib":%d\b`, apart[n][0]))
		} else {
			c.sh("", "carma-report history --write")
		}
	}
	list := c.sh("", "carma-report history")
	if strings.Count(list, "the runs differ: vars= or job= tells them apart") != 1 {
		t.Errorf("carma-report history:\n%s", list)
	}
	c.sh("", "chmod 644 "+c.dir+"/var/history")
	for model, want := range map[string]string{"small": "3 runs, peak 6144 MiB", "large": "3 runs, peak 20480 MiB"} {
		if out := c.sh(alice, "MODEL="+model+"weights carma-estimate "+vars); !strings.Contains(out, want) {
			t.Errorf("carma-estimate of the %s model:\n%s", model, out)
		}
	}
	// Variables of srun and salloc do not get to slurmctld: nothing is learned, rather than of all models together.
	out := c.file(alice, "said", "")
	c.sh(alice, "MODEL=small srun --gres=gpu:1 --carma=on,job=v,vars=MODEL bash -c "+quote(booking)+" >"+out)
	if said := c.sh("", "cat "+out); !strings.Contains(said, "nothing is learned: vars= is for sbatch") {
		t.Errorf("vars= of srun: %s", said)
	}
	c.noDrain()
}

// wrapped are scripts in the form of workflow tools' own, around the command train. The number of the task stands in
// a script twice, as in the tools' scripts, so that each task has another text.
func wrapped(train string) map[string]string {
	return map[string]string{
		"snakemake 7": "#!/bin/sh\n# properties = {\"type\": \"single\", \"rule\": \"train\", \"wildcards\": {\"x\": \"%d\"}}\n" +
			": python3 -m snakemake --snakefile '/w/Snakefile' --target-jobs 'train:x=%d'\n" + train + "\n",
		"snakemake 9": "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" +
			": python3 -m snakemake --snakefile '/w/Snakefile' --target-jobs 'fit:x=%d' --allowed-rules 'fit' --cores 1\n" +
			train + " # %d\n",
		"nextflow": "#!/bin/bash\n#SBATCH -J nf-TRAIN_(%d)\n### ---\n### name: 'TRAIN (%d)'\n### outputs:\n### ...\nset -e\n" +
			"cd . && " + train + "\n",
		"submitit": "#!/bin/bash\n\n# Parameters\n#SBATCH --job-name=resnet\n\n# command\nexport SUBMITIT_EXECUTOR=slurm\n" +
			": srun --unbuffered --output %d_%%j.out python3 -u -m submitit.core._submit /runs/%d\n" + train + "\n",
	}
}

// Scripts of workflow tools, written anew for each task, learn together: of two tasks of a rule the second
// shares by what the first has used. The keys come from the environment, as with all workflow tools.
func TestWrappersLearn(t *testing.T) {
	needsServer(t)
	c := up(t, "--nodes", "1", "--time-scale", "10")
	const train = "./train"
	c.file(alice, "train", "#!/bin/bash\nsimjob --mem 6G --smact 20"+untilPeak("6144"))
	c.notePeaks()
	tools := wrapped(train)
	for task := range 2 {
		ids := map[string]string{}
		for name, text := range tools {
			file := c.file(alice, strings.ReplaceAll(name, " ", "")+".sh", fmt.Sprintf(text, task, task))
			ids[name] = c.submit(alice, "CARMA=on sbatch --parsable --gres=gpu:1 -o /dev/null "+file, false)
		}
		for _, id := range ids {
			c.ends(id, "COMPLETED")
			c.eventually(func() string { return c.sh("", "carma-report -n -t -o JobName%30 "+id) }, "[a-z]")
		}
		all := c.accounts("")
		for name, id := range ids {
			number, _ := strconv.Atoi(id)
			a := all[uint32(number)]
			if want := [2]string{"exclusive none", "shared history"}[task]; string(a.Mode)+" "+a.Method != want {
				t.Errorf("%s, task %d: %+v, want %s", name, task, a, want)
			}
		}
		next := c.file(alice, "nextflow.sh", fmt.Sprintf(tools["nextflow"], task+1, task+1))
		c.learn("CARMA=on sbatch --parsable -H --gres=gpu:1 "+next, `"method":"history"`)
	}
	// A rule of the same name in another workflow is another program.
	file := c.file(alice, "other.sh", strings.ReplaceAll(fmt.Sprintf(tools["snakemake 9"], 2, 2), "/w/", "/other/"))
	id := c.submit(alice, "CARMA=on sbatch --parsable -H --gres=gpu:1 "+file, false)
	if said := c.adminComment(id); !strings.Contains(said, `"mode":"exclusive","method":"none"`) {
		t.Errorf("another workflow's rule: %s", said)
	}
}
