// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

// An agent that only observes needs Slurm, NVML and its own files, and no line in slurm.conf.
func TestDiagnoseObserving(t *testing.T) {
	const own = "ClusterName=c\nPrologFlags=Contain\nProlog=/etc/slurm/site.sh\nGresTypes=gpu\n" +
		"NodeName=gpu1 Gres=gpu:4\nPartitionName=gpu Nodes=gpu1\n"
	advises := func(f *Facts) {
		as := site(t)
		f.NoConfig, f.Config, f.Controller = false, as.Config, as.Controller
		f.Config.Mode = config.ModeAdvise
	}
	for _, c := range []struct {
		name   string
		conf   string
		change func(*Facts)
		want   string // the findings that do not pass
	}{
		{"as it should be", own, func(*Facts) {}, ""},
		{"with a carma.toml", own, func(f *Facts) { f.NoConfig = false }, ""},
		{"of a federation, with a requeue that loses licences", own, func(f *Facts) {
			f.Federation = "f"
			ofRelease(f, 25, 11, 3)
		}, ""},
		{"carma.toml was lost", own + "JobSubmitPlugins=lua,carma\n", func(*Facts) {},
			"fail slurm.conf: it has JobSubmitPlugins=lua,carma, and there is no /etc/carma/carma.toml: " +
				"the agent does not start"},
		{"advised before", own + "JobSubmitPlugins=lua,carma\n", func(f *Facts) { f.NoConfig = false }, ""},
		{"hooks act", own + "Epilog=/usr/sbin/carma-epilog\n", func(f *Facts) { f.NoConfig = false },
			"fail slurm.conf: it has Epilog=/usr/sbin/carma-epilog: hooks lease GPUs, and the agent only observes"},
		{"advises", own + "JobSubmitPlugins=lua,carma\n", advises, ""},
		{"advises without the plugin", own, advises,
			"fail slurm.conf: JobSubmitPlugins does not name carma: no job gets an estimate"},
		{"advises with hooks", own + "JobSubmitPlugins=carma\nProlog=/usr/sbin/carma-prolog\n", advises,
			"fail slurm.conf: it has Prolog=/usr/sbin/carma-prolog: hooks lease GPUs, and the agent only observes"},
		{"advises on no partition", own + "JobSubmitPlugins=carma\n", func(f *Facts) {
			advises(f)
			f.Config.Partition = nil
		}, "fail carma.toml: /etc/carma/carma.toml has mode = \"advise\", and no partition"},
		{"the plugin is missing", own + "JobSubmitPlugins=carma\n", func(f *Facts) {
			advises(f)
			f.Controller.PluginPath = ""
		}, "fail plugin: no job_submit_carma.so in PluginDir=(none)"},
		{"slurmctld is silent", own, func(f *Facts) { f.RunningErr = errors.New("no answer") },
			"warn slurm: slurmctld does not answer: no answer"},
		{"too old a Slurm", own, func(f *Facts) { f.Installed = sctl.Version{Major: 21, Minor: 8, Micro: 5} },
			"fail slurm: CARMA needs Slurm 22.05 or later; this is 21.08.5"},
		{"no driver", own, func(f *Facts) { f.Node.NVMLErr = errors.New("NVML: no driver") }, "fail gpus: NVML: no driver"},
		{"a lost GPU", own, func(f *Facts) { f.Node.Samples[1].Unreadable = "lost" },
			"fail gpus: GPU 1 cannot be read: lost"},
		{"coarse activity", own, func(f *Facts) {
			for i := range f.Node.Samples {
				f.Node.Samples[i].Source = figure.SourceUtilisation
			}
		}, "warn gpus: SM activity is known only as NVML utilisation, which overstates it"},
		{"the agent hangs", own, func(f *Facts) { f.Node.AgentAge = time.Hour },
			"fail agent: the agent last saw the GPUs 1h0m0s ago"},
		{"no GPU node", own, func(f *Facts) { f.Node = nil }, ""},
	} {
		f := site(t)
		f.NoConfig, f.Config, f.Extras = true, f.Config.Observing(), nil
		f.Config.Partition = nil
		conf, err := slurmconf.Parse(c.conf, nil)
		if err != nil {
			t.Fatal(err)
		}
		f.SlurmConf, f.Running = conf, map[string]string{"slurm_version": "24.11.5"}
		f.Controller.PluginPath, f.Node.Hooks, f.Node.Slots = "", nil, nil
		f.Node.Samples = append([]gres.Sample(nil), f.Node.Samples...)
		c.change(&f)
		var got []string
		for _, f := range Diagnose(f) {
			if (f.Level == Pass) != (f.Do == "") {
				t.Errorf("%s: %+v", c.name, f)
			}
			if f.Level != Pass {
				got = append(got, fmt.Sprintf("%s %s: %s", f.Level, f.Part, f.What))
			}
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), c.want)
		}
	}
}
