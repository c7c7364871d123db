// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"carma/cmd/internal/cli"
)

// watchStatus shows the status again and again: on a terminal over the old
// status, else one after the other.
func watchStatus(ctx context.Context, look func(io.Writer) error) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	terminal := cli.Terminal(os.Stdout)
	if terminal {
		fmt.Print("\x1b[2J")
	}
	for {
		var b bytes.Buffer
		if err := look(&b); err != nil {
			return err
		}
		text := b.Bytes()
		if terminal { // go home, clear the rest of each line, and all lines below
			text = append([]byte("\x1b[H"), append(bytes.ReplaceAll(text, []byte("\n"), []byte("\x1b[K\n")), "\x1b[J"...)...)
		}
		if _, err := os.Stdout.Write(text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(2 * time.Second):
		}
	}
}
