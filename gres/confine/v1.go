// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// keeper is a cgroup below the job's cgroup, which keeps Slurm from removing the job's.
// Slurm removes the job's cgroup with its last step, and a job of salloc may have no step
// for a while: the next step's cgroup would be made anew, and open.
const keeper = "carma"

// ready is a cgroup below keeper. Its job's Prolog has come to its end.
const ready = "ready"

// v1 writes into devices.deny of the job's cgroup, which v1 makes before slurmstepd does;
// slurmstepd takes a cgroup that is there already (cgroup/common, common_cgroup_instantiate),
// and no cgroup below can be given back a device denied to a cgroup above.
type v1 struct {
	root  string   // of the devices hierarchy
	homes []string // cgroups above uid_U/job_J
	// The extern step's slurmstepd runs the hooks (PrologFlags=RunInJob): that step is there
	// before the Prolog and after the Epilog.
	inJob bool
}

func findV1(mount, node string, inJob bool) (Guard, error) {
	g := newV1(mount, node)
	g.inJob = inJob
	if _, err := os.Stat(filepath.Join(g.root, "cgroup.procs")); err != nil {
		return nil, fmt.Errorf("cgroup v1: %w: %w", errNot, err)
	}
	return g, nil
}

func newV1(mount, node string) *v1 {
	g := &v1{root: filepath.Join(mount, "devices")}
	// Cgroups there already may be of an earlier Slurm: so both.
	for _, name := range homeNames(node) {
		g.homes = append(g.homes, filepath.Join(g.root, name))
	}
	return g
}

// homeNames are the names that the cgroup above all jobs may have. With --enable-multiple-slurmd, as Debian's,
// the name has the node's (interfaces/cgroup.c, cgroup_prepend).
func homeNames(node string) []string { return []string{"slurm_" + node, "slurm"} }

func (g *v1) String() string { return "cgroup v1" }
func (g *v1) Exact() bool    { return true }

func userDir(home string, uid uint32) string {
	return filepath.Join(home, "uid_"+strconv.FormatUint(uint64(uid), 10))
}

func jobDir(above string, job uint32) string {
	return filepath.Join(above, "job_"+strconv.FormatUint(uint64(job), 10))
}

// unfinishedDir is the name of a job's cgroup as long as its keeper is missing, so that a
// cgroup job_J without a keeper is not of CARMA's making.
func unfinishedDir(above string, job uint32) string {
	return filepath.Join(above, "carma_"+strconv.FormatUint(uint64(job), 10))
}

func (g *v1) Open(job Job, minors []int) error {
	for _, home := range g.homes {
		if err := g.open(home, job, minors); err != nil {
			return fmt.Errorf("confine job %d by %s: %w", job.ID, jobDir(userDir(home, job.UID), job.ID), err)
		}
	}
	return nil
}

// deny denies devices to the job's cgroup, and makes the cgroup if need be. A cgroup with a
// keeper has been denied them, whoever is killed when.
func deny(home string, job Job, devices []string) (dir string, err error) {
	above := userDir(home, job.UID)
	dir = jobDir(above, job.ID)
	for range 10 { // Slurm may remove a user's cgroup meanwhile
		at := dir
		if _, err = os.Stat(dir); err != nil {
			at = unfinishedDir(above, job.ID)
			err = makeGroups(at, 3)
		}
		// Devices denied here are denied below too.
		if err == nil {
			err = write(filepath.Join(at, "devices.deny"), devices)
		}
		if err == nil {
			err = makeGroups(filepath.Join(at, keeper), 4)
		}
		if err == nil && at != dir {
			err = os.Rename(at, dir)
			if errors.Is(err, fs.ErrExist) { // slurmstepd was faster
				if err = removeAll(at); err == nil {
					continue
				}
			}
		}
		if !ended(err) {
			break
		}
	}
	return dir, err
}

// removeAll removes a job's cgroup without steps.
func removeAll(dir string) error {
	for _, path := range []string{filepath.Join(dir, keeper, ready), filepath.Join(dir, keeper), dir} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (g *v1) open(home string, job Job, minors []int) error {
	others, allow := make([]string, 0, most), make([]string, 0, len(minors))
	for minor := range most {
		if slices.Contains(minors, minor) {
			allow = append(allow, device(minor))
		} else {
			others = append(others, device(minor))
		}
	}
	if len(minors) == 0 {
		// A Prolog begins: the note that an earlier attempt's Prolog came to its end no
		// longer holds, as this one may be killed before its end.
		if err := gone(os.Remove(filepath.Join(jobDir(userDir(home, job.UID), job.ID), keeper, ready))); err != nil {
			return err
		}
	}
	dir, err := deny(home, job, others)
	if err != nil {
		return err
	}
	if len(allow) == 0 {
		return nil
	}
	// Jobs that have started before there was a guard, or without a Prolog.
	unconfined, err := g.Unconfined()
	if err != nil {
		return err
	}
	for _, o := range unconfined {
		for _, home := range g.homes {
			err := write(filepath.Join(jobDir(userDir(home, o.UID), o.ID), "devices.deny"), allow)
			if err != nil && !ended(err) {
				return fmt.Errorf("deny GPUs to job %d, which is not confined: %w", o.ID, err)
			}
		}
	}
	// Devices allowed here are not allowed below: waiting tasks, or the job's earlier attempt,
	// have cgroups there.
	return allowBelow(dir, allow)
}

// ended tells whether an error means that the cgroup has gone.
func ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) }

func device(minor int) string { return fmt.Sprintf("c %d:%d rwm", NVIDIAMajor, minor) }

// allowBelow goes from above to below: a cgroup made meanwhile has the devices of the
// cgroup above.
func allowBelow(dir string, allow []string) error {
	err := write(filepath.Join(dir, "devices.allow"), allow)
	if ended(err) {
		return nil // a step
	} else if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := allowBelow(filepath.Join(dir, e.Name()), allow); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes lines, each by a call of its own, as the kernel demands.
func write(path string, lines []string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, line := range lines {
		if _, err := f.WriteString(line); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	return nil
}

func (g *v1) Ready(job Job) error {
	for _, home := range g.homes {
		dir := filepath.Join(jobDir(userDir(home, job.UID), job.ID), keeper, ready)
		// Where the keeper is not, the Prolog could not confine the job.
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("note that the Prolog of job %d has ended: %w", job.ID, err)
		}
	}
	return nil
}

// Close leaves the removal to Forget where a step is left: processes may outlive their job.
func (g *v1) Close(job Job) error {
	for _, home := range g.homes {
		dir := jobDir(userDir(home, job.UID), job.ID)
		_, err := os.Stat(filepath.Join(dir, keeper, ready))
		isReady, steps := err == nil, hasSteps(dir)
		err = nil
		if !isReady || steps {
			err = g.open(home, job, nil)
		}
		if err == nil && isReady && (!steps || g.inJob) {
			err = g.forget(home, job)
		}
		if err != nil {
			return fmt.Errorf("close GPUs to job %d: %w", job.ID, err)
		}
	}
	return nil
}

// hasSteps tells whether a job's cgroup has others than the keeper below.
func hasSteps(dir string) bool {
	entries, _ := os.ReadDir(dir)
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() && e.Name() != keeper })
}

// Forget removes also the cgroups left by killed slurmstepds. An agent started beside the Epilog may
// have opened GPUs to the job, and processes of the job may be left: they lose the GPUs before.
func (g *v1) Forget(job Job) error {
	for _, home := range g.homes {
		dir := jobDir(userDir(home, job.UID), job.ID)
		_, err := os.Stat(dir)
		if err == nil {
			err = g.open(home, job, nil)
		}
		if err = gone(err); err == nil {
			err = removeSteps(dir)
		}
		if err == nil {
			err = g.forget(home, job)
		}
		if err != nil {
			return fmt.Errorf("forget job %d: %w", job.ID, err)
		}
	}
	return nil
}

func removeSteps(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return gone(err)
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == keeper {
			continue
		}
		below := filepath.Join(dir, e.Name())
		if err := removeSteps(below); err != nil {
			return err
		}
		if err := gone(os.Remove(below)); err != nil {
			return err
		}
	}
	return nil
}

// forget takes away CARMA's cgroups.
func (g *v1) forget(home string, job Job) error {
	above := userDir(home, job.UID)
	dir, unfinished := jobDir(above, job.ID), unfinishedDir(above, job.ID)
	err := removeAll(unfinished)
	if err == nil && !hasSteps(dir) {
		if err = os.Rename(dir, unfinished); err == nil {
			if err = removeAll(unfinished); err != nil { // a step has come
				err = errors.Join(err, os.Rename(unfinished, dir))
			}
		}
	} else if err == nil { // Slurm removes the job's with its last step
		err = errors.Join(gone(os.Remove(filepath.Join(dir, keeper, ready))), gone(os.Remove(filepath.Join(dir, keeper))))
	}
	if gone(err) != nil {
		return err
	}
	g.remove(above, home)
	return nil
}

// gone returns the error, or nil if the error only means that something is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// remove removes the empty cgroups above a job's, as Slurm does and under its lock, which
// Slurm takes to make cgroups (cgroup/v1, cgroup_p_step_create). Anybody can hold the lock,
// and then the cgroups stay.
func (g *v1) remove(dirs ...string) {
	f, err := os.Open(g.root)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return // another job may be about to start in them
	}
	for _, dir := range dirs {
		if os.Remove(dir) != nil {
			return
		}
	}
}

func (g *v1) Jobs() ([]Job, error) {
	return g.find(func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, keeper))
		return err == nil || !strings.HasPrefix(filepath.Base(dir), "job_")
	})
}

func (g *v1) undo() error {
	jobs, err := g.Jobs()
	for _, job := range jobs {
		for _, home := range g.homes {
			err = errors.Join(err, g.forget(home, job))
		}
	}
	return err
}

func (g *v1) Unconfined() ([]Job, error) {
	if g.inJob {
		return nil, nil
	}
	return g.find(func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, keeper))
		_, errJob := os.Stat(dir) // after its keeper: both may have gone together
		return errors.Is(err, fs.ErrNotExist) && errJob == nil && strings.HasPrefix(filepath.Base(dir), "job_")
	})
}

// find returns the jobs whose cgroup passes the test.
func (g *v1) find(such func(dir string) bool) ([]Job, error) {
	var jobs []Job
	for _, home := range g.homes {
		dirs, err := filepath.Glob(filepath.Join(home, "uid_*", "*_*"))
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			id, ok := numbered(strings.TrimPrefix(filepath.Base(dir), "carma_"), "")
			if !ok {
				id, ok = numbered(filepath.Base(dir), "job_")
			}
			uid, ok2 := numbered(filepath.Base(filepath.Dir(dir)), "uid_")
			if job := (Job{ID: id, UID: uid}); ok && ok2 && !slices.Contains(jobs, job) && such(dir) {
				jobs = append(jobs, job)
			}
		}
	}
	return jobs, nil
}

func numbered(name, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && err == nil
}
