// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"strings"
	"testing"

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
	if v := newTaskFile(&Node{Config: config.Default()}, jobenv.Hook{}, nil).Variables; v != nil {
		t.Errorf("a job without GPUs gets %v", v)
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
