// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

func TestVariables(t *testing.T) {
	part := jobenv.Carma{Annotated: true, FullMiB: 40536}
	with := func(f func(*jobenv.Carma)) jobenv.Carma { c := part; f(&c); return c }
	for _, c := range []struct {
		name      string
		carma     jobenv.Carma
		reserve   int64
		exclusive bool
		want      string
	}{
		{"sharing", part, 10240, false,
			"CARMA_MEM_FRACTION=0.2273 TF_DEVICE_MIN_SYS_MEMORY_IN_MB=256 TF_FORCE_GPU_ALLOW_GROWTH=true " +
				"XLA_PYTHON_CLIENT_MEM_FRACTION=0.2526 XLA_PYTHON_CLIENT_PREALLOCATE=false"},
		{"learning", with(func(c *jobenv.Carma) { c.Learn, c.Mode = true, "exclusive" }), 40536, true,
			"CARMA_MEM_FRACTION=0.9 TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_PREALLOCATE=false"},
		{"after an OOM", with(func(c *jobenv.Carma) { c.Mode = "shared" }), 40536, true,
			"CARMA_MEM_FRACTION=0.9 TF_FORCE_GPU_ALLOW_GROWTH=true XLA_PYTHON_CLIENT_PREALLOCATE=false"},
		{"for itself", with(func(c *jobenv.Carma) { c.Mode = "off" }), 40503, true, "CARMA_MEM_FRACTION=0.9"},
		{"of no CARMA", jobenv.Carma{}, 40536, true, "CARMA_MEM_FRACTION=0.9"},
	} {
		n := &Node{Config: config.Default(), RunDir: t.TempDir()}
		task := newTaskFile(n, jobenv.Hook{Carma: c.carma, Slots: []int{0}},
			[]lease.Granted{{UUID: "GPU-0", ReserveMiB: c.reserve, Exclusive: c.exclusive}})
		if got := assign(task.Variables, env(nil)); !strings.HasSuffix(got, "export CARMA_VARIABLES="+c.want+"\n") {
			t.Errorf("%s:\n%swant %s", c.name, got, c.want)
		}
	}
	// What the driver holds the job to is the size of the GPU for programs.
	limited := &Node{Config: config.Default(), RunDir: t.TempDir()}
	if err := confine.SetLimited(limited.RunDir, time.Hour); err != nil {
		t.Fatal(err)
	}
	task := newTaskFile(limited, jobenv.Hook{Carma: part, Slots: []int{0}},
		[]lease.Granted{{UUID: "GPU-0", ReserveMiB: 10240}})
	if got := task.Variables; got["XLA_PYTHON_CLIENT_MEM_FRACTION"] != "1" || got["CARMA_MEM_FRACTION"] != "0.9" {
		t.Errorf("held by the driver: %v", got)
	}
	if v := newTaskFile(&Node{Config: config.Default()}, jobenv.Hook{}, nil).Variables; v != nil {
		t.Errorf("a job without GPUs gets %v", v)
	}
}

// A step of a heterogeneous job has the variables of its component, though it is told the
// leader's id; one of another user's job none.
func TestVariablesOfComponent(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "jobs"), 0o755); err != nil {
		t.Fatal(err)
	}
	for id, slot := range map[uint32]int{7: 3, 8: 5} {
		err := writeTaskFile(dir, jobenv.JobKey{JobID: id}, taskFile{UID: 1000, Slots: []int{slot}, UUIDs: []string{"GPU"},
			Variables: map[string]string{"CARMA_MEM_FRACTION": fmt.Sprintf("0.%d", id)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, vars, want string }{
		{"batch script", "SLURM_JOB_GPUS=3", "=0.7"},
		{"step of the leader", "SLURM_JOB_GPUS=3 SLURM_STEP_GPUS=3", "=0.7"},
		{"step of the component", "SLURM_JOB_GPUS=3 SLURM_STEP_GPUS=5", "=0.8"},
		{"of a component without GPUs here", "SLURM_JOB_GPUS=3 SLURM_STEP_GPUS=4", ""},
		{"of another user", "SLURM_JOB_GPUS=3 SLURM_JOB_UID=1001", ""},
		{"of the user", "SLURM_JOB_GPUS=3 SLURM_JOB_UID=1000", "=0.7"},
	} {
		vars := map[string]string{"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_ID_HET_GROUP_0": "7",
			"SLURM_JOB_ID_HET_GROUP_1": "8"}
		for _, word := range strings.Fields(c.vars) {
			name, value, _ := strings.Cut(word, "=")
			vars[name] = value
		}
		var b strings.Builder
		err := Variables(&b, dir, env(vars))
		line, _, _ := strings.Cut(b.String(), "\n")
		if err != nil || strings.TrimPrefix(line, "export CARMA_MEM_FRACTION") != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, b.String(), err, c.want)
		}
	}
}

func env(m map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

// A user's own value is never changed, whatever it is and under whichever name; CARMA's own of
// an earlier step or of the job that submitted this one is.
func TestUsersVariablesStay(t *testing.T) {
	const pre, old, newer = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
	want := map[string]string{pre: "false", old: "0.25"}
	all := "export " + old + "=0.25\nexport " + pre + "=false\nexport CARMA_VARIABLES=" + old + "=0.25 " + pre + "=false\n"
	for _, c := range []struct {
		name string
		env  map[string]string
		want string
	}{
		{"none set", nil, all},
		{"a value of the user", map[string]string{pre: "true"}, "export " + old + "=0.25\nexport CARMA_VARIABLES=" + old +
			"=0.25\n"},
		{"the same value", map[string]string{pre: "false"}, "export " + old + "=0.25\nexport CARMA_VARIABLES=" + old +
			"=0.25\n"},
		{"an empty value of the user", map[string]string{pre: ""},
			"export " + old + "=0.25\nexport CARMA_VARIABLES=" + old + "=0.25\n"},
		{"under the newer name", map[string]string{newer: "3.2"}, "export " + pre + "=false\nexport CARMA_VARIABLES=" + pre +
			"=false\n"},
		{"all of the user", map[string]string{pre: "true", old: "0.9"}, ""},
		{"a later step", map[string]string{pre: "false", old: "0.25", "CARMA_VARIABLES": old + "=0.25 " + pre + "=false"},
			all},
		{"submitted from another job", map[string]string{pre: "false", old: "0.7", "TF": "true",
			"CARMA_VARIABLES": "TF=true " + old + "=0.7 " + pre + "=false"},
			strings.Replace(all, "export CARMA", "unset TF\nexport CARMA", 1)},
		{"changed in the script", map[string]string{pre: "true", old: "0.25",
			"CARMA_VARIABLES": old + "=0.25 " + pre + "=false"},
			"export " + old + "=0.25\nexport CARMA_VARIABLES=" + old + "=0.25\n"},
		{"taken away in the script", map[string]string{old: "0.25", "CARMA_VARIABLES": old + "=0.25 " + pre + "=false"},
			"export " + old + "=0.25\nexport CARMA_VARIABLES=" + old + "=0.25 " + pre + "=false\n"},
		{"a list that is none", map[string]string{"CARMA_VARIABLES": "= x ="}, all},
	} {
		if got := assign(want, env(c.env)); got != c.want {
			t.Errorf("%s:\n%swant\n%s", c.name, got, c.want)
		}
	}
	// A job that gets none, submitted from one that had them.
	got := assign(nil, env(map[string]string{pre: "false", old: "0.9",
		"CARMA_VARIABLES": old + "=0.25 " + pre + "=false"}))
	if want := "unset " + pre + "\nunset CARMA_VARIABLES\n"; got != want {
		t.Errorf("%swant\n%s", got, want)
	}
}
