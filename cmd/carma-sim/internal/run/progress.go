// SPDX-License-Identifier: Apache-2.0

package run

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// progress counts on a terminal, once a second, and wipes its line at the end.
type progress struct {
	total, done int
	shown       time.Time
	terminal    bool
}

func newProgress(total int) *progress {
	_, err := unix.IoctlGetTermios(int(os.Stderr.Fd()), unix.TCGETS)
	return &progress{total: total, shown: time.Now(), terminal: err == nil}
}

func (p *progress) step() { p.set(p.done + 1) }

func (p *progress) set(done int) {
	p.done = done
	if p.terminal && time.Since(p.shown) > time.Second {
		p.shown = time.Now()
		fmt.Fprintf(os.Stderr, "\r%d of %d", p.done, p.total)
	}
}

func (p *progress) end() {
	if p.terminal {
		fmt.Fprint(os.Stderr, "\r\x1b[K")
	}
}
