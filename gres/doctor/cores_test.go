// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

func TestCores(t *testing.T) {
	// Two sockets of four cores with two threads each: threads apart, and sockets in turn.
	apart, turn, single := map[int]CPU{}, map[int]CPU{}, map[int]CPU{}
	for n := range 16 {
		apart[n] = CPU{n % 8 / 4, n % 4}
		turn[n] = CPU{n % 2, n % 8 / 2}
		single[n] = CPU{0, n}
	}
	for _, c := range []struct {
		near []int
		cpus map[int]CPU
		want string
	}{
		{[]int{0, 1, 2, 3, 8, 9, 10, 11}, apart, "0-3"},
		{[]int{4, 5, 6, 7, 12, 13, 14, 15}, apart, "4-7"},
		{[]int{0, 2, 4, 6, 8, 10, 12, 14}, turn, "0-3"},
		{[]int{1, 3, 5, 7, 9, 11, 13, 15}, turn, "4-7"},
		{[]int{0, 2, 3, 8}, single, "0,2-3,8"},
		{[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, apart, ""},
		{nil, apart, ""},
		{[]int{77}, apart, ""},
	} {
		if got := Cores(c.near, c.cpus); got != c.want {
			t.Errorf("%v: %q, want %q", c.near, got, c.want)
		}
	}
}

func TestReadCPUs(t *testing.T) {
	dir := t.TempDir()
	for n, c := range map[int]CPU{0: {0, 0}, 1: {1, 7}} {
		d := filepath.Join(dir, fmt.Sprintf("cpu%d", n), "topology")
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]int{"physical_package_id": c.Socket, "core_id": c.Core} {
			if err := os.WriteFile(filepath.Join(d, name), []byte(fmt.Sprintln(value)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := ReadCPUs(dir)
	if err != nil || len(got) != 2 || got[1] != (CPU{1, 7}) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ReadCPUs("/sys/devices/system/cpu"); err != nil {
		t.Error(err)
	}
}

func TestGPUType(t *testing.T) {
	for model, want := range map[string]string{
		"NVIDIA A100-SXM4-40GB": "a100", "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200",
		"Tesla V100-SXM2-16GB":    "v100",
		"NVIDIA GeForce RTX 3090": "rtx_3090", "NVIDIA RTX A6000": "rtx_a6000",
		"NVIDIA RTX 6000 Ada Generation": "rtx_6000_ada",
		"NVIDIA A30":                     "a30", "NVIDIA L40S": "l40s",
		"NVIDIA GH200 480GB": "gh200", "NVIDIA B200": "b200", "": "",
		"evil,Name=x:1": "evilnamex1",
	} {
		if got := GPUType(model); got != want {
			t.Errorf("%q: %q, want %q", model, got, want)
		}
	}
}
