// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"carma/slurmbridge/jobenv"
)

// A job has the slots 7 and 9 for the GPUs 2 and 0.
func TestNumbersOfTasks(t *testing.T) {
	dir := t.TempDir()
	file := taskFile{UID: 1001, Slots: []int{7, 9}, UUIDs: []string{"GPU-c", "GPU-a"},
		GPUs: []GPU{{2, "GPU-c", 1}, {0, "GPU-a", 3}}}
	if err := os.Mkdir(filepath.Join(dir, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeTaskFile(dir, jobenv.JobKey{JobID: 5}, file); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		env       map[string]string
		job, step string // what is exported; empty: nothing
	}{
		{"batch", map[string]string{"SLURM_JOB_GPUS": "7,9", "CUDA_VISIBLE_DEVICES": "0,1"}, "2,0", ""},
		{"step of srun", map[string]string{"SLURM_STEP_GPUS": "9", "CUDA_VISIBLE_DEVICES": "0"}, "", "0"},
		{"step in a batch script", map[string]string{"SLURM_JOB_GPUS": "2,0", "SLURM_STEP_GPUS": "7,9",
			"CUDA_VISIBLE_DEVICES": "0,1"}, "2,0", "2,0"},
		{"batch script of a step", map[string]string{"SLURM_JOB_GPUS": "7,9", "SLURM_STEP_GPUS": "1",
			"CUDA_VISIBLE_DEVICES": "0,1"}, "2,0", "2,0"},
		{"no binding", map[string]string{"SLURM_JOB_GPUS": "2,0", "SLURM_GPUS_ON_NODE": "2"}, "2,0", ""},
	} {
		c.env["SLURM_JOB_ID"], c.env["SLURM_JOB_UID"] = "5", "1001"
		var out strings.Builder
		if err := Task(&out, dir, func(name string) string { return c.env[name] }); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		for name, want := range map[string]string{"SLURM_JOB_GPUS": c.job, "SLURM_STEP_GPUS": c.step} {
			line := "export " + name + "="
			if want != "" && !strings.Contains(out.String(), line+want+"\n") || want == "" &&
				strings.Contains(out.String(), line) {
				t.Errorf("%s: %s is not %q in\n%s", c.name, name, want, &out)
			}
		}
	}
	gpus, err := GPUsOf(dir, 5)
	if err != nil || !reflect.DeepEqual(gpus, file.GPUs) {
		t.Errorf("got %v, %v", gpus, err)
	}
	if gpus, err = GPUsOf(dir, 6); err != nil || gpus != nil {
		t.Errorf("got %v, %v", gpus, err)
	}
}
