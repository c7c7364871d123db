// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestCgroupJob(t *testing.T) {
	const scope = "/system.slice/slurmstepd.scope"
	for _, c := range []struct {
		text string
		want uint32
	}{
		// v2, of 22.05 to 25.11 (cgroup_v2.c of 23.11.11:1216, 24.05.8:1330, 24.11.7:1773, 25.05.8:1856,
		// 25.11.7:1924), and of 26.05 with CgroupJobIdPaths=yes (26.05.3:1932). The scope: 23.11.11:238,
		// 24.11.7:409, 25.11.7:440, 26.05.3:442; with IgnoreSystemd=yes slurmd makes the same one itself.
		{"0::" + scope + "/job_7/step_0/user/task_0\n", 7},
		{"0::" + scope + "/job_7/step_batch/slurm\n", 7},
		{"0::" + scope + "/job_7/step_extern/user/task_special\n", 7},
		{"0::" + scope + "/job_7", 7},
		{"0::/system.slice/gpu-07_slurmstepd.scope/job_7/step_0/user/task_0\n", 7}, // --enable-multiple-slurmd
		{"0::/gpu.slice/n1_slurmstepd.scope/job_7/step_0/user/task_0\n", 7},        // CgroupSlice
		{"0::/site.slice/site-gpu.slice/slurmstepd.scope/job_7/step_0\n", 7},
		// CgroupSlice is free text (25.11.7, cgroup.c:372), and need not be a slice where systemd is ignored.
		{"0::/slurm/slurmstepd.scope/job_7/step_0/user/task_0\n", 0},
		{"0::" + scope + "/job_7/step_0/user/task_0 (deleted)\n", 7},
		// v1, on systemd with a v2 hierarchy beside it; of several slurmd (xcgroup.c, 22.05.8:426 to 26.05.3:368,
		// 414, 424: CgroupPrepend cannot be set, and there are no SLUIDs).
		{"12:freezer:/slurm/uid_1000/job_7/step_0\n1:name=systemd:/system.slice/slurmd.service\n0::/\n", 7},
		{"4:cpu,cpuacct:/\n3:devices:/slurm_n1/uid_1000/job_7/step_batch/task_0\n", 7},
		{"3:devices:/slurm_n1/uid_1000/job_7/step_extern/task_4294967293\n", 7},
		// Below its own job a user may make what he likes.
		{"0::" + scope + "/job_5/step_0/user/task_0/job_7\n", 5},
		{"0::" + scope + "/job_5/step_0/user/task_0" + scope + "/job_7\n", 5},
		{"3:devices:/slurm/uid_1000/job_5/step_0/slurm/uid_1000/job_7\n", 5},
		// So in a subtree that systemd or an administrator gave him, and in containers.
		{"0::/user.slice/user-1000.slice/user@1000.service/job_7\n", 0},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_7/step_0\n", 0},
		{"0::/user.slice/user-1000.slice/user@1000.service" + scope + "/job_7/step_0\n", 0},
		{"0::/user.slice/user-1000.slice/slurmstepd.scope/job_7\n", 0},
		{"0::/user.slice/user-1000.slice/session-3.scope/slurmstepd.scope/job_7\n", 0},
		{"0::/system.slice/lab.service/slurmstepd.scope/job_7/step_0\n", 0},
		{"0::/system.slice/docker-0123.scope/system.slice/slurmstepd.scope/job_7/step_0\n", 0},
		{"0::/machine.slice/libpod-0123.scope/container/slurm/uid_1000/job_7\n", 0},
		{"3:devices:/user/1000/slurm/uid_1000/job_7/step_0\n", 0},
		{"3:devices:/docker/0123/slurm/uid_1000/job_7/step_0\n", 0},
		{"1:name=systemd:/slurm/uid_1000/job_7/step_0\n", 0},
		{"1:name=lab:/slurm/uid_1000/job_7/step_0\n", 0},
		{"1:name=systemd:" + scope + "/job_7/step_0\n", 0},
		{"3:devices:" + scope + "/job_7/step_0\n", 0}, // v2's place in v1
		{"0::/slurm/uid_1000/job_7/step_0\n", 0},      // and v1's in v2
		{"0::/../../system.slice/slurmstepd.scope/job_7\n", 0},
		// Another's, and what only looks like Slurm's.
		{"3:devices:/slurm/uid_1001/job_7/step_0\n", 0},
		{"3:devices:/slurm/uid_1001/job_7/step_0\n2:freezer:/slurm/uid_1000/job_8/step_0\n", 8},
		{"3:devices:/slurmy/uid_1000/job_7\n", 0},
		{"3:devices:slurm/uid_1000/job_7\n", 0},
		{"3:devices:/slurm/job_7\n", 0},
		{"3:devices:/slurm/uid_1000\n", 0},
		{"0::" + scope + "/s6FZ1AB2C3D400/step_0/user/task_0\n", 0}, // 26.05.3, cgroup_v2.c:1935: a SLUID
		{"0::/gpu.slice/n1_slurmstepd.scope/s6FZ1AB2C3D400/step_batch/slurm\n", 0},
		{"0::" + scope + "/s6FZ1AB2C3D400/step_0/user/task_0/job_7/step_0\n", 0}, // below it the user's own
		{"0::" + scope + "/slurmd\n", 0},                                         // 25.11.7, cgroup_v2.c:69
		{"0::" + scope + "/system\n", 0},
		{"0::" + scope + "/job_7x/step_0\n", 0},
		{"0::" + scope + "/job_07/step_0\n", 0},
		{"0::" + scope + "/job_-7/step_0\n", 0},
		{"0::" + scope + "/job_4294967303/step_0\n", 0},
		{"0::" + scope + "/job_0/step_0\n", 0},
		{"0::" + scope + "/job_/step_0\n", 0},
		{"0::/slurmstepd.scope/job_7\n", 0},
		{"0::/system.slice/myslurmstepd.scope/job_7\n", 0},
		{"0::/system.slice/slurmstepd.scope\n", 0},
		{"", 0}, {":", 0}, {"::", 0}, {"0::", 0}, {"0::/\n", 0}, {"job_7\n", 0},
	} {
		if got := cgroupJob(c.text, "", 1000); got != c.want {
			t.Errorf("%q: job %d, want %d", c.text, got, c.want)
		}
	}
	if got := cgroupJob("3:devices:/slurm/uid_1000/job_7/step_0\n", "", 0); got != 7 {
		t.Errorf("root's process in a job: job %d", got)
	}
}

// Slurm's scope in a container is below the container's cgroup.
func TestCgroupJobInContainer(t *testing.T) {
	const own = "0::/docker.slice/docker-0123.scope"
	for _, c := range []struct {
		init, text string
		want       uint32
	}{
		{own + "/init.scope\n", own + "/system.slice/slurmstepd.scope/job_7/step_0\n", 7},
		{own + "/init.scope\n", "0::/docker.slice/docker-4567.scope/system.slice/slurmstepd.scope/job_7/step_0\n", 0},
		{own + "/init.scope\n", "0::/system.slice/slurmstepd.scope/job_7/step_0\n", 0},
		{"0::/init.scope\n", "0::/system.slice/slurmstepd.scope/job_7/step_0\n", 7},
		{"9:name=systemd:/docker/0123\n0::/\n", "0::/system.slice/slurmstepd.scope/job_7/step_0\n", 7},
		{"", "0::/system.slice/slurmstepd.scope/job_7/step_0\n", 7},
		// A cgroup namespace (24.11.7 to 26.05.3, cgroup_v2.c, _get_proc_cg_path).
		{"0::/\n", "0::/system.slice/slurmstepd.scope/job_7/step_0\n", 7},
		// slurmd is process 1 and ignores systemd (25.11.7:428): its scope is above it, and tells no job here.
		{"0::/system.slice/slurmstepd.scope/slurmd\n", "0::/system.slice/slurmstepd.scope/job_7/step_0\n", 0},
	} {
		if got := cgroupJob(c.text, aboveInit(c.init), 1000); got != c.want {
			t.Errorf("process 1 in %q, %q: job %d, want %d", c.init, c.text, got, c.want)
		}
	}
}

// Never a job that no line's Slurm scope names, and always the one that a line by
// itself names.
func FuzzCgroupJob(f *testing.F) {
	f.Add("0::/system.slice/n1_slurmstepd.scope/job_5/step_0/user/task_0/job_7\n", uint32(1000), uint32(5))
	f.Add("3:devices:/slurm_n1/uid_1000/job_5/step_0/slurm/uid_1000/job_7\n0::/\n", uint32(1000), uint32(7))
	f.Add("0::/user.slice/user-1000.slice/user@1000.service/job_7\n1:name=x:/slurm/uid_1/job_2", uint32(1), uint32(0))
	f.Add("0::/a.slice/slurmstepd.scope/job_07/step_0\n0::/a.slice/slurmstepd.scope/job_4294967303", uint32(1), uint32(1))
	v2 := regexp.MustCompile(`^0::(?:/[^/]*\.slice)+/(?:[^/]*_)?slurmstepd\.scope/job_([1-9][0-9]*)(?:/|$)`)
	v1 := regexp.MustCompile(`^[^:]*:[^:]+:/slurm(?:_[^/]*)?/uid_(0|[1-9][0-9]*)/job_([1-9][0-9]*)(?:/|$)`)
	f.Fuzz(func(t *testing.T, text string, uid, job uint32) {
		named := map[string]bool{"0": true}
		for line := range strings.SplitSeq(text, "\n") {
			if m := v2.FindStringSubmatch(line); m != nil && !strings.HasPrefix(line, "0::/user.slice/") {
				named[m[1]] = true
			}
			m := v1.FindStringSubmatch(line)
			if m != nil && !strings.Contains(line, ":name=") && (m[1] == fmt.Sprint(uid) || uid == 0) {
				named[m[2]] = true
			}
		}
		if got := cgroupJob(text, "", uid); !named[fmt.Sprint(got)] {
			t.Errorf("%q: job %d, of %v", text, got, named)
		}
		// The same text below a job, where its user may have made it.
		text = strings.ReplaceAll(text, "\n", "")
		for _, below := range []string{
			fmt.Sprintf("0::/system.slice/slurmstepd.scope/job_%d/%s", job, text),
			fmt.Sprintf("2:devices:/slurm/uid_%d/job_%d/%s", uid, job, text),
		} {
			if got := cgroupJob(below, "", uid); got != job {
				t.Errorf("%q: job %d, want %d", below, got, job)
			}
		}
	})
}

// A server of MPS is known by a cgroup that root alone can make.
func TestCgroupOfServers(t *testing.T) {
	for text, want := range map[string]bool{
		"0::/carma-mps/n1.GPU-1.7\n":                      true,
		"0::/lab/carma-mps/n1.GPU-1.7\n":                  true, // in the container lab
		"3:devices:/carma-mps/n1.GPU-1.7\n0::/\n":         true,
		"0::/user.slice/carma-mps/n1.GPU-1.7\n":           false,
		"0::/carma-mpsx/n1\n":                             false,
		"1:name=systemd:/carma-mps/n1.GPU-1.7\n":          false,
		"3:devices:/user/1000/carma-mps/n1.GPU-1.7\n":     false,
		"0::/system.slice/lab.service/carma-mps/n1\n":     false,
		"2:freezer:/carma-mps/n1\n3:devices:/slurm/uid_1": false,
	} {
		above := ""
		if strings.HasPrefix(text, "0::/lab/") {
			above = "/lab"
		}
		if got := ofServers(text, above); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
