// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"carma/slurmbridge/extra"
	"carma/slurmbridge/schedule"
	"carma/slurmbridge/sctl"
)

// Nodes are for the steward what they are for slurmctld, and what it leaves in a node's
// Extra comes back.
func TestNodeStates(t *testing.T) {
	needsCounts(t)
	c := up(t)
	slurm := sctl.Client{BinDir: filepath.Dir(c.sh("", "command -v scontrol")),
		Conf: filepath.Join(c.dir, "etc/slurm.conf")}
	node := func(name string) schedule.Node {
		nodes, err := slurm.Nodes(t.Context(), []string{"gpu", "gpu-recovery"})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			if n.Name == name {
				return n
			}
		}
		t.Fatalf("no node %s in %+v", name, nodes)
		return schedule.Node{}
	}
	is := func(lives, takes bool) {
		t.Helper()
		c.eventually(func() string { n := node("n1"); return fmt.Sprint(n.Lives, n.Up) },
			fmt.Sprintf("^%v %v$", lives, takes))
	}
	set := func(text string) { c.sh("", "scontrol "+text) }
	is(true, true)
	set("update NodeName=n1 State=DRAIN Reason=test")
	is(false, false)
	set("update NodeName=n1 State=RESUME")
	is(true, true)
	id := c.sbatch(alice, "-w n1", train("10G", "1h"))
	c.gpu(id)
	is(true, true) // mixed
	c.sh(alice, "scancel "+id)
	c.ends(id, "CANCELLED")
	set("create reservation ReservationName=r StartTime=now Duration=10 Users=root Nodes=n1")
	is(true, false)
	set("delete ReservationName=r")
	is(true, true)
	set("create reservation ReservationName=r StartTime=now Duration=10 Users=root Nodes=n1 Flags=MAINT")
	is(false, false)
	set("delete ReservationName=r")
	is(true, true)
	set("update NodeName=n1 State=DOWN Reason=test")
	is(false, false)
	set("update NodeName=n1 State=RESUME")
	is(true, true)

	set("update NodeName=n1 AvailableFeatures=old,nvlink ActiveFeatures=nvlink")
	n := node("n1")
	slices.Sort(n.Partitions)
	if n.Features != "nvlink" || strings.Join(n.Partitions, " ") != "gpu gpu-recovery" || n.GPUs != 4 {
		t.Errorf("%+v", n)
	}
	text, err := extra.SetWord(n.Extra, extra.Waits, "7:3:1795000000")
	if err == nil {
		err = slurm.SetNodeExtra(t.Context(), "n1", text)
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := node("n1"); extra.Word(n.Extra, extra.Waits) != "7:3:1795000000" || n.GPUs != 4 {
		t.Errorf("%+v", n)
	}
	c.nothingLeft()
}
