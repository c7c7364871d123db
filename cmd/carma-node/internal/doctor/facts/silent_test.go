// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/slurmconf"
)

const carmaToml = "[slurm]\nbin_dir = %q\n[partition.gpu]\ngpus_per_node = 1\ngpu_mem_mib = 40536\n" +
	"[paths]\nrun_dir = %q\n"

// A slurmctld, or slurmdbd, that says nothing must not make the doctor blame the node's driver and agent: a health
// check would take each node of the cluster off.
func TestSilentSlurm(t *testing.T) {
	for _, silent := range []string{"scontrol", "sacctmgr"} {
		dir := t.TempDir()
		program := func(name, text string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"scontrol", "sinfo", "sacctmgr", "sdiag"} {
			text := "[ \"$1\" != --version ] || exec echo slurm 24.11.5\n"
			if name == silent {
				text += "exec sleep 100\n"
			}
			if name == "scontrol" {
				text += "echo AccountingStorageType = accounting_storage/slurmdbd\necho ClusterName = c\n"
			}
			program(name, text)
		}
		conf := filepath.Join(dir, "carma.toml")
		text := fmt.Sprintf(carmaToml, dir, dir)
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second) // runDoctor gives 30 s
		f := Gather(ctx, conf, "n1", silent == "sacctmgr", true)       // a node does not ask slurmdbd
		cancel()
		if f.Node == nil {
			t.Fatal(f.ConfigErr)
		}
		if errors.Is(f.Node.NVMLErr, context.DeadlineExceeded) || errors.Is(f.Node.NVMLErr, context.Canceled) {
			t.Errorf("%s is silent: of the GPUs the doctor says %v", silent, f.Node.NVMLErr)
		}
		if f.Node.StateErr != nil {
			t.Errorf("%s is silent: of the node's state the doctor knows %v", silent, f.Node.StateErr)
		}
		if errors.Is(f.Node.LedgerErr, context.DeadlineExceeded) {
			t.Errorf("%s is silent: of the agent the doctor says %v", silent, f.Node.LedgerErr)
		}
	}
}

// A health check of a node asks nothing that grows with the cluster.
func TestNodeAsksLittle(t *testing.T) {
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	for _, name := range []string{"scontrol", "sinfo", "sacctmgr", "sdiag"} {
		text := "#!/bin/sh\n[ \"$1\" != --version ] || exec echo slurm 24.11.5\n" +
			"echo " + name + " \"$@\" >>" + asked + "\n"
		if name == "scontrol" {
			text += "echo AccountingStorageType = accounting_storage/slurmdbd\necho ClusterName = c\n"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	conf := filepath.Join(dir, "carma.toml")
	text := fmt.Sprintf(carmaToml, dir, dir)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	Gather(t.Context(), conf, "n1", false, true)
	got, _ := os.ReadFile(asked)
	for _, line := range []string{"sacctmgr --parsable2 --noheader show associations",
		"sinfo --noheader --Node --partition"} {
		if n := strings.Count(string(got), line); n > 0 {
			t.Errorf("doctor --node runs %q %d times, on each node of the cluster:\n%s", line, n, got)
		}
	}
}

// A cluster with a backup has a line SlurmctldHost for each controller.
func TestControllerBesideBackup(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	for _, lines := range []string{"SlurmctldHost=" + host + "\nSlurmctldHost=backup\n",
		"SlurmctldHost=primary\nSlurmctldHost=" + host + "(10.0.0.2)\n"} {
		conf, err := slurmconf.Parse(lines+"NodeName=n1\nPartitionName=gpu Nodes=n1\n", nil)
		if err != nil {
			t.Fatal(err)
		}
		if controller, node := whatThisIs(conf, "nowhere"); !controller || node {
			t.Errorf("%q: controller %v, node %v", lines, controller, node)
		}
	}
}
