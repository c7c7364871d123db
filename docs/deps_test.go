// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each target that takes packages has its line in the list, and each line is of a
// target; a target's name is not taken for another's beginning.
func TestDeps(t *testing.T) {
	list, err := exec.Command(root+"/contrib/deps.sh", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	known := targets(t)
	listed := map[string]string{}
	for line := range strings.Lines(string(list)) {
		target, packages, _ := strings.Cut(line, " ")
		listed[target] = packages
	}
	long, err := os.ReadFile(root + "/contrib/long.sh")
	if err != nil {
		t.Fatal(err)
	}
	asking := regexp.MustCompile(`\bdeps-([a-z0-9-]+)`).FindAllStringSubmatch(string(makefile), -1)
	asking = append(asking, regexp.MustCompile(`(?m)^([a-z0-9-]+)\).*\n\tdeps$`).FindAllStringSubmatch(string(long), -1)...)
	if len(asking) < 20 {
		t.Errorf("%d targets ask for packages", len(asking))
	}
	for _, m := range asking {
		if m[1] != "list" && listed[m[1]] == "" {
			t.Errorf("%s asks for packages, contrib/deps.sh has no line for it", m[1])
		}
	}
	for target, packages := range listed {
		if target != "cluster" && !known[target] {
			t.Errorf("contrib/deps.sh has packages for %s, which is no target", target)
		}
		for _, m := range regexp.MustCompile(`@(\S+)`).FindAllStringSubmatch(packages, -1) {
			if listed[m[1]] == "" {
				t.Errorf("%s needs those of %s, which has no line", target, m[1])
			}
		}
	}
	out, err := exec.Command(root+"/contrib/deps.sh", "no-such-target").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no target 'no-such-target'") {
		t.Errorf("%v: %s", err, out)
	}
}

// On a release with a Slurm that CARMA does not work with, deps.sh says so in one sentence and installs nothing;
// packages beside Slurm's are installed there, too.
func TestDepsOfAnOldSlurm(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("no dpkg")
	}
	const refused = "deps: this release has Slurm 21.08.5; CARMA needs 22.05 or later: " +
		"Debian 12 or 13, or Ubuntu 24.04\n"
	for _, c := range []struct{ target, candidate, want string }{
		{"demo", "21.08.5-2ubuntu1", refused},
		{"demo", "23.11.4-1.2ubuntu5", "deps: done\n"},
		{"demo", "22.05.8-4+deb12u3", "deps: done\n"},
		{"release", "21.08.5-2ubuntu1", "deps: done\n"},
	} {
		stubs := t.TempDir()
		for name, script := range map[string]string{"id": "echo 1000", "dpkg-query": "exit 1",
			"apt-cache": "echo '  Candidate: " + c.candidate + "'",
			"sudo":      `cat >/dev/null; echo "$*" >>` + stubs + "/log"} {
			if err := os.WriteFile(filepath.Join(stubs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command(root+"/contrib/deps.sh", c.target)
		cmd.Env = append(os.Environ(), "PATH="+stubs+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		done, _ := os.ReadFile(stubs + "/log")
		installs := strings.Contains(string(done), "apt-get install")
		_, said, _ := strings.Cut(string(out), "\n")
		if said != c.want || (err == nil) != installs || installs == (said == refused) {
			t.Errorf("%s with %s: %v\n%s%s", c.target, c.candidate, err, out, done)
		}
	}
}

// Headers of an old Slurm are refused by one error, not by one of each source file.
func TestShimOfAnOldSlurm(t *testing.T) {
	include := t.TempDir()
	if err := os.Mkdir(include+"/slurm", 0o755); err != nil {
		t.Fatal(err)
	}
	header := "#define SLURM_VERSION_NUM(a, b, c) (((a) << 16) + ((b) << 8) + (c))\n" +
		"#define SLURM_VERSION_NUMBER SLURM_VERSION_NUM(21, 8, 5)\n"
	if err := os.WriteFile(include+"/slurm/slurm.h", []byte(header), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "-s", "-C", root, "shim", "SLURM_INCLUDE="+include, "SHIM_OUT="+include+"/shim.so")
	out, err := cmd.CombinedOutput()
	if err == nil || strings.Count(string(out), " error: ") != 1 ||
		!strings.Contains(string(out), "CARMA needs Slurm 22.05 or later") {
		t.Errorf("%v\n%s", err, out)
	}
}
