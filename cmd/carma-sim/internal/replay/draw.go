// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"math"
	"math/rand/v2"

	"carma/cmd/carma-sim/internal/workload"
)

// Draw is what one run of a submission is like: the job's figures with this
// seed's jitter in them. Times are simulated seconds; arrival is since the
// first submission.
type Draw struct {
	ArrivalS  float64
	StartupS  float64
	SpikeS    float64
	AloneS    float64 // on its GPUs, without neighbours
	PeakMiB   int64
	SteadyMiB int64
}

// DrawOf draws submission i of a workload. It depends on nothing but the seed,
// the submission and its place, so that configurations are compared on the same
// jobs.
func (s *Setup) DrawOf(w *workload.Workload, i int) Draw {
	sub, jitter := &w.Trace[i], &s.Model.Job
	j := &w.Jobs[sub.Job]
	r := rand.New(rand.NewPCG(s.Seed, uint64(i)))
	d := Draw{ArrivalS: sub.ArrivalS - w.Trace[0].ArrivalS}
	d.StartupS = jitter.StartupS.At(r.Float64())
	d.SpikeS = jitter.SpikeS.At(r.Float64())
	d.AloneS = w.Duration(sub) * (1 + jitter.DurationJitterPct/100*(2*r.Float64()-1))
	f := 1 + jitter.PeakJitterPct/100*(2*r.Float64()-1)
	d.PeakMiB = int64(math.Round(f * float64(j.PeakMiB)))
	d.SteadyMiB = min(int64(math.Round(f*float64(j.SteadyMiB))), d.PeakMiB)
	return d
}

// Booked is what a submission books: whole GPUs, or so much memory of each.
type Booked struct {
	Exclusive  bool
	ReserveMiB int64
}

// Bookings returns what each submission of a workload books, as far as that
// does not depend on how earlier ones end.
func (s *Setup) Bookings(w *workload.Workload) ([]Booked, error) {
	b := newBooker(s, w)
	list := make([]Booked, len(w.Trace))
	for i := range w.Trace {
		got, err := b.book(w.Trace[i].Job, &w.Jobs[w.Trace[i].Job])
		if err != nil {
			return nil, err
		}
		list[i] = Booked{got.exclusive, got.reserveMiB}
	}
	return list, nil
}
