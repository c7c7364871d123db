// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"carma/db/file"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/gres/mps"
	"carma/slurmbridge/jobenv"
)

// taskFile is what the Prolog leaves for the TaskProlog, which runs as the
// user before every task and must not cost more than reading one small file.
type taskFile struct {
	Restart     uint32   `json:"restart"`
	UID         uint32   `json:"uid"`
	Slots       []int    `json:"slots"`    // of gres/gpu, as Slurm numbers them
	UUIDs       []string `json:"uuids"`    // leased GPU of each slot
	Ordinals    []int    `json:"ordinals"` // their numbers for CUDA; empty: it takes the UUIDs
	Together    bool     `json:"together"` // ordinals are for tasks that see all GPUs of the job
	Shared      bool     `json:"shared"`
	ReserveMiB  int64    `json:"reserve_mib"`  // per GPU
	PipeDir     string   `json:"pipe_dir"`     // of the MPS daemon; empty: no MPS
	Devices     int      `json:"devices"`      // that the daemon serves
	RetryReason string   `json:"retry_reason"` // why the job runs again; empty: it does not
	Undecided   bool     `json:"undecided"`    // tasks wait until another file stands here, or none
	Told        bool     `json:"told"`         // the user knows why
	GPUs        []GPU    `json:"gpus"`         // the leased ones, as others look for them
	Elsewhere   bool     `json:"elsewhere"`    // Slurm's numbers are those of GPUs (Elsewhere)

	Variables map[string]string `json:"variables,omitempty"` // that tasks get where their user has set none
}

func newTaskFile(n *Node, h jobenv.Hook, granted []lease.Granted) taskFile {
	t := taskFile{Restart: h.Restart, UID: h.UID, Slots: h.Slots}
	for _, g := range granted {
		t.UUIDs = append(t.UUIDs, g.UUID)
		t.Shared = t.Shared || !g.Exclusive
		t.ReserveMiB = g.ReserveMiB
	}
	if n.Config.MPS.Enabled && len(granted) > 0 && granted[0].Daemon != "" {
		t.PipeDir = mps.PipeDir(n.RunDir, granted[0].Daemon)
		t.Devices = len(granted[0].Daemon.UUIDs())
	}
	_, limited := confine.LimitedSince(n.RunDir)
	t.Variables = variables(n.Config, h, t, limited)
	return t
}

func taskPath(runDir string, job uint32) string {
	return filepath.Join(runDir, "jobs", strconv.FormatUint(uint64(job), 10)+".json")
}

func writeTaskFile(runDir string, key jobenv.JobKey, t taskFile) error {
	text, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("describe leases for TaskProlog: %w", err)
	}
	if err := file.Replace(taskPath(runDir, key.JobID), text, 0o644); err != nil {
		return fmt.Errorf("describe leases for TaskProlog: %w", err)
	}
	return nil
}

// Task prints the lines for slurmstepd to put into a task's environment. A task
// without gres/gpu sees no GPU. A task with gres/gpu but without leases sees none
// either: the numbers given by Slurm are slots, and the GPUs of these numbers are
// other jobs'. Where Slurm's numbers are those of GPUs (Elsewhere) nothing is printed.
func Task(w io.Writer, runDir string, get jobenv.Getenv) error {
	id, err := strconv.ParseUint(get("SLURM_JOB_ID"), 10, 32)
	if err != nil {
		err = fmt.Errorf("read SLURM_JOB_ID=%q: %w", get("SLURM_JOB_ID"), err)
		return errors.Join(err, taskFile{}.print(w, nil))
	}
	job, known := jobOfStep(runDir, uint32(id), get)
	t, err := awaitTaskFile(w, runDir, job)
	if t.isForeign(get) {
		t = taskFile{}
	}
	if t.Elsewhere {
		return err
	}
	// A direct srun has only the second. A component without GPUs has the leader's first.
	if get("SLURM_STEP_GPUS") == "" && !unbound(get) && (get("SLURM_JOB_GPUS") == "" || !known) {
		return errors.Join(err, without(w, !known, get))
	}
	uuids, visibleErr := t.visible(known, get)
	return errors.Join(err, visibleErr, t.print(w, uuids), t.printNumbers(w, known, get))
}

// isForeign tells whether another user's job had the task's id: a slurmctld without its old
// state gives ids again, and slurmd up to 22.05 skips the Prolog of a job with an id just seen.
// UID 0: written by older programs, or root's.
func (t taskFile) isForeign(get jobenv.Getenv) bool {
	uid := get("SLURM_JOB_UID")
	return uid != "" && t.UID != 0 && uid != strconv.FormatUint(uint64(t.UID), 10)
}

// mostComponents is how many components a heterogeneous job may have (MAX_HET_JOB_COMPS).
const mostComponents = 128

// jobOfStep is the id of the job of a task's step. A step of a heterogeneous job is told the
// leader's, whatever the component; srun names the components, by HET in a job of sbatch or
// salloc and by PACK in one of its own (tried: 22.05.8, 25.11.7). The step's slots tell the
// component: each slot is a single job's. known is false where the step is of a component
// without GPUs here. A batch job submitted from such a step inherits its variables; the
// variables of its own job name itself as the first component.
func jobOfStep(runDir string, leader uint32, get jobenv.Getenv) (id uint32, known bool) {
	size, _ := strconv.Atoi(get("SLURM_HET_SIZE"))
	step, err := jobenv.Indices(get("SLURM_STEP_GPUS"))
	if err != nil || size <= 0 {
		return leader, true
	}
	ids := []uint32{leader}
	for _, group := range []string{"SLURM_JOB_ID_HET_GROUP_", "SLURM_JOB_ID_PACK_GROUP_"} {
		if get(group+"0") != strconv.FormatUint(uint64(leader), 10) {
			continue
		}
		for i := 1; i < min(size, mostComponents); i++ {
			if component, err := strconv.ParseUint(get(group+strconv.Itoa(i)), 10, 32); err == nil {
				ids = append(ids, uint32(component))
			}
		}
	}
	if len(ids) == 1 {
		return leader, true
	}
	for _, id := range ids {
		t, err := readTaskFile(runDir, id)
		if err == nil && len(t.Slots)+len(t.UUIDs) > 0 && t.has(step) || t.Undecided && len(step) == 0 {
			return id, true
		}
	}
	return leader, false
}

// has tells whether the job has all these slots.
func (t taskFile) has(slots []int) bool {
	return !slices.ContainsFunc(slots, func(s int) bool { return !slices.Contains(t.Slots, s) })
}

// Told tells whether the SPANK plugin (slurmbridge/spank) has had the very task told, so that
// TaskProlog, if in slurm.conf too, has nothing to do. A step's task inherits the mark of the
// batch script: the mark names the process.
func Told(get jobenv.Getenv) bool {
	mark := get("CARMA_TASK")
	return mark != "" && mark == get("SLURM_JOB_ID")+":"+get("SLURM_TASK_PID")
}

// A task whose job could be neither leased GPUs nor returned to the queue waits for a decision.
// A process at work says so in the file's time of change; when the time has stayed for so long,
// by a clock nobody sets, nobody is at work.
const (
	taskLooks     = 200 * time.Millisecond
	taskGivesUpAt = 5 * time.Minute
	taskSays      = 5 * time.Second // an empty line: the SPANK plugin ends a program silent for five
)

// awaitTaskFile is readTaskFile once the job's GPUs are decided.
func awaitTaskFile(w io.Writer, runDir string, job uint32) (taskFile, error) {
	var touched, seen time.Time
	said := time.Now()
	for {
		t, err := readTaskFile(runDir, job)
		if err != nil || !t.Undecided {
			return t, err
		}
		if st, err := os.Stat(taskPath(runDir, job)); err == nil && !st.ModTime().Equal(touched) || seen.IsZero() {
			seen = time.Now()
			if err == nil {
				touched = st.ModTime()
			}
		}
		if time.Since(seen) > taskGivesUpAt {
			return taskFile{}, fmt.Errorf("job %d waits for GPUs, and no CARMA process handles it any more", job)
		}
		if time.Since(said) >= taskSays {
			said = time.Now()
			io.WriteString(w, "\n")
		}
		time.Sleep(taskLooks)
	}
}

// readTaskFile returns the file of the Prolog of the job's attempt; the zero value without a file. The
// Epilog removes the file before the leases end, the agent with a lease that has lost its job, and the next
// Prolog any file left, so no file is of an earlier attempt. A task cannot tell: SLURM_RESTART_COUNT is set
// for a rerun batch script and for nothing else, and jobs submitted from the script inherit the variable
// (src/common/env.c, setup_env, 22.05.8).
func readTaskFile(runDir string, job uint32) (t taskFile, err error) {
	text, err := os.ReadFile(taskPath(runDir, job))
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return taskFile{}, nil
	} else if err != nil {
		return taskFile{}, fmt.Errorf("read leases of job %d: %w", job, err)
	}
	return t, nil
}

// unbound tells whether the step has GPUs and Slurm does not say which: several tasks
// with --gpu-bind=none. The count is unset for a step without GPUs (gres_common.c of
// 22.05, gres_common_gpu_set_env).
func unbound(get jobenv.Getenv) bool {
	n, _ := strconv.Atoi(get("SLURM_GPUS_ON_NODE"))
	return n > 0 && get("SLURM_STEP_GPUS") == "" && get("CUDA_VISIBLE_DEVICES") == ""
}

// visible returns the GPUs of the step: those whose slots Slurm gave it, and all of the
// job's where it binds no task.
func (t taskFile) visible(known bool, get jobenv.Getenv) ([]string, error) {
	if unbound(get) {
		return t.UUIDs, nil
	}
	slots, err := t.slotsOfStep(known, get)
	if err != nil {
		return nil, err
	}
	return t.ofSlots(narrow(slots, get("CUDA_VISIBLE_DEVICES"))), nil
}

// ofSlots returns the GPUs that stand behind slots of the job.
func (t taskFile) ofSlots(slots []int) (uuids []string) {
	for _, s := range slots {
		i := slices.Index(t.Slots, s)
		if i >= 0 && t.whole() {
			i %= len(t.UUIDs) // of all slots of the node a step may be given any
		}
		if i >= 0 && i < len(t.UUIDs) && !slices.Contains(uuids, t.UUIDs[i]) {
			uuids = append(uuids, t.UUIDs[i])
		}
	}
	return uuids
}

// slotsOfStep returns the slots that the step was given. slurmstepd sets SLURM_JOB_GPUS alone
// for a batch script, which inherits SLURM_STEP_GPUS of the step that submitted the script:
// slots not its job's, or fewer than shown.
func (t taskFile) slotsOfStep(known bool, get jobenv.Getenv) ([]int, error) {
	step, err := jobenv.Indices(get("SLURM_STEP_GPUS"))
	if err != nil {
		return nil, err
	}
	visible := get("CUDA_VISIBLE_DEVICES")
	shown, _ := jobenv.Indices(visible) // a user's own text binds nothing
	job, err := jobenv.Indices(get("SLURM_JOB_GPUS"))
	ofBatch := err == nil && len(job) > 0 && len(shown) == len(job) && t.has(job)
	if len(step) == 0 && visible != "" || ofBatch && (len(shown) > len(step) || known && !t.has(step)) {
		return job, err
	}
	return step, nil
}

// whole tells whether slurmctld gave the job all slots of the node, and the job was
// leased the GPUs asked for.
func (t taskFile) whole() bool { return 0 < len(t.UUIDs) && len(t.UUIDs) < len(t.Slots) }

// narrow follows a binding of single tasks (--gpus-per-task, --gpu-bind),
// which Slurm tells in CUDA_VISIBLE_DEVICES alone: as slot numbers, or counted
// from 0 within the step where task/cgroup constrains devices.
func narrow(step []int, visible string) []int {
	task, err := jobenv.Indices(visible)
	if err != nil || len(task) == 0 || len(task) >= len(step) {
		return step
	}
	global := true
	for _, i := range task {
		global = global && slices.Contains(step, i)
	}
	if global {
		return task
	}
	var slots []int
	for _, i := range task {
		if i < len(step) {
			slots = append(slots, step[i])
		}
	}
	return slots
}

func (t taskFile) print(w io.Writer, uuids []string) error {
	var b strings.Builder
	list := strings.Join(uuids, ",")
	if len(t.UUIDs) == 0 {
		b.WriteString("print carma: this node has no lease for the job; it sees no GPU\n")
	}
	export := func(name, value string) { fmt.Fprintf(&b, "export %s=%s\n", name, value) }
	if t.RetryReason != "" {
		export("CARMA_RETRY_REASON", t.RetryReason)
	}
	export("CUDA_VISIBLE_DEVICES", t.names(uuids))
	export("NVIDIA_VISIBLE_DEVICES", list) // for containers
	export("CARMA_GPU_UUIDS", list)
	export("CARMA_RESERVE_MIB", strconv.FormatInt(t.ReserveMiB, 10))
	export("CARMA_SHARED", map[bool]string{false: "0", true: "1"}[t.Shared])
	if t.whole() { // slurmctld counted slots
		export("SLURM_GPUS_ON_NODE", strconv.Itoa(len(t.UUIDs)))
	}
	if t.PipeDir != "" && len(uuids) > 0 {
		export("CUDA_MPS_PIPE_DIRECTORY", t.PipeDir)
		// By number, as the daemon counts: not all its releases know UUIDs
		// (NVIDIA/k8s-device-plugin#572). All its GPUs, so a client may
		// count all or only the visible ones.
		limits := make([]string, t.Devices)
		for i := range limits {
			limits[i] = fmt.Sprintf("%d=%dM", i, t.ReserveMiB)
		}
		export("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", strings.Join(limits, ","))
	} else {
		b.WriteString("unset CUDA_MPS_PIPE_DIRECTORY\nunset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
