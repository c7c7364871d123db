// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"path"
	"strconv"
	"strings"
)

// cgroupJob returns the job in whose cgroup a process of a user is, by the text of
// /proc/PID/cgroup; 0: in none. Anybody may name a directory job_7 in a cgroup that
// was delegated to him, so only slurmd's own directories count, where slurmd makes them
// (22.05 to 26.05; plugins/cgroup/v1/xcgroup.c, xcgroup_create_hierarchy, and
// v2/cgroup_v2.c, _set_int_cg_ns):
//
//	/slurm/uid_UID/job_JOB/...                      v1
//	ABOVE/SLICE/slurmstepd.scope/job_JOB/...         v2
//
// A Slurm built with --enable-multiple-slurmd, as Debian's is, has slurm_NODE and
// NODE_slurmstepd.scope. ABOVE is the cgroup above process 1's, empty but
// in containers; SLICE is system.slice or cgroup.conf's CgroupSlice. 26.05 names
// cgroups by SLUID unless CgroupJobIdPaths is set: those tell no job here. What
// stands below is the user's to make.
func cgroupJob(text, above string, uid uint32) uint32 {
	for line := range strings.Lines(text) {
		hierarchy, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, where, _ := strings.Cut(rest, ":")
		var job uint32
		switch {
		case hierarchy == "0" && controllers == "":
			job = v2Job(where, above)
		case controllers != "" && !strings.HasPrefix(controllers, "name="): // no hierarchy of somebody else's making
			job = v1Job(where, uid)
		}
		if job != 0 {
			return job
		}
	}
	return 0
}

// serversDir is the cgroup above those of MPS daemons and their servers (gres/confine). Root alone
// makes one there, below the top: in a container, below that of process 1.
const serversDir = "/carma-mps/"

// ofServers tells whether a process is in a cgroup of an MPS daemon's, by the text of
// /proc/PID/cgroup.
func ofServers(text, above string) bool {
	for line := range strings.Lines(text) {
		hierarchy, rest, _ := strings.Cut(line, ":")
		controllers, where, _ := strings.Cut(rest, ":")
		if hierarchy == "0" && strings.HasPrefix(where, above+serversDir) ||
			controllers == "devices" && strings.HasPrefix(where, serversDir) {
			return true
		}
	}
	return false
}

// v1Job also wants the job to be the process's user's. Root's processes are in
// there too: programs started by sudo, and slurmstepd itself.
func v1Job(where string, uid uint32) uint32 {
	dirs := strings.Split(where, "/")
	if len(dirs) < 4 || dirs[0] != "" || dirs[1] != "slurm" && !strings.HasPrefix(dirs[1], "slurm_") {
		return 0
	}
	owner, ok := numbered(dirs[2], "uid_")
	if job, named := numbered(dirs[3], "job_"); ok && named && (owner == uid || uid == 0) {
		return job
	}
	return 0
}

// v2Job wants nothing but slices above Slurm's scope: systemd delegates services and
// scopes, never slices, and what users start lies in user.slice.
func v2Job(where, above string) uint32 {
	below, ok := strings.CutPrefix(where, above+"/")
	dirs := strings.Split(below, "/")
	if !ok || dirs[0] == "user.slice" {
		return 0
	}
	slices := 0
	for slices < len(dirs) && strings.HasSuffix(dirs[slices], ".slice") {
		slices++
	}
	if slices == 0 || len(dirs) < slices+2 {
		return 0
	}
	scope := dirs[slices]
	if scope != "slurmstepd.scope" && !strings.HasSuffix(scope, "_slurmstepd.scope") {
		return 0
	}
	job, _ := numbered(dirs[slices+1], "job_")
	return job
}

// numbered reads a directory's number as Slurm writes it.
func numbered(dir, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(dir, prefix)
	n, err := strconv.ParseUint(digits, 10, 32)
	if !ok || err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, false
	}
	return uint32(n), true
}

// aboveInit is the cgroup v2 above that of process 1, by the text of /proc/1/cgroup;
// empty: the root.
func aboveInit(text string) string {
	for line := range strings.Lines(text) {
		if own, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return strings.TrimSuffix(path.Dir(own), "/")
		}
	}
	return ""
}
