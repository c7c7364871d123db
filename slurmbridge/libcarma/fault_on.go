// SPDX-License-Identifier: Apache-2.0

//go:build carmafault

package main

import (
	"bytes"
	"time"
)

// fault makes the library misbehave as a script asks, for the tests that show
// that slurmctld survives this. Built only with -tags carmafault.
func fault(script []byte) {
	switch {
	case bytes.Contains(script, []byte("carma-fault: panic")):
		panic("asked for by the script")
	case bytes.Contains(script, []byte("carma-fault: nil")):
		var m map[string]int
		m["x"] = 1
	case bytes.Contains(script, []byte("carma-fault: sleep")):
		time.Sleep(10 * time.Second)
	case bytes.Contains(script, []byte("carma-fault: allocate")):
		_ = make([]byte, 1<<62)
	}
}
