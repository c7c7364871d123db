// SPDX-License-Identifier: Apache-2.0

package slurmconf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	f, err := Parse(`# a comment
ClusterName=c  SlurmUser="slurm"
prologflags=Alloc,\
Contain
PluginDir = /a:/b # behind it
include nodes.conf
NodeName=DEFAULT CPUs=64 Gres=gpu:4
NodeName=n[1-2] RealMemory=100 Reason="two words"
NodeName=n3 Gres=gpu:8
PartitionName=DEFAULT MaxTime=60
PartitionName=gpu Nodes=n[1-3] Default=YES
word
=x
`, func(name string) (string, error) {
		if name != "nodes.conf" {
			return "", errors.New("no such file")
		}
		return "NodeName=login\nSelectType=select/cons_tres\n", nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"ClusterName": "c", "SLURMUSER": "slurm", "PrologFlags": "Alloc,Contain",
		"PluginDir":  "/a:/b",
		"SelectType": "select/cons_tres", "None": ""} {
		if got := f.Setting(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if len(f.Nodes) != 3 || f.Nodes[0].Name != "login" || f.Nodes[0].Get("CPUs") != "" {
		t.Fatalf("nodes %+v", f.Nodes)
	}
	if n := f.Nodes[1]; n.Name != "n[1-2]" || n.Get("cpus") != "64" || n.Get("Gres") != "gpu:4" ||
		n.Get("Reason") != "two words" ||
		strings.Join(n.Words, " ") != `RealMemory=100 Reason="two words"` {
		t.Errorf("node %+v", n)
	}
	if n := f.Nodes[2]; n.Get("Gres") != "gpu:8" {
		t.Errorf("node %+v", n)
	}
	if len(f.Partitions) != 1 || f.Partitions[0].Name != "gpu" || f.Partitions[0].Get("MaxTime") != "60" ||
		f.Partitions[0].Get("default") != "YES" {
		t.Errorf("partitions %+v", f.Partitions)
	}
}

func TestParseGres(t *testing.T) {
	f, err := Parse("AutoDetect=nvml\nNodeName=n1 Name=gpu File=/dev/carma/slot[0-15]\nName=carma Count=162144\n", nil)
	if err != nil || len(f.Other) != 2 || f.Other[0].Get("Name") != "gpu" || f.Other[1].Name != "carma" ||
		f.Setting("autodetect") != "nvml" {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestIncludeErrors(t *testing.T) {
	if _, err := Parse("Include x\n", func(string) (string, error) { return "", errors.New("gone") }); err == nil ||
		err.Error() != "include x: gone" {
		t.Errorf("got %v", err)
	}
	if _, err := Parse("Include x\n", func(string) (string, error) { return "Include x\n", nil }); err == nil {
		t.Error("files that include each other never end")
	}
	if _, err := Parse("Include x\n", nil); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestRunning(t *testing.T) {
	s := Running("Configuration data as of 2026-11-21T13:00:00\nPrologFlags             = Alloc\nProlog               " +
		"   = (null)\nSLURM_VERSION           = 22.05.8\n\nSlurmctld(primary) at localhost is UP\n")
	if len(s) != 3 || s["prologflags"] != "Alloc" || s["prolog"] != "" || s["slurm_version"] != "22.05.8" {
		t.Errorf("%v", s)
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"../../contrib/slurm/slurm.conf", "../../contrib/slurm/gres.conf"} {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add("NodeName=a B=\"c\nInclude d\n\\")
	f.Fuzz(func(t *testing.T, text string) {
		Parse(text, func(string) (string, error) { return text, nil })
		Running(text)
	})
}

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"slurm.conf": "Include spool.conf\nNodeName=n1\nTaskPlugin=task/cgroup\n",
		"spool.conf": "SlurmdSpoolDir=/spool/%h/%n\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := Settings(filepath.Join(dir, "slurm.conf"))
	if got := f.SpoolDir("n1", "host"); err != nil || got != "/spool/host/n1" ||
		f.Setting("TaskPlugin") != "task/cgroup" || f.Nodes != nil {
		t.Errorf("%q, %+v, %v", got, f, err)
	}
	if got := (File{}).SpoolDir("n1", "host"); got != "" {
		t.Errorf("without the setting: %q", got)
	}
}

// INCLUDE MODIFIERS of slurm.conf(5): %c is the cluster's name, in small letters (parse_config.c,
// _parse_for_format, 22.05 to 26.05).
func TestIncludeModifier(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"slurm.conf":     "ClusterName=HPC\nInclude nodes-%c.conf\nTaskPlugin=task/cgroup\n",
		"nodes-hpc.conf": "NodeName=n1 Gres=gpu:4\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "slurm.conf")
	if f, err := Read(path); err != nil || len(f.Nodes) != 1 {
		t.Errorf("Read: %+v, %v", f.Nodes, err)
	}
	if f, err := Settings(path); err != nil || f.Setting("TaskPlugin") != "task/cgroup" {
		t.Errorf("Settings: %+v, %v", f.Settings, err)
	}
}
