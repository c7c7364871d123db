// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
	"carma/db/texttable"
	"carma/gres"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

// own is a slurm.conf without a line of CARMA's.
const own = "ClusterName=c\nPrologFlags=Contain\nProlog=/etc/slurm/site.sh\nGresTypes=gpu\n" +
	"NodeName=gpu1 Gres=gpu:4\nPartitionName=gpu Nodes=gpu1 Default=YES\nPartitionName=gpu-recovery Nodes=gpu1\n"

// observes is a site without a carma.toml, with nothing wrong.
func observes(t *testing.T, slurmConf string) Facts {
	t.Helper()
	f := site(t)
	f.NoConfig, f.Config, f.Extras = true, f.Config.Observing(), nil
	f.Config.Partition = nil
	conf, err := slurmconf.Parse(slurmConf, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.SlurmConf, f.Running = conf, map[string]string{}
	for name, value := range conf.Settings {
		f.Running[lower(name)] = value
	}
	f.Running["slurm_version"] = "24.11.5"
	f.Node.Hooks, f.Node.Slots = nil, nil
	f.Node.Samples = append([]gres.Sample(nil), f.Node.Samples...)
	return f
}

// An agent that only observes needs Slurm, NVML and its own files, and no line in slurm.conf.
func TestDiagnoseObserving(t *testing.T) {
	observed := func(f *Facts) { f.NoConfig = false }
	advises := func(f *Facts) {
		f.NoConfig, f.Config = false, site(t).Config
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
		{"advised before", own + "JobSubmitPlugins=lua,carma\n", observed, ""},
		{"advised before, and Slurm is another", own + "JobSubmitPlugins=carma\n", func(f *Facts) {
			f.NoConfig = false
			f.Controller.PluginVersion.Minor = 5
			f.Controller.LibraryErr = errors.New("libcarma.so: cut short")
		}, "fail plugin: /usr/lib/carma/slurm/job_submit_carma.so is built for Slurm 24.05.5, installed is 24.11.5: " +
			"slurmctld would not start"},
		{"hooks act", own + "Epilog=/usr/sbin/carma-epilog\n", observed,
			"fail slurm.conf: it has Epilog=/usr/sbin/carma-epilog: hooks lease GPUs, and the agent only observes"},
		{"advises", own + "JobSubmitPlugins=lua,carma\n", advises, ""},
		{"advises without the plugin", own, advises,
			"fail slurm.conf: JobSubmitPlugins does not name carma: no job gets an estimate"},
		{"advises without the plugin, with hooks", own + "Epilog=/usr/sbin/carma-epilog\n", advises,
			"fail slurm.conf: it has Epilog=/usr/sbin/carma-epilog: hooks lease GPUs, and the agent only observes"},
		{"advises with hooks", own + "JobSubmitPlugins=carma\nProlog=/usr/sbin/carma-prolog\n", advises,
			"fail slurm.conf: it has Prolog=/usr/sbin/carma-prolog: hooks lease GPUs, and the agent only observes"},
		{"advises on no partition", own + "JobSubmitPlugins=carma\n", func(f *Facts) {
			advises(f)
			f.Config.Partition = nil
		}, "fail carma.toml: /etc/carma/carma.toml has mode = \"advise\", and no partition"},
		{"advises on partitions of another name",
			strings.Replace(own, "PartitionName=gpu Nodes=gpu1 Default=YES", "PartitionName=gpus Nodes=gpu1", 1) +
				"JobSubmitPlugins=carma\n", advises,
			"fail slurm.conf: slurm.conf has no partition gpu: no job gets an estimate there"},
		{"advises on a partition that is not the default", strings.Replace(own, " Default=YES", "", 1) +
			"JobSubmitPlugins=carma\n", advises,
			"fail slurm.conf: partition gpu has Default=(none) in slurm.conf and default = true in carma.toml"},
		{"slurmctld has not read the plugin's line", own + "JobSubmitPlugins=carma\n", func(f *Facts) {
			advises(f)
			delete(f.Running, "jobsubmitplugins")
		}, "warn slurm.conf: slurmctld still runs with JobSubmitPlugins=(none)"},
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
		f := observes(t, c.conf)
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

// What an administrator reads at the steps Watch and Advise of docs/pilot.md, and where a step was left out.
func TestPrintObserving(t *testing.T) {
	const plugin = "JobSubmitPlugins=lua,carma\n"
	mode := func(mode string) func(*Facts) {
		return func(f *Facts) {
			f.NoConfig, f.Config = false, site(t).Config
			f.Config.Mode, f.Config.History.File = mode, "/var/lib/carma-history/history"
			f.Controller.HistoryErr = fmt.Errorf("stat: %w", fs.ErrNotExist)
		}
	}
	advise := mode(config.ModeAdvise)
	type situation struct {
		name, conf string
		change     func(*Facts)
	}
	for golden, list := range map[string][]situation{
		"observe.txt": {
			{"without a carma.toml", own, func(*Facts) {}},
			{"mode = observe after mode = advise", own + plugin, mode(config.ModeObserve)},
			{"hooks are named", own + plugin + "Epilog=/usr/sbin/carma-epilog\n", mode(config.ModeObserve)},
			{"carma.toml was lost", own + plugin, func(*Facts) {}},
		},
		"advise.txt": {
			{"on the controller, nothing learned yet", own + plugin, advise},
			{"learned", own + plugin, func(f *Facts) {
				advise(f)
				f.Controller.HistoryErr, f.Controller.HistoryAge, f.Node = nil, 7*time.Minute, nil
			}},
			{"on a GPU node", own + plugin, func(f *Facts) { advise(f); f.Controller = nil }},
			{"slurm.conf lacks the plugin", own, advise},
			{"slurmctld was not restarted", own + plugin, func(f *Facts) {
				advise(f)
				f.Running["jobsubmitplugins"] = "lua"
			}},
			{"switched off, and libcarma.so is broken", own + plugin, func(f *Facts) {
				advise(f)
				f.Disabled, f.Controller.LibraryErr = true, errors.New("/usr/lib/carma/libcarma.so: cut short")
			}},
		},
	} {
		var b bytes.Buffer
		for i, c := range list {
			f := observes(t, c.conf)
			c.change(&f)
			if i > 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "%s:\n", c.name)
			if err := Print(&b, Diagnose(f), texttable.Style{}); err != nil {
				t.Fatal(err)
			}
		}
		golden = "testdata/" + golden
		if *update {
			if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want := read(t, golden); b.String() != want {
			t.Errorf("%s:\n%s\nwant\n%s", golden, b.String(), want)
		}
	}
}
