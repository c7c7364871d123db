// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"testing"

	"carma/estimator/summary"
)

func TestHorus(t *testing.T) {
	m, err := summary.Parse([]byte("Conv2d-1 [-1, 64, 64, 64] 1,792\nReLU-2 [-1, 64, 64, 64] 0\nMaxPool2d-3 [-1, 64, 32, 32] 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	// 32 * (2 MiB of activations + 7 KiB of gradients) + 800.
	if n, err := Horus(m, 32); err != nil || n != 864 {
		t.Errorf("%d MiB, %v", n, err)
	}
	if _, err := Horus(m, 0); err == nil {
		t.Error("no error without a batch size")
	}
}

func TestGPUMemNet(t *testing.T) {
	for _, c := range []struct {
		f         Family
		use, want int64
	}{{MLP, 1, 1000}, {MLP, 1000, 1000}, {MLP, 1001, 2000}, {CNN, 8222, 16000}, {Transformer, 0, 8000}} {
		if got := GPUMemNet(c.f, c.use); got != c.want {
			t.Errorf("family %d, %d MiB: %d, want %d", c.f, c.use, got, c.want)
		}
	}
	for text, want := range map[string]Family{
		"Linear-1 [-1, 4] 8\n":                                  MLP,
		"Conv2d-1 [-1, 4, 4, 4] 8\n":                            CNN,
		"Conv2d-1 [-1, 4, 4, 4] 8\nLayerNorm-2 [-1, 16, 4] 8\n": Transformer,
	} {
		m, err := summary.Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := FamilyOf(m); got != want {
			t.Errorf("%q is family %d, want %d", text, got, want)
		}
	}
}
