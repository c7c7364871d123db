// SPDX-License-Identifier: Apache-2.0

package jobenv

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// fromFile reads an environment as it was captured in a hook.
func fromFile(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	env := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), "="); ok {
			env[name] = value
		}
	}
	return env
}

func get(env map[string]string) Getenv { return func(name string) string { return env[name] } }

func TestFromEnv(t *testing.T) {
	// Taken from a live slurmd 22.05.8.
	prolog, err := FromEnv(get(fromFile(t, "testdata/prolog-22.05.env")))
	if err != nil {
		t.Fatal(err)
	}
	want := Hook{
		JobKey: JobKey{JobID: 6}, UID: 1001, GID: 1001, User: "carma-alice", Partition: "gpu", Node: "n1", Cluster: "carma",
		Conf: "/etc/slurm/slurm.conf", WorkDir: "/home/alice", BatchHost: true, OneNode: true, Slots: []int{0, 1},
		Carma: Carma{Annotated: true, Mode: "shared", Method: "user", GPUs: 2, ReserveMiB: 12000, EstMiB: 12000,
			FullMiB: 40536, Submit: time.Unix(1795253465, 0)},
	}
	if !reflect.DeepEqual(prolog, want) {
		t.Errorf("got  %+v\nwant %+v", prolog, want)
	}
	epilog, err := FromEnv(get(fromFile(t, "testdata/epilog-22.05.env")))
	if err != nil {
		t.Fatal(err)
	}
	want.Exit, want.StdErr, want.Restart = Exit{Code: 1}, "/home/alice/%x-%j.err", 1
	if !reflect.DeepEqual(epilog, want) {
		t.Errorf("got  %+v\nwant %+v", epilog, want)
	}
}

// From 26.05 on slurmd says whether other jobs may run on the job's nodes.
func TestBeside(t *testing.T) {
	for exclusive, want := range map[string]bool{"": false, "NO": true, "USER": true, "MCS": true, "NODE": false,
		"TOPO": false} {
		env := fromFile(t, "testdata/prolog-22.05.env")
		env["SLURM_JOB_EXCLUSIVE"] = exclusive
		if h, err := FromEnv(get(env)); err != nil || h.Beside != want {
			t.Errorf("%q: %+v, %v", exclusive, h, err)
		}
	}
}

func TestFromEnvRefuses(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"by hand":    {},
		"no node":    {"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "1"},
		"no job":     {"SLURMD_NODENAME": "n1", "SLURM_JOB_UID": "1"},
		"no number":  {"SLURMD_NODENAME": "n1", "SLURM_JOB_UID": "root", "SLURM_JOB_ID": "1"},
		"strange id": {"SLURMD_NODENAME": "n1", "SLURM_JOB_UID": "1", "SLURM_JOB_ID": "-1"},
		"no list":    {"SLURMD_NODENAME": "n1", "SLURM_JOB_UID": "1", "SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "a"},
	} {
		if h, err := FromEnv(get(env)); err == nil {
			t.Errorf("%s: got %+v", name, h)
		}
	}
}

// What cannot be read of the annotation makes the job one without: it then
// runs alone, at nobody's risk.
func TestCarmaAllOrNothing(t *testing.T) {
	for _, change := range []string{"SPANK_CARMA_V=2", "SPANK_CARMA_V=", "SPANK_CARMA_GPUS=x", "SPANK_CARMA_MEM_MIB=-1",
		"SPANK_CARMA_FULL=", "SPANK_CARMA_SUBMIT=soon", "SPANK_CARMA_SMACT=999"} {
		env := fromFile(t, "testdata/prolog-22.05.env")
		name, value, _ := strings.Cut(change, "=")
		env[name] = value
		h, err := FromEnv(get(env))
		if err != nil || h.Carma != (Carma{}) {
			t.Errorf("%s: got %+v, %v", change, h.Carma, err)
		}
	}
}

func TestIndices(t *testing.T) {
	for list, want := range map[string]string{"": "[]", "0": "[0]", "0,2-4,7": "[0 2 3 4 7]", "15": "[15]"} {
		got, err := Indices(list)
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%q: got %v, %v", list, got, err)
		}
	}
	for _, list := range []string{"a", "-1", "3-1", "0-99999999", "1-2-3", "GPU-1"} {
		if got, err := Indices(list); err == nil {
			t.Errorf("%q: got %v", list, got)
		}
	}
}

func TestPath(t *testing.T) {
	job := Output{JobID: 12, Name: "train", User: "alice", Node: "n1", WorkDir: "/home/alice"}
	array := job
	array.ArrayJobID, array.ArrayTask = 10, "3"
	later := job
	later.SLUID, later.Restart = "s06HM7ZFNRVP00", 2
	for _, c := range []struct {
		o              Output
		stdErr, stdOut string
		want           string
	}{
		{job, "", "", "/home/alice/slurm-12.out"},
		{array, "", "", "/home/alice/slurm-10_3.out"},
		{job, "", "log/%x.out", "/home/alice/log/train.out"},
		{job, "e.%j", "o.%j", "/home/alice/e.12"},
		{job, "/tmp/%u/%N-%j-%t-%n-%s.err", "", "/tmp/alice/n1-12-0-0-batch.err"},
		{array, "%A_%a-%j-%J-%b", "", "/home/alice/10_3-12-12-3"},
		{job, "%A_%a", "", "/home/alice/12_4294967294"},
		{job, "%5j-%05j-%12j-%3x", "", "/home/alice/00012-00012-0000000012-train"},
		{job, "%r-%S", "", "/home/alice/%r-%S"},
		{later, "%r-%03r-%S-%3S", "", "/home/alice/2-002-s06HM7ZFNRVP00-s06HM7ZFNRVP00"},
		{job, "100%%", "", "/home/alice/100%"},
		{job, "%q-%", "", "/home/alice/%q-%"},
		{job, `a\%j`, "", "/home/alice/a%j"},
		{job, `a\\b`, "", `/home/alice/a\b`},
	} {
		if got := c.o.Path(c.stdErr, c.stdOut); got != c.want {
			t.Errorf("Path(%q, %q) = %q, want %q", c.stdErr, c.stdOut, got, c.want)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"slurm-%j.out", "%%%5A_%a", `\%j`, "%", "%99999999999999999999j"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		o := Output{JobID: 12, Name: "x", User: "u", Node: "n", WorkDir: "/w"}
		if got := o.Path(pattern, ""); !strings.HasPrefix(got, "/") || len(got) > 4096+16*len(pattern) {
			t.Errorf("%q: %q", pattern, got)
		}
	})
}
