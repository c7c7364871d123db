// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// ranks is a slurmctld that knows priorities.
type ranks struct {
	*slurm
	mu       *sync.Mutex
	priority map[uint32]int64
	silent   bool
	inUse    int           // slots; 0: slurmctld does not say
	takes    time.Duration // to say
	asked    *int          // how often; nil: nobody counts
}

func (r ranks) SlotsInUse(ctx context.Context, _ string) (int, error) {
	if r.asked != nil {
		*r.asked++
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(r.takes):
	}
	if r.silent || r.inUse == 0 {
		return 0, errors.New("slurmctld is away")
	}
	return r.inUse, nil
}

func (r ranks) Job(_ context.Context, id uint32) (sctl.Job, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent {
		return sctl.Job{}, errors.New("slurmctld is away")
	}
	return sctl.Job{ID: id, UID: 1000, State: "RUNNING", Requeue: true, Priority: r.priority[id]}, nil
}

// A Prolog that was killed leaves a file and makes nobody wait.
func TestPlaceOfAKilledProlog(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.RunDir, placesDir)
	p := w.takePlace(9, 1)
	if err := os.WriteFile(filepath.Join(dir, "8"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if jobs, slots, err := p.others(); len(jobs) != 0 || slots != 0 || err != nil {
		t.Errorf("%v, %d, %v", jobs, slots, err)
	}
	waits := w.takePlace(7, 1)
	if jobs, slots, err := p.others(); len(jobs) != 1 || jobs[0] != 7 || slots != 1 || err != nil {
		t.Errorf("%v, %d, %v", jobs, slots, err)
	}
	waits.leave()
	p.leave()
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// Slots of jobs with GPUs are not counted twice, slots of yielding jobs are counted, and a killed Prolog of the job
// leaves no text.
func TestSlotsOfOthers(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.RunDir, placesDir)
	err := os.MkdirAll(dir, 0o700)
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "7"), []byte("16"), 0o600)); err != nil {
		t.Fatal(err)
	}
	p := w.takePlace(9, 1)
	defer p.leave()
	defer w.takePlace(7, 2).leave()
	yields := w.takePlace(8, 4)
	defer yields.leave()
	yields.rest()
	for _, c := range []struct {
		leased map[uint32]int
		want   int
	}{
		{nil, 6},
		{map[uint32]int{7: 2}, 4},
		{map[uint32]int{8: 4, 5: 1}, 2},
	} {
		p.leased = c.leased
		if jobs, slots, err := p.others(); !slices.Equal(jobs, []uint32{7}) || slots != c.want || err != nil {
			t.Errorf("with GPUs %v: %v, %d, %v, want %d", c.leased, jobs, slots, err, c.want)
		}
	}
}

// A job on its way back to the queue has its slots until its Prolog ends, and waits no more: nobody waits for the job.
func TestPlaceOfAReturningJob(t *testing.T) {
	w := newWorld(t)
	whole := hook(1)
	whole.Carma.Mode = "exclusive"
	w.prolog(t, whole)
	p := w.takePlace(9, 1)
	defer p.leave()
	var during []uint32
	slots := 0
	w.slurm.refuse = func(sctl.Change) (err error) {
		during, slots, err = p.others()
		return err
	}
	large := hook(7)
	large.Carma.Mode, large.Carma.GPUs = "exclusive", 2
	large.Slots = []int{0, 1}
	w.prolog(t, large)
	if len(during) != 0 || slots != 2 {
		t.Errorf("while the job returned: waits %v, %d slots", during, slots)
	}
	if jobs, slots, err := p.others(); len(jobs) != 0 || slots != 0 || err != nil {
		t.Errorf("behind its Prolog: %v, %d, %v", jobs, slots, err)
	}
}

// An earlier job that needs more than there is makes a later job wait for two seconds, no longer.
func TestEarlierJobThatDoesNotFit(t *testing.T) {
	w := newWorld(t)
	slurm := func() ranks { return ranks{&slurm{}, &sync.Mutex{}, nil, false, 0, 0, nil} }
	one := hook(1)
	one.Carma.Mode = "exclusive"
	if err := w.Prolog(t.Context(), one, w.book, slurm()); err != nil {
		t.Fatal(err)
	}
	earlier := w.takePlace(8, 2) // of a job that needs two GPUs
	defer earlier.leave()
	later := hook(9)
	later.Carma.Mode = "exclusive"
	began := time.Now()
	if err := w.Prolog(t.Context(), later, w.book, slurm()); err != nil {
		t.Fatal(err)
	}
	if l := w.leases(t); len(l) != 2 || time.Since(began) < mostLeft {
		t.Errorf("leases %+v after %v", l, time.Since(began))
	}
}

// A job that has booked nothing leaves the last GPU to a job whose Prolog waits for it, and which no queue shows
// any more.
func TestLastGPUIsLeftToAProlog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := hook(1)
	one.Carma.Mode = "exclusive"
	w.prolog(t, one)
	waits := w.takePlace(8, 1)
	unbooked := hook(9)
	unbooked.Carma = jobenv.Carma{}
	w.Until = time.Now().Add(2*w.Config.Hooks.Deadline.D() + time.Minute)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Prolog(t.Context(), unbooked, w.book, w.slurm)
	}()
	time.Sleep(confirmAfter + time.Second)
	if l := w.leases(t); len(l) != 1 {
		t.Errorf("it took the last GPU: %+v", l)
	}
	waits.leave()
	<-ended
	if l := w.leases(t); len(l) != 2 {
		t.Errorf("nobody waits any more: %+v", l)
	}
}
