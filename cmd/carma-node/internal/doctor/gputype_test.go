// SPDX-License-Identifier: Apache-2.0

package doctor

import "testing"

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
