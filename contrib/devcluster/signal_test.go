// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Signals to slurmd, as logrotate and scontrol reconfigure send them, end no Prolog that
// waits, whichever thread of slurmd they come to; so they drain no node.
func TestPrologOutlivesSignals(t *testing.T) {
	c := up(t, "--nodes", "1")
	c.settings(map[string]string{"hooks.wait": `"100s"`}) // until unlock is called, on a slow machine too
	unlock := c.lockLedger("n1")
	defer unlock()
	id := c.sbatch(alice, "--gres=gpu:1", "#CARMA mem=1G\ntrue\n")
	c.eventually(func() string { return c.job(id, "%T %r") }, "RUNNING Prolog")
	slurmd := strings.Fields(c.sh("", "cat "+c.dir+"/pid/slurmd.n1"))[0]
	waits := func() string { // the Prolog, below slurmd
		return c.sh("", "pgrep -P "+slurmd+" -f 'carma-node .*prolog' || true")
	}
	c.eventually(waits, "^[0-9]+$")
	prolog := waits()
	c.eventually(func() string { return c.sh("", "readlink /proc/"+prolog+"/fd/1") }, "^/dev/null$")
	threads, err := os.ReadDir(filepath.Join("/proc", slurmd, "task"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(slurmd)
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		tid, err := strconv.Atoi(thread.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Tgkill(pid, tid, unix.SIGUSR2); err != nil && err != unix.ESRCH {
			t.Fatal(err)
		}
	}
	unlock()
	c.ends(id, "COMPLETED")
	if log := c.sh("", "cat "+c.dir+"/log/slurmd.n1.log"); regexp.MustCompile("killed|prolog failed").MatchString(log) {
		t.Errorf("slurmd has killed a Prolog:\n%s", log)
	}
	c.nothingLeft()
}
