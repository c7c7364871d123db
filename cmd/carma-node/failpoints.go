// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package main

import (
	"os"
	"syscall"

	"carma/gres/lease"
)

// With the tag the process ends, as by kill -9, at the place named by $CARMA_FAILPOINT.
func init() {
	lease.FailPoint = func(place string) {
		if os.Getenv("CARMA_FAILPOINT") == place {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}
