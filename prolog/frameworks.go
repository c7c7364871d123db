// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// Variables of frameworks (carma.toml, frameworks): the Prolog works out the values for
// the job's tasks, and leaves these in the task file; TaskProlog, which tells tasks of
// their GPUs now, sets the variables not set by the user.

// variables are for a job's tasks where their user has set none. With limited the driver
// holds the job to its booking, which programs then see as the size of the GPU.
func variables(c config.Config, h jobenv.Hook, t taskFile, limited bool) map[string]string {
	if len(t.UUIDs) == 0 {
		return nil
	}
	kind := ""
	switch {
	case t.Shared:
		kind = config.Sharing
	case h.Carma.Learn, h.Carma.Mode == jobenv.ModeShared: // the second: the job is requeued after an OOM
		kind = config.Learning
	}
	total := t.ReserveMiB // of a job with whole GPUs
	if t.Shared && !limited {
		total = max(h.Carma.FullMiB, total)
	}
	set := map[string]string{}
	for name, v := range c.Frameworks {
		if value := v.Of(kind); value != "" {
			set[name] = config.Expand(value, t.ReserveMiB, total)
		}
	}
	return set
}

// listed is the variable that lists, NAME=value with spaces between, the values set
// here. By the list a step's tasks, and another job submitted from this job with its
// environment, tell CARMA's values from the user's.
const listed = "CARMA_VARIABLES"

// Variables prints the lines for slurmstepd to put into a task's environment so that
// frameworks keep to the job's booking. look is the task's environment so far: slurmstepd
// gives TaskProlog the task's very environment (exec_task, src/slurmd/slurmstepd/task.c),
// with the user's variables from the submission, or with less, as --export says.
func Variables(w io.Writer, runDir string, look func(string) (string, bool)) error {
	get := func(name string) string {
		value, _ := look(name)
		return value
	}
	id, err := strconv.ParseUint(get("SLURM_JOB_ID"), 10, 32)
	if err != nil {
		return fmt.Errorf("read SLURM_JOB_ID=%q: %w", get("SLURM_JOB_ID"), err)
	}
	if get("SLURM_JOB_GPUS") == "" && get("SLURM_STEP_GPUS") == "" {
		return nil
	}
	job, known := jobOfStep(runDir, uint32(id), get)
	if !known {
		return nil
	}
	t, err := readTaskFile(runDir, job)
	if err != nil || t.isForeign(get) {
		return err
	}
	_, err = io.WriteString(w, assign(t.Variables, look))
	return err
}

// assign gives the changes for a task with the environment look, in TaskProlog's words.
func assign(want map[string]string, look func(string) (string, bool)) string {
	var b strings.Builder
	list, hadList := look(listed)
	earlier := map[string]string{}
	for word := range strings.FieldsSeq(list) {
		name, value, _ := strings.Cut(word, "=")
		earlier[name] = value
	}
	// users tells whether a variable has a value from elsewhere.
	users := func(name string) bool {
		value, set := look(name)
		before, ours := earlier[name]
		return set && !(ours && value == before)
	}
	set := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		_, has := look(name)
		before, ours := earlier[name]
		switch other := config.Instead[name]; {
		case users(name), other != "" && users(other):
		case ours && !has: // removed by the user
			set[name] = before
		default:
			set[name] = want[name]
			fmt.Fprintf(&b, "export %s=%s\n", name, want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(earlier)) {
		if _, has := look(name); has && !users(name) && set[name] == "" {
			fmt.Fprintf(&b, "unset %s\n", name) // another job's
		}
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		words = append(words, name+"="+set[name])
	}
	if len(words) > 0 {
		fmt.Fprintf(&b, "export %s=%s\n", listed, strings.Join(words, " "))
	} else if hadList {
		fmt.Fprintf(&b, "unset %s\n", listed)
	}
	return b.String()
}
