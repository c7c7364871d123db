// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"carma/slurmbridge/config"
)

// Without a carma.toml the agent observes; without one that was named, or that hooks need, it does not start.
func TestConfigOf(t *testing.T) {
	if _, err := os.Stat(config.DefaultPath); err == nil {
		t.Skip("this machine has a " + config.DefaultPath)
	}
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain.conf", "ClusterName=carma\nProlog=/etc/slurm/prolog\n")
	hooks := file("hooks.conf", "ClusterName=x\nEpilog=/usr/sbin/carma-epilog\n")
	plugin := file("plugin.conf", "JobSubmitPlugins=lua,carma\n")
	sharing, observing := file("share.toml", "[hold]\nafter = \"1h\"\n"), file("observe.toml", "mode = \"observe\"\n")
	for _, c := range []struct {
		path, slurmConf, mode, err string
	}{
		{config.DefaultPath, plain, config.ModeObserve, ""},
		{config.DefaultPath, dir + "/none", config.ModeObserve, ""},
		{config.DefaultPath, hooks, "", "slurm.conf has Epilog=/usr/sbin/carma-epilog: restore the file"},
		{config.DefaultPath, plugin, "", "slurm.conf has JobSubmitPlugins=lua,carma: restore the file"},
		{dir + "/none.toml", plain, "", "no such file"},
		{sharing, hooks, config.ModeShare, ""},
		{observing, plain, config.ModeObserve, ""},
		{observing, hooks, config.ModeObserve, ""},
	} {
		got, err := configOf(c.path, c.slurmConf)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		if err != nil || got.Mode != c.mode {
			t.Errorf("%+v: mode %q, %v", c, got.Mode, err)
		}
		if off := !got.MPS.Enabled && got.Hold.After == 0 && got.Devices.Confine == "none"; off != got.Observes() {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// An agent that is started before slurm.conf has CARMA's lines closes no GPU: no job there comes with a Prolog.
func TestNoPrologNoGuard(t *testing.T) {
	dir := t.TempDir()
	hooks := []byte("Prolog=/usr/sbin/carma-prolog\n")
	if err := os.WriteFile(filepath.Join(dir, "hooks.conf"), hooks, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"none":       {"ClusterName=x\nEpilog=/etc/slurm/epilog\n", false},
		"empty":      {"Prolog=\n", false},
		"CARMA's":    {"Prolog=/usr/sbin/carma-prolog\n", true},
		"the site's": {"prolog = /etc/slurm/prolog.d/*\n", true},
		"included":   {"Include hooks.conf\n", true},
	} {
		path := filepath.Join(dir, "slurm.conf")
		if err := os.WriteFile(path, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := runsProlog(path); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !runsProlog(filepath.Join(dir, "missing")) {
		t.Error("a slurm.conf that cannot be read is no word against a Prolog")
	}
}
