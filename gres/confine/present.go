// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"cmp"
	"path/filepath"
)

// Present finds the jobs that have a cgroup on a node: all jobs there, also without a process on a GPU, where
// ProctrackType is proctrack/cgroup. Slurm makes the cgroup at the job's start, and root alone can write there. A
// cgroup that 26.05 names by SLUID tells no job.
type Present struct{ patterns []string }

// Present reads where cgroup.conf has the cgroups.
func (h Host) Present() (p Present, err error) {
	conf, mount, err := h.place()
	switch {
	case err != nil:
	case isCgroup2(mount):
		p.patterns = scopePatterns(filepath.Join(mount, cmp.Or(conf.Setting("CgroupSlice"), usualSlice)), h.Node)
	default:
		for _, home := range homeNames(h.Node) { // of proctrack/cgroup
			p.patterns = append(p.patterns, filepath.Join(mount, "freezer", home, "uid_*", "job_*"))
		}
	}
	return p, err
}

func scopePatterns(slice, node string) (patterns []string) {
	for _, scope := range scopeNames(node) {
		patterns = append(patterns, filepath.Join(slice, scope, "job_*"))
	}
	return patterns
}

// Jobs are the numbers of the jobs.
func (p Present) Jobs() (ids []uint32) {
	for _, pattern := range p.patterns {
		dirs, _ := filepath.Glob(pattern) // an error means a malformed pattern
		for _, dir := range dirs {
			if id, ok := numbered(filepath.Base(dir), "job_"); ok {
				ids = append(ids, id)
			}
		}
	}
	return ids
}
