// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// With carma-tools goes the timer that an administrator has enabled: else systemd keeps a link to a unit that has gone.
func TestTimerGoesWithTools(t *testing.T) {
	text, err := os.ReadFile("tools.prerm")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte("/run/systemd/system"), []byte("/"))
	bin := t.TempDir()
	called := filepath.Join(bin, "called")
	systemctl := "#!/bin/sh\necho \"$*\" >>" + called + "\nexit 1\n"
	if err := os.WriteFile(filepath.Join(bin, "systemctl"), []byte(systemctl), 0o755); err != nil {
		t.Fatal(err)
	}
	for argument, want := range map[string]string{"remove": "disable --now carma-history.timer\n",
		"0": "disable --now carma-history.timer\n", "upgrade": "", "1": ""} {
		os.Remove(called)
		cmd := exec.Command("sh", "-s", argument)
		cmd.Stdin = bytes.NewReader(text)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", argument, err, out)
		}
		if got, _ := os.ReadFile(called); string(got) != want {
			t.Errorf("%s: systemctl %q, want %q", argument, got, want)
		}
	}
}

// A package is not removed as long as slurm.conf, as Slurm reads the file, names a part of the package: slurmctld
// would not start again, and nodes would drain at the next job.
func TestRemovalIsRefused(t *testing.T) {
	const conf, site, configless = "/etc/slurm/slurm.conf", "/etc/slurm/site.conf", "/run/slurm/conf/slurm.conf"
	for name, c := range map[string]struct {
		files        map[string]string
		plugin, node bool // are kept
	}{
		"plain": {map[string]string{conf: "JobSubmitPlugins=carma\nProlog=/usr/sbin/carma-prolog\n"}, true, true},
		"blanks and cases": {map[string]string{conf: "  jobsubmitplugins = lua,carma\n\tepilog =/usr/sbin/carma-epilog\n"},
			true, true},
		"included": {map[string]string{conf: "ClusterName=x\nInclude site.conf\n",
			site: "JobSubmitPlugins=lua,carma\nTaskProlog=/usr/sbin/carma-task-prolog\n"}, true, true},
		"included by the cluster's name": {map[string]string{conf: "ClusterName=X\nINCLUDE /etc/slurm/%c.conf\n",
			"/etc/slurm/x.conf": "JobSubmitPlugins=carma\n"}, true, false},
		"two on a line": {map[string]string{conf: "SlurmdDebug=info JobSubmitPlugins=carma Prolog=/usr/sbin/carma-prolog\n"},
			true, true},
		"continued": {map[string]string{conf: "JobSubmitPlugins=lua,\\ \ncarma\nProlog=\\\n/usr/sbin/carma-prolog\n"},
			true, true},
		"quoted":     {map[string]string{conf: "Prolog=\"/etc/site.sh, /usr/sbin/carma-prolog\"\n"}, false, true},
		"configless": {map[string]string{configless: "Prolog=/usr/sbin/carma-prolog\n"}, false, true},
		"others": {map[string]string{conf: "#JobSubmitPlugins=carma\nJobSubmitPlugins=lua # was: carma\n" +
			"Prolog=/etc/x.sh # /usr/sbin/carma-prolog\nInclude site.conf\n", site: "Include slurm.conf\n"}, false, false},
		"no Slurm": {nil, false, false},
	} {
		root := t.TempDir()
		for path, text := range c.files {
			if err := os.MkdirAll(filepath.Dir(root+path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root+path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for script, kept := range map[string]bool{"plugin.prerm": c.plugin, "node.prerm": c.node} {
			text, err := os.ReadFile(script) // read here, so that a cached result is of the same script
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-s", "remove")
			cmd.Stdin = bytes.NewReader(text)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DPKG_ROOT=" + root}
			if out, err := cmd.CombinedOutput(); (err != nil) != kept {
				t.Errorf("%s: %s: %v\n%s", name, script, err, out)
			}
			cmd = exec.Command("sh", "-s", "upgrade")
			cmd.Stdin = bytes.NewReader(text)
			cmd.Env = []string{"DPKG_ROOT=" + root}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s: %s upgrade: %v\n%s", name, script, err, out)
			}
		}
	}
}
