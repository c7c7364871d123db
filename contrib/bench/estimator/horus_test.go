// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"carma/estimator/summary"
)

func TestHorus(t *testing.T) {
	m, err := summary.Parse([]byte("Conv2d-1 [-1, 64, 64, 64] 1,792\nReLU-2 [-1, 64, 64, 64] 0\nMaxPool2d-3 [-1, 64, " +
		"32, 32] 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	// 32 * (2 MiB of activations + 7 KiB of gradients) + 800.
	if n, err := horus(m, 32); err != nil || n != 864 {
		t.Errorf("%d MiB, %v", n, err)
	}
	if _, err := horus(m, 0); err == nil {
		t.Error("no error without a batch size")
	}
}
