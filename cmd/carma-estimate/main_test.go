// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"carma/cmd/internal/cli"
)

func TestStatus(t *testing.T) {
	for want, err := range map[int]error{
		cli.ExitOK:         nil,
		cli.ExitUsage:      unreadable("read script x", os.ErrNotExist),
		cli.ExitPermission: fmt.Errorf("job.sh: it is unchanged: %w", syscall.EROFS),
		cli.ExitInternal:   errors.New("anything else"),
	} {
		if got := cli.Status(status(err)); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
}
