// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
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
		if _, stderr, err := c.run(alice, strings.Replace(w.command, "%s", out, 1)); err != nil {
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
	_, said, _ := c.run(alice, "sbatch -H --gres=gpu:1 "+c.file(alice, "late.sh", "#!/bin/sh\ntrue\n#CARMA mem=1G\n"))
	if !strings.Contains(said, "carma: line 3: a #CARMA line behind the first command is not read; put it before") {
		t.Errorf("a line that is not read: %q", said)
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
		id, _, _ := strings.Cut(c.sh(alice, command+" -H --parsable "+c.file(alice, "het.sh", "#!/bin/sh\n")), ";")
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
