// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Texts of users in place of keys, as option or variable, by sbatch and by the users' own clients, hurt nobody: no
// command of root's runs a text, no other job changes, and no text reaches the terminal of a reader of records.
func TestAttackOption(t *testing.T) {
	c := up(t, "--nodes", "1", "--gpu-model", "h100", "--time-scale", "20", "--spank")
	before, common, own := victims(c, 1, "")
	f := newForgery(c, "#!/bin/bash\ntrue\n")
	mark := filepath.Join(c.dir, "jobs", "pwned")
	shell := "$(touch " + mark + ");`touch " + mark + "`|touch " + mark + "&\ntouch " + mark + "\n"
	texts := map[string]string{
		"forged lines":       c.forged("1", append(common, own[0])...),
		"forged GRES":        "mem=1G" + forgedGRES(common[1]),
		"libcarma's answer":  "on\nenv MODE=shared\nenv RESERVE_MIB=1\ncomment x\n",
		"Extra":              "mem=1G,extra=carma1>=0|x",
		"a shell's":          shell,
		"a shell's, in job=": "on,job=" + shell,
		"a shell's, in vars": "on,vars=A" + shell,
		"formats":            "on %s%s%s%n%1000000d,job=%n",
		"a terminal's":       "on,\x1b]0;x\x07\x1b[2J\r",
		"not UTF-8":          "mem=1G\xff\xfe\xc0\x80",
		"long":               strings.Repeat("x", 100_000),
		"many keys":          strings.Repeat("on,", 40_000),
		"secrets":            "on,vars=PATH,LD_PRELOAD,SLURM_CONF,MUNGE,HOME,USER,SHELL,SPANK_CARMA_V",
		"another's run":      "on,job=forgery",
		"all memory":         "mem=99999999999999999999G",
		"a negative":         "mem=-1,smact=-1,slowdown=-1",
	}
	var ids []string
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text := texts[name]
		sbatch := "sbatch --parsable -H -o /dev/null --gres=gpu:1 "
		for way, command := range map[string]string{
			"option of sbatch":    sbatch + quote("--carma="+text) + " " + f.script,
			"variable of sbatch":  "CARMA=" + quote(text) + " " + sbatch + f.script,
			"option of a client":  f.raw("_SLURM_SPANK_OPTION_carma_carma=" + text),
			"variable of another": f.raw("_CARMA=" + text),
		} {
			what := name + ", " + way
			out, stderr, err := c.run(alice, command)
			if unprintable.MatchString(stderr) {
				t.Errorf("%s: the answer is %q", what, stderr)
			}
			if err != nil {
				attacked(t, what, "refused: "+string(tail([]byte(strings.TrimSpace(stderr)), 100)))
				continue
			}
			attacked(t, what, "accepted as job "+strings.TrimSpace(out))
			ids = append(ids, strings.TrimSpace(out))
			if said := c.adminComment(ids[len(ids)-1]); unprintable.MatchString(said) {
				t.Errorf("%s: AdminComment %q", what, said)
			}
		}
	}
	c.sh(alice, "scontrol release "+strings.Join(ids, " "))
	c.ended(ids)
	c.unchanged(func(string) string { return "texts in place of keys" }, before)
	if _, err := os.Stat(mark); err == nil {
		t.Error("a text was run")
	}
	for _, command := range []string{"carma-report -S now-1day", "carma-report -j " + strings.Join(ids, ","),
		"carma-report history"} {
		if out := c.sh("", command); unprintable.MatchString(out) {
			t.Errorf("%s prints %q", command, out)
		}
	}
	c.sh("", "scontrol ping")
	f.changesNothing()
	c.noDrain()
}

// changesNothing requires that a user's own client gets no variable of CARMA's into a job that is there, and no advice
// into AdminComment: slurmctld sees to both, and the plugin relies on slurmctld.
func (f *forgery) changesNothing() {
	c := f.cluster
	c.t.Helper()
	id := c.sbatch(alice, "-H", "#SBATCH --gres=gpu:1 -o /dev/null\n#CARMA mem=4G\ntrue\n")
	_, said, err := c.run(alice, f.request+" update "+id+" spank=CARMA_RESERVE_MIB=1")
	attacked(c.t, "a variable of CARMA's in a change", fmt.Sprintf("%v %s", err, said))
	advice := " admin_comment=" + quote(`carma-advice={"v":1,"est_mib":1}`)
	for _, command := range []string{" update " + id, " submit " + f.script} {
		_, said, err := c.run(alice, f.request+command+advice)
		attacked(c.t, "advice in AdminComment,"+command, strings.TrimSpace(said))
		if err == nil {
			c.t.Errorf("%s with an AdminComment is accepted", command)
		}
	}
	c.sh(alice, "scontrol release "+id)
	c.ends(id, "COMPLETED")
	if r := c.report(id); r.ReserveMiB != 4096 {
		c.t.Errorf("a change of its variables: %+v", r)
	}
}

// unprintable finds characters that a terminal could take for a command.
var unprintable = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f]`)

// raw submits by a program of the user's own, with an entry of the job's SPANK environment.
func (f *forgery) raw(entry string) string {
	return f.request + " submit " + f.script + " hold=1 tres_per_node=gres:gpu:1 std_out=/dev/null " + quote("spank="+entry)
}
