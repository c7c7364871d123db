// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"carma/prolog/oomscan"
)

// fakeCUDA counts the calls of gpuload; a GPU of 108 SMs and 4096 MiB.
const fakeCUDA = `
#include <stdio.h>
#include <stdlib.h>
static int launches, blocks;
static unsigned long long steps;
static void say(void) { fprintf(stdout, "%d launches of %d blocks, %llu steps\n", launches, blocks, steps); }
int cuInit(unsigned f) { (void)f; atexit(say); return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { (void)d; *v = a == 16 ? 108 : a == 13 ? 1410000 : -1; return 0; }
int cuCtxCreate_v2(void **c, unsigned f, int d) { (void)c; (void)f; (void)d; return 0; }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { *p = 1; return n > (4096ul << 20) ? 2 : 0; }
int cuModuleLoadData(void **m, const void *text) { (void)m; return *(const char *)text != '.'; }
int cuModuleGetFunction(void **f, void *m, const char *name) { (void)f; (void)m; return *name != 'w'; }
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *s, void **args, void **extra)
{ (void)f; (void)y; (void)z; (void)bx; (void)by; (void)bz; (void)shared; (void)s; (void)extra; launches++; blocks = (int)x; steps = *(unsigned long long *)args[0]; return 0; }
int cuCtxSynchronize(void) { return 0; }
`

// gpuload asks the driver for the work that it was told to; whether a GPU then does
// as it should only a GPU can show.
func TestGPULoad(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "cuda.c")
	if err := os.WriteFile(source, []byte(fakeCUDA), 0o644); err != nil {
		t.Fatal(err)
	}
	load := filepath.Join(dir, "gpuload")
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-o", filepath.Join(dir, "libcuda.so.1"), source},
		{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", load, filepath.Join("load", "gpuload.c"), "-ldl"},
	} {
		if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	for _, c := range []struct {
		args   string
		status int
		out    string
	}{
		{"--mem 1024M --smact 50 --duration 1000ms", 0, "100 launches of 54 blocks, 3525000 steps"},
		{"--mem 1024M --smact 100 --duration 15ms", 0, "2 launches of 108 blocks"},
		{"--mem 1024M --smact 1 --duration 10ms", 0, "1 launches of 1 blocks"},
		{"--mem 5000M --smact 50 --duration 10ms", 1, "CUDA out of memory"},
		{"--mem 1G --smact 50 --duration 10ms", 2, "1G is no number with M behind it"},
		{"--mem 1024M --smact 101 --duration 10ms", 2, "usage: gpuload"},
		{"", 2, "usage: gpuload"},
	} {
		cmd := exec.Command(load, strings.Fields(c.args)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir)
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != c.status || !strings.Contains(string(out), c.out) {
			t.Errorf("%s: status %d\n%s", c.args, status, out)
		}
		if _, oom, _ := oomscan.Scan(strings.NewReader(string(out))); oom != (c.status == 1) {
			t.Errorf("%s: OOM %v", c.args, oom)
		}
	}
}
