// SPDX-License-Identifier: Apache-2.0

package replay

// Curves are means over the GPUs (power: sums) in equal intervals of time.
type Curves struct {
	StepS    float64
	MemMiB   []float64
	SMActPct []float64
	Watts    []float64
}

// recorder keeps every change of the cluster's sums.
type recorder struct {
	m      *machine
	last   []point // of each GPU
	sum    point
	points []point
}

type point struct {
	at, mem, util, watts float64
}

func newRecorder(m *machine) *recorder {
	r := &recorder{m: m, last: make([]point, len(m.gpus))}
	for g := range m.gpus {
		r.touch(int32(g))
	}
	return r
}

// touch notes what a GPU is like from now on. Changes come in groups at one
// moment: the last one stands.
func (r *recorder) touch(g int32) {
	x := &r.m.gpus[g]
	now := point{r.m.now, float64(x.used), x.util, x.watts}
	old := r.last[g]
	r.last[g] = now
	r.sum.mem += now.mem - old.mem
	r.sum.util += now.util - old.util
	r.sum.watts += now.watts - old.watts
	r.sum.at = now.at
	if n := len(r.points); n > 0 && r.points[n-1].at == now.at {
		r.points[n-1] = r.sum
		return
	}
	r.points = append(r.points, r.sum)
}

// curveSteps is how many intervals a curve has.
const curveSteps = 300

// curves averages the points over equal intervals up to end.
func (r *recorder) curves(end float64) *Curves {
	c := &Curves{StepS: end / curveSteps, MemMiB: make([]float64, curveSteps), SMActPct: make([]float64, curveSteps),
		Watts: make([]float64, curveSteps)}
	if end <= 0 {
		return c
	}
	n := float64(len(r.m.gpus))
	for i, p := range r.points {
		to := end
		if i+1 < len(r.points) {
			to = min(r.points[i+1].at, end)
		}
		for from := p.at; from < to; {
			k := int(from / c.StepS)
			if float64(k+1)*c.StepS <= from { // the division has rounded down
				k++
			}
			until := min(to, float64(k+1)*c.StepS)
			if k >= curveSteps-1 {
				k, until = curveSteps-1, to
			}
			share := (until - from) / c.StepS
			c.MemMiB[k] += share * p.mem / n
			c.SMActPct[k] += share * 100 * p.util / n
			c.Watts[k] += share * p.watts
			from = until
		}
	}
	return c
}
