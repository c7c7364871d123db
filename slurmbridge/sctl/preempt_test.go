// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"testing"
	"time"
)

func TestSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"30 sec": 30 * time.Second, "0": 0, "00:01:05": 65 * time.Second, "1-00:00:00": 24 * time.Hour, "": 0, "NONE": 0} {
		if got := seconds(text); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}
