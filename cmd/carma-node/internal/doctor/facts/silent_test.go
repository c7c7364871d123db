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

// site has commands of Slurm that answer with a little, and what more says of each; conf is its carma.toml.
func site(t *testing.T, more func(name string) string) (conf string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, name := range []string{"scontrol", "sinfo", "sacctmgr", "sdiag"} {
		text := "#!/bin/sh\n[ \"$1\" != --version ] || exec echo slurm 24.11.5\n" + more(name) + "\n"
		if name == "scontrol" {
			text += "echo AccountingStorageType = accounting_storage/slurmdbd\necho ClusterName = c\n"
		}
		write(name, text, 0o755)
	}
	return write("carma.toml", fmt.Sprintf("[slurm]\nbin_dir = %q\n[partition.gpu]\ngpus_per_node = 1\n"+
		"gpu_mem_mib = 40536\n[paths]\nrun_dir = %q\n", dir, dir), 0o644)
}

// A silent slurmctld or slurmdbd must not make the doctor blame the node's driver and agent: a health check would
// take each node of the cluster off.
func TestSilentSlurm(t *testing.T) {
	for _, silent := range []string{"scontrol", "sacctmgr"} {
		conf := site(t, func(name string) string {
			if name == silent {
				return "exec sleep 100"
			}
			return ""
		})
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

// No question of a node's health check grows with the cluster.
func TestNodeAsksLittle(t *testing.T) {
	asked := filepath.Join(t.TempDir(), "asked")
	conf := site(t, func(name string) string { return "echo " + name + " \"$@\" >>" + asked })
	Gather(t.Context(), conf, "n1", false, true)
	got, err := os.ReadFile(asked)
	if err != nil || !strings.Contains(string(got), "scontrol show config") {
		t.Fatalf("%q, %v", got, err)
	}
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
