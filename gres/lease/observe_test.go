// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"testing"
)

// What a job has is noted as often as it is seen, and once.
func TestObserve(t *testing.T) {
	b := open(t, t.TempDir())
	if err := b.PutReadings(t.Context(), gpus(3)); err != nil {
		t.Fatal(err)
	}
	job := Job{JobKey: key(7, 1), UID: 1000, About: []byte(`{"Partition":"gpu"}`)}
	for _, claims := range [][]Claim{{{"GPU-1", true}}, {{"GPU-1", true}, {"GPU-2", false}, {"GPU-2", false}}} {
		if err := b.Observe(t.Context(), job, claims); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Observe(t.Context(), Job{JobKey: key(8, 0), UID: 1001}, []Claim{{"GPU-2", false}}); err != nil {
		t.Fatal(err)
	}
	h, ok, err := b.Find(t.Context(), job.JobKey)
	if err != nil || !ok || string(h.About) != string(job.About) || len(h.GPUs) != 2 || len(h.Neighbours) != 1 {
		t.Fatalf("found %+v, %v, %v", h, ok, err)
	}
	if g := h.GPUs[0]; g.UUID != "GPU-1" || !g.Exclusive || g.ReserveMiB != 40536 || g.Model != "A100" {
		t.Errorf("a whole GPU: %+v", g)
	}
	if g := h.GPUs[1]; g.UUID != "GPU-2" || g.Exclusive || g.ReserveMiB != 0 || g.Slot != 1 {
		t.Errorf("a GPU with a process: %+v", g)
	}
	for _, other := range []Job{{JobKey: key(7, 2), UID: 1000}, {JobKey: key(7, 1), UID: 1001}} {
		if err := b.Observe(t.Context(), other, []Claim{{"GPU-0", true}}); !errors.Is(err, ErrSuperseded) {
			t.Errorf("%+v: %v", other, err)
		}
	}
}
