// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The doctor has nothing to fix on a cluster that works, and finds what is
// taken away from it.
func TestDoctor(t *testing.T) {
	c := up(t, "--nodes", "1")
	doctor := "SIMGPU_STATE=" + c.dir + "/simgpu/n1 carma-node --node n1 doctor --controller --node"
	// The doctor gives NVML 5 s and the ledger 2 s, and a busy machine more tries.
	c.eventually(func() string {
		out, stderr, err := c.run("", doctor)
		if err != nil || strings.Contains(out, "fail  ") || !strings.Contains(out, "pass  gpus         NVML shows 4") {
			return fmt.Sprintf("%v %s\n%s", err, stderr, out)
		}
		return "nothing to fix"
	}, "^nothing to fix$")
	// All parts are of one version, and slurmctld's log says so first.
	version := strings.TrimPrefix(c.sh("", "carma-node --version"), "carma-node ")
	said := c.sh("", "grep -o 'job_submit/carma: .*' "+c.dir+"/log/slurmctld.log | head -2")
	if want := "job_submit/carma: version " + version + "\njob_submit/carma: libcarma " + version; said != want {
		t.Errorf("slurmctld's log: %q, want %q", said, want)
	}
	// What another release's plugin would do to slurmctld is said before.
	plugin := filepath.Join(c.dir, "plugin", "slurm", "job_submit_carma.so")
	if err := os.Remove(plugin); err != nil {
		t.Fatal(err)
	}
	c.sh("", "scontrol update NodeName=n1 State=DRAIN Reason=test")
	var out, stderr string
	var err error
	c.eventually(func() string { out, stderr, err = c.run("", doctor); return stderr }, "2 to fix")
	for _, want := range []string{"fail  plugin       no job_submit_carma.so",
		"fail  node         n1 is IDLE+DRAIN: test"} {
		if err == nil || !strings.Contains(out, want) || !strings.Contains(stderr, "2 to fix") {
			t.Errorf("no %q in\n%s%s", want, out, stderr)
		}
	}
}
