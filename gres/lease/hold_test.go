// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"testing"
)

// However many jobs of a user are requeued, or wait, GPUs are kept for one of them, or on
// half of the node's GPUs.
func TestHoldsOfOneUser(t *testing.T) {
	b := open(t, t.TempDir())
	ctx := t.Context()
	if err := b.PutReadings(ctx, gpus(4)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		job, uid uint32
		uuids    []string
		refused  bool
	}{
		{7, 1000, []string{"GPU-0"}, false},
		{8, 1000, []string{"GPU-1", "GPU-2"}, true},
		{8, 1000, []string{"GPU-1"}, false},
		{9, 1000, []string{"GPU-2"}, true},
		{7, 1000, []string{"GPU-0"}, false}, // kept for it already
		{10, 2000, []string{"GPU-2", "GPU-3"}, false},
		{11, 2000, []string{"GPU-2"}, true},
	} {
		if err := b.Hold(ctx, c.job, c.uid, len(c.uuids), 0, c.uuids); errors.Is(err, errEnoughHeld) != c.refused ||
			err != nil && !c.refused {
			t.Errorf("job %d of %d, %v: %v", c.job, c.uid, c.uuids, err)
		}
	}
	if err := errors.Join(b.DropHold(ctx, 7), b.DropHold(ctx, 8), b.DropHold(ctx, 10)); err != nil {
		t.Fatal(err)
	}
	// One job may have all of them.
	if err := b.Hold(ctx, 12, 1000, 4, 0, []string{"GPU-0", "GPU-1", "GPU-2", "GPU-3"}); err != nil {
		t.Error(err)
	}
}
