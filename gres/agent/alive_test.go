// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"

	"carma/gres"
)

// A look that came to its end is told to who watches, whatever came of it.
func TestAliveAfterEachLook(t *testing.T) {
	a := newAgent()
	told := 0
	a.Alive = func() { told++ }
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	block := make(chan struct{})
	defer close(block)
	a.Sample = func() []gres.Sample { <-block; return nil }
	a.observe(ctx) // the driver hangs, and the agent is told to end
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}
