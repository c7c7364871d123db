// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// With mode = "advise" jobs are as without CARMA, but for their AdminComment; records have the estimate beside the
// peak, and the history learns. mode = "observe" is the way back.
func TestAdvise(t *testing.T) {
	takesMinutes(t)
	c := &observed{cluster: up(t, "--nodes", "2", "--time-scale", fmt.Sprint(observeScale), "--observe")}
	c.installHere()
	without := c.pictures()
	c.advise()
	with := c.pictures()
	for i, want := range without {
		advised, should := false, want.told != "" || want.advised
		for range 5 { // on a busy machine an answer may come too late
			if advised = strings.Contains(with[i].shown, "AdminComment=carma-advice={"); advised == should {
				break
			}
			with[i] = c.pictureOf(want.asked)
		}
		got := with[i]
		got.shown = adminComment.ReplaceAllString(got.shown, "")
		if got.shown != want.shown || got.changed != want.changed || advised != should {
			t.Errorf("%s, %q: without CARMA\n%s%s\nwith advice (%v)\n%s%s", want.options, want.script, want.shown, want.changed,
				advised, with[i].shown, got.changed)
		}
		if got.said = strings.TrimPrefix(got.said, fromAdvice(want)); got.said != want.said {
			t.Errorf("%s, %q: sbatch says %q, without CARMA %q", want.options, want.script, with[i].said, want.said)
		}
	}
	c.advisedRecords()
	c.sh("", "sed -i 's/advise/observe/' "+c.dir+"/etc/carma.toml")
	c.eventually(func() string {
		p := c.pictureOf(asked{options: "--gres=gpu:1", script: "#CARMA mem=5G"})
		return fmt.Sprint(strings.Contains(p.shown, "carma-advice"))
	}, "false")
	c.onlyAsked("JobSubmitPlugins names carma, which changes no job while mode = \"observe\"; " +
		"no other line has CARMA act")
}

// advise takes the second step of docs/pilot.md.
func (c *observed) advise() {
	c.t.Helper()
	dirs := regexp.MustCompile(`PluginDir *= (\S+)`).FindStringSubmatch(c.sh("", "scontrol show config"))[1]
	slurmConf := filepath.Join(c.dir, "etc", "slurm.conf")
	c.sh("", "sed -i /^PluginDir/d "+slurmConf)
	c.append(slurmConf, "JobSubmitPlugins=carma\nPluginDir="+dirs+":"+c.dir+"/plugin/slurm\n")
	toml := filepath.Join(c.dir, "etc", "carma.toml")
	c.sh("", "sed -i s/observe/advise/ "+toml)
	c.append(toml, `
[partition.gpu]
default = true
share = true
gpus_per_node = 4
gpu_mem_mib = 40536
recovery = "gpu-recovery"
time_slot = "1m"

[partition.gpu-recovery]
gpus_per_node = 4
gpu_mem_mib = 40536
`)
	c.restart("slurmctld")
	c.restart("agent")
	doctor, _, _ := c.run("", "SIMGPU_STATE="+c.dir+"/simgpu/n1 carma-node --node n1 doctor --node --controller")
	if regexp.MustCompile(`(?m)^fail  (slurm.conf|carma.toml|plugin|permissions)`).MatchString(doctor) ||
		!strings.Contains(doctor, `mode = "advise"`) {
		c.t.Errorf("doctor:\n%s", doctor)
	}
	c.sh("", "sed -i '/^sdiag/d' "+c.dir+"/log/asked") // of the doctor
}

func (c *cluster) append(path, text string) {
	c.t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// asked is a submission; told is what sbatch says with advice, before its own words.
type asked struct {
	options, script, told string
	advised               bool
}

// picture is a submission, and all that scontrol shows of the job but numbers and times.
type picture struct {
	asked
	shown, said string
	changed     string // what became of a change by the job's user
}

func fromAdvice(p picture) string {
	if p.told == "" {
		return ""
	}
	return "sbatch: carma: " + p.told + "\n"
}

var askedOfAdvice = []asked{
	{options: "--gres=gpu:1", advised: true},
	{options: "--gres=gpu:1", script: "#CARMA on", advised: true},
	{options: "--gres=gpu:a100:2", script: "#CARMA mem=10G", advised: true},
	{options: "--gpus=2 -N1", script: "#CARMA mem=10G requeue=timeout signal=USR1@30", advised: true},
	{options: "--gpus-per-node=1 -N2 -t 30", script: "#CARMA mem=10G", advised: true},
	{options: "-n2 --gpus-per-task=1", advised: true},
	{options: "--gpus=1 -N1 --ntasks-per-gpu=2", advised: true},
	{options: "--gpus-per-node=1 --array=1-3", script: "#CARMA mem=9G", advised: true},
	{options: "--exclusive --gres=gpu:1", script: "#CARMA vars=SIZE mem=9G", advised: true},
	{options: "--gres=gpu:1", script: "# CARMA mem=10G",
		told: `line 2: "# CARMA mem=10G" is not read: #CARMA and a blank begin a line`},
	{options: "--gres=gpu:1", script: "#CARMA mem=10X",
		told: "sharing would refuse this job: line 2: mem=10X: not a size; write mem=12G"},
	{options: "-p gpu-recovery --gres=gpu:1", advised: true},
	{options: "-p plain --gres=gpu:1", script: "#CARMA mem=10G"},
	{options: "-n4 -J $'a\\tb'", script: "#CARMA mem=10G"},
}

func (c *cluster) pictures() (list []picture) {
	c.t.Helper()
	for _, a := range askedOfAdvice {
		list = append(list, c.pictureOf(a))
	}
	return list
}

var adminComment = regexp.MustCompile(`(?m)^ *AdminComment=.*\n`)

var ofThisJob = regexp.MustCompile(`(JobId|ArrayJobId|SubmitTime|EligibleTime|AccrueTime|LastSchedEval|Priority|` +
	`StartTime|EndTime|Deadline)=[^ ]*( \S+)?|slurm-[0-9]+|for job [0-9]+`)

// pictureOf submits a job that is held, and cancels the job.
func (c *cluster) pictureOf(a asked) picture {
	c.t.Helper()
	p := picture{asked: a}
	script := filepath.Join(c.dir, "jobs", "same.sh")
	if !strings.HasSuffix(a.script, "\n") {
		a.script += "\ntrue\n"
	}
	if err := os.WriteFile(script, []byte("#!/bin/bash\n"+a.script), 0o755); err != nil {
		c.t.Fatal(err)
	}
	id, said, err := c.run(alice, "sbatch -H --parsable "+a.options+" "+script)
	p.said = said
	if err != nil {
		p.shown = fmt.Sprint(err)
		return p
	}
	id = strings.TrimSpace(id)
	p.shown = c.sh("", "scontrol show job "+id) + "\n"
	_, words, err := c.run(alice, "scontrol update JobId="+id+" NumTasks=1 Gres=gpu:3")
	p.changed = ofThisJob.ReplaceAllString(fmt.Sprint(words, err, c.sh("", "scontrol show job "+id)), "$1")
	p.shown = ofThisJob.ReplaceAllString(p.shown, "$1")
	p.changed = adminComment.ReplaceAllString(p.changed, "")
	c.sh("", "scancel "+id)
	return p
}

// advisedRecords runs jobs, and requires their records to have the estimates, and the history to learn.
func (c *observed) advisedRecords() {
	c.t.Helper()
	used := func(mib int64) string {
		return fmt.Sprintf("here simjob --mem %dM --smact 40%s", mib, untilPeakOfNode(fmt.Sprint(mib)))
	}
	script := func(line string) string { return line + "\nenv | grep -c SPANK_CARMA\n" + used(9001) }
	fixed := c.sbatch(alice, "-w n1 --gres=gpu:1", script("#CARMA mem=10G"))
	on := c.sbatch(alice, "-w n1 --gres=gpu:1", script("#CARMA on"))
	several := c.sbatch(bob, "--gres=gpu:1 -N2 -o /dev/null", "#CARMA mem=12G\nsrun bash -c "+quote(used(5001))+"\n")
	unread := c.sbatch(bob, "-w n2 --gres=gpu:1 -o /dev/null", "# CARMA mem=10G\n"+used(7001))
	for id, want := range map[string]struct {
		mib, est int64
		note     string
	}{
		fixed:   {9001, 10240, "with sharing it would book 10.0 GiB of each GPU"},
		on:      {9001, 0, "with sharing it would have its GPUs to itself"},
		several: {5001, 12288, "with sharing it would book 12.0 GiB of each GPU"},
		unread:  {7001, 0, "line 2 of its script"},
	} {
		c.ends(id, "COMPLETED")
		c.recorded(id)
		r := c.report(id)
		page := c.sh("", "carma-report -j "+id)
		if r.PeakMiB != want.mib || r.EstMiB != want.est || !strings.Contains(page, want.note) {
			c.t.Errorf("job %s: %+v\n%s", id, r, page)
		}
	}
	if out := c.output(fixed); !strings.HasPrefix(out, "0\n") {
		c.t.Errorf("the job's environment has something of CARMA's: %q", out)
	}
	c.sh("", "carma-report history --write")
	again := regexp.MustCompile(`"method":"history","gpus":1,"est_mib":(\d+)`)
	c.eventually(func() string {
		p := c.pictureOf(asked{options: "--gres=gpu:1", script: script("#CARMA on")})
		return fmt.Sprint(again.FindStringSubmatch(p.shown))
	}, ` 9001\]`)
	out := c.sh(alice, "carma-estimate same.sh --gres=gpu:1")
	if !strings.Contains(out, "4 GPUs of 40536 MiB per node") || !strings.Contains(out, `mode = "advise"`) {
		c.t.Errorf("carma-estimate:\n%s", out)
	}
	for _, n := range observedNodes {
		if out := c.sh("", "carma-node --node "+n+" status"); !strings.Contains(out, "the agent advises") ||
			slices.ContainsFunc([]string{"OPEN", "closed", "LEASED"}, func(w string) bool { return strings.Contains(out, w) }) {
			c.t.Errorf("status of %s:\n%s", n, out)
		}
	}
}
