// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// pokeFIFO wakes the agent. A FIFO has no limit on its path, as a socket has.
const pokeFIFO = "poke"

// listen returns a channel that yields when a hook has changed the ledger.
func listen(runDir string) (<-chan struct{}, error) {
	path := filepath.Join(runDir, pokeFIFO)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen for hooks: %w", err)
	}
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("listen for hooks: make %s: %w", path, err)
	}
	// Open for writing too, so that a read never meets the end of the file.
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("listen for hooks: %w", err)
	}
	poked := make(chan struct{}, 1)
	go func() {
		buf := make([]byte, 64)
		for {
			if _, err := f.Read(buf); err != nil {
				return
			}
			select {
			case poked <- struct{}{}:
			default: // a poke is waiting already
			}
		}
	}()
	return poked, nil
}

// Poke tells the agent, if it listens, that the ledger has changed.
func Poke(runDir string) {
	f, err := os.OpenFile(filepath.Join(runDir, pokeFIFO), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	f.Write([]byte{1})
}
