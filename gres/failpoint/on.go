// SPDX-License-Identifier: Apache-2.0

//go:build failpoints

package failpoint

import (
	"os"
	"syscall"
)

// Here ends the process, as kill -9 does, if $CARMA_FAILPOINT names it.
func Here(name string) {
	if os.Getenv("CARMA_FAILPOINT") == name {
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
