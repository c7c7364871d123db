// SPDX-License-Identifier: Apache-2.0

// Package output remembers which files the processes of a job write their
// errors to. Slurm knows the batch script's file alone; a step may have one of
// its own (srun --error), and a script may send a program's errors anywhere
// (2>train.err). The kernel knows: /proc/PID/fd/2 of the processes on a GPU.
//
// The agent looks and writes a list; the Epilog reads the list and gives it to
// a child that opens the files with the rights of the job's user, and no others.
package output

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"carma/db/file"
	"carma/slurmbridge/jobenv"
)

// most bounds the files of one job: one for each rank of a node and some. Of more the
// last ones are kept.
const most = 16

// File is a regular file that a process of the job has as its stderr.
type File struct {
	Path []byte // need not be UTF-8
	Dev  uint64
	Ino  uint64
	Size int64 // where this job's text begins at the latest
}

// Process is a process of a job, seen on a GPU.
type Process struct {
	PID   int
	Job   jobenv.JobKey
	Since time.Time // when the job was given its GPUs
}

type process struct {
	pid int
	job jobenv.JobKey
}

// Watch keeps the lists of a node's jobs.
type Watch struct {
	RunDir string
	Proc   string // /proc
	Log    *slog.Logger

	busy  atomic.Bool
	files map[jobenv.JobKey][]File
	seen  map[process]bool
}

// Look notes the files of processes not seen before. It returns at once: a file may lie on a mount
// that hangs, and then nothing is noted until the mount answers.
func (w *Watch) Look(processes []Process) {
	if !w.busy.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer w.busy.Store(false)
		w.look(processes)
	}()
}

func (w *Watch) look(processes []Process) {
	if w.files == nil {
		w.files, w.seen = map[jobenv.JobKey][]File{}, map[process]bool{}
	}
	for job := range w.files {
		if !slices.ContainsFunc(processes, func(p Process) bool { return p.Job == job }) {
			delete(w.files, job)
		}
	}
	for s := range w.seen {
		if !slices.ContainsFunc(processes, func(p Process) bool { return p.PID == s.pid && p.Job == s.job }) {
			delete(w.seen, s)
		}
	}
	for _, p := range processes {
		if w.seen[process{p.PID, p.Job}] {
			continue
		}
		w.seen[process{p.PID, p.Job}] = true
		w.recall(p.Job)
		f, ok := of(w.Proc, p)
		if list := w.files[p.Job]; ok && !slices.ContainsFunc(list, f.same) {
			// The last steps may have ended the job.
			w.files[p.Job] = append(list[max(0, len(list)+1-most):], f)
			if err := write(w.RunDir, p.Job, w.files[p.Job]); err != nil {
				w.Log.Warn("a job's stderr might not be scanned", "error", err)
			}
		}
	}
}

// recall brings back what was noted of a job before: between two steps no process of
// it is on a GPU, and the agent may have been started anew.
func (w *Watch) recall(job jobenv.JobKey) {
	if _, known := w.files[job]; known {
		return
	}
	files, err := Read(w.RunDir, job)
	if err != nil {
		w.Log.Warn("the stderr of a job's earlier steps might not be scanned", "error", err)
	}
	w.files[job] = files
}

func (f File) same(g File) bool { return f.Dev == g.Dev && f.Ino == g.Ino }

// of tells what a process has as its stderr; false if that is no regular file
// with a name. Only the kernel's cached knowledge is asked for.
func of(proc string, p Process) (File, bool) {
	link := filepath.Join(proc, strconv.Itoa(p.PID), "fd", "2")
	path, err := os.Readlink(link)
	if err != nil || !filepath.IsAbs(path) || strings.HasSuffix(path, " (deleted)") || len(path) >= unix.PathMax {
		return File{}, false
	}
	var st unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC,
		unix.STATX_TYPE|unix.STATX_INO|unix.STATX_SIZE|unix.STATX_BTIME, &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return File{}, false
	}
	f := File{Path: []byte(path), Dev: unix.Mkdev(st.Dev_major, st.Dev_minor), Ino: st.Ino, Size: int64(st.Size)}
	// A file that is younger than the job holds nobody else's text. Of an
	// older one, only what comes from now on is surely this job's.
	if st.Mask&unix.STATX_BTIME != 0 && !time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)).Before(p.Since) {
		f.Size = 0
	}
	return f, true
}

func list(runDir string, job jobenv.JobKey) string {
	return filepath.Join(runDir, "jobs", fmt.Sprintf("%d.%d.stderr", job.JobID, job.Restart))
}

func write(runDir string, job jobenv.JobKey, files []File) error {
	text, err := json.Marshal(files)
	if err != nil {
		return fmt.Errorf("note where job %s writes its errors: %w", job, err)
	}
	if err := file.Replace(list(runDir, job), text, 0o600); err != nil {
		return fmt.Errorf("note where job %s writes its errors: %w", job, err)
	}
	return nil
}

// Read returns the files of a job; none if nothing was noted.
func Read(runDir string, job jobenv.JobKey) ([]File, error) {
	text, err := os.ReadFile(list(runDir, job))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var files []File
	if err == nil {
		err = json.Unmarshal(text, &files)
	}
	if err != nil {
		return nil, fmt.Errorf("read where job %s writes its errors: %w", job, err)
	}
	return files, nil
}

// Drop forgets a job.
func Drop(runDir string, job jobenv.JobKey) error {
	if err := os.Remove(list(runDir, job)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget where job %s writes its errors: %w", job, err)
	}
	return nil
}
