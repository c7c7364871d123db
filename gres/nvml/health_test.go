// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"testing"
	"time"
)

// Errors are told once, and only those since the library was opened.
func TestXids(t *testing.T) {
	n := node(t, "--model", "dgx-a100")
	look := func() string { return fmt.Sprint(n.Sample()[1].Xids, n.Sample()[0].Xids) }
	if got := look(); got != "[] []" {
		t.Errorf("at first %s", got)
	}
	simgpu(t, "fault", "1", "xid=31")
	simgpu(t, "fault", "1", "xid=79")
	if got := look(); got != "[31 79] []" {
		t.Errorf("got %s", got)
	}
	if got := look(); got != "[] []" {
		t.Errorf("again %s", got)
	}
}

func TestState(t *testing.T) {
	n := node(t, "--model", "h100", "--mig", "2=3g.40gb,2=3g.40gb")
	for _, c := range []struct {
		gpu, fault string
		first      int // of its samples
		want       string
		pending    bool
	}{
		{"1", "rows=pending", 1, "", true},
		{"1", "rows=failure", 1, "a row of its memory could not be remapped: have the GPU exchanged", false},
		{"1", "none", 1, "", false},
		{"1", "recovery=1", 1, "the driver asks for a reset of the GPU", false},
		{"1", "recovery=77", 1, "the driver asks for recovery action 77", false},
		{"1", "recovery=0", 1, "", false},
		{"2", "recovery=2", 3, "the driver asks for a reboot of the node", false}, // both instances
	} {
		simgpu(t, "fault", c.gpu, c.fault)
		for _, r := range n.readers {
			r.device.health.at = time.Time{}
		}
		if s := n.Sample()[c.first]; s.Fault != c.want || s.RowsPending != c.pending {
			t.Errorf("%s: %q, %v", c.fault, s.Fault, s.RowsPending)
		}
	}
	// It is not asked for at each look, and what was said stays when the GPU answers no more.
	simgpu(t, "fault", "2", "recovery=0")
	if s := n.Sample()[3]; s.Fault == "" {
		t.Error("asked again at once")
	}
	simgpu(t, "fault", "2", "lost")
	n.readers[2].device.health.at = time.Time{}
	if s := n.Sample()[2]; s.Fault == "" {
		t.Errorf("lost, and well: %+v", s)
	}
}
