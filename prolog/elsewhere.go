// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"carma/gres/confine"
	"carma/slurmbridge/config"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/slurmconf"
)

// Elsewhere tells whether a node is none of CARMA's, though slurm.conf names the hooks for all nodes: no partition of
// carma.toml has the node, and gres.conf gives the node the GPUs themselves. Slurm's numbers are those of the GPUs
// there, and Slurm may keep jobs to them: CARMA has nothing to choose. gres.conf is read first, for slots end the
// question, and slurm.conf may have thousands of nodes.
func Elsewhere(c config.Config, node, slurmConf string) bool {
	slurmConf = confine.ForNode(c, node, slurmConf).SlurmConf
	gresConf, err := slurmconf.Read(filepath.Join(filepath.Dir(slurmConf), "gres.conf"))
	if err != nil || !hasOwnGPUs(gresConf, node) {
		return false
	}
	conf, err := slurmconf.Read(slurmConf)
	return err == nil && !slices.ContainsFunc(conf.Partitions, func(p slurmconf.Record) bool {
		_, ours := c.Partition[p.Name]
		return ours && p.HasNode(node)
	})
}

// hasOwnGPUs tells whether gres.conf names GPUs of a node, or has slurmd look for them, and no slots.
func hasOwnGPUs(gresConf slurmconf.File, node string) bool {
	detect := gresConf.Setting("AutoDetect")
	for _, r := range gresConf.Nodes { // NodeName=n1 AutoDetect=nvml
		if hostlist.Contains(r.Name, node) {
			detect = cmp.Or(r.Get("AutoDetect"), detect)
		}
	}
	var own, slots bool
	for _, r := range gresConf.GPUs(node) {
		detect = cmp.Or(r.Get("AutoDetect"), detect) // the node's own counts
		parts, _ := hostlist.Expand(r.Get("MultipleFiles"))
		switch files := append(r.Files(), parts...); {
		case slices.ContainsFunc(files, isNVIDIA): // the other files of MIG's GPUs have another major
			own = true
		case len(files) > 0:
			slots = true
		}
	}
	if !own && !slots {
		return detect != "" && !strings.EqualFold(detect, "off")
	}
	return own && !slots
}

func isNVIDIA(file string) bool {
	var st unix.Stat_t
	return unix.Stat(file, &st) == nil && unix.Major(st.Rdev) == confine.NVIDIAMajor
}

// LeaveAlone has the tasks of a job keep what Slurm gave them (Elsewhere).
func LeaveAlone(runDir string, h jobenv.Hook) error {
	if err := Prepare(runDir); err != nil {
		return err
	}
	return writeTaskFile(runDir, h.JobKey, taskFile{Restart: h.Restart, UID: h.UID, Slots: h.Slots, Elsewhere: true})
}

// LeftAlone tells whether the Prolog has left the job alone.
func LeftAlone(runDir string, h jobenv.Hook) bool {
	t, err := readTaskFile(runDir, h.JobID)
	return err == nil && t.Elsewhere && t.UID == h.UID
}

// Unheard tells whether no Prolog has left word for a task: the job was running before slurm.conf named the hooks,
// slurmd has skipped the Prolog, or the run directory cannot be written. Elsewhere the task keeps what Slurm gave.
func Unheard(runDir string, get jobenv.Getenv) bool {
	id, err := strconv.ParseUint(get("SLURM_JOB_ID"), 10, 32)
	if err != nil {
		return false
	}
	_, err = os.Lstat(taskPath(runDir, uint32(id)))
	return errors.Is(err, fs.ErrNotExist)
}

// ForgetTask removes what the Prolog left for the job's tasks.
func ForgetTask(runDir string, job uint32) error {
	if err := os.Remove(taskPath(runDir, job)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
