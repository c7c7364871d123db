// SPDX-License-Identifier: Apache-2.0

package trace

import "carma/estimator/allocator"

// Budget bounds the moves in the allocator's free lists: a replay that needs
// more ends early. The most that a trace of timm's needs is far below it.
const Budget = 4 << 20

// Options are what a trace does not tell.
type Options struct {
	Batch     int64 // per GPU; 0: as traced
	CuBLAS    int64 // bytes of cuBLAS' workspace
	Workspace Scratch
}

// Result is what a replay took.
type Result struct {
	Reserved int64 // segments: what nvidia-smi adds to the base
	Peak     int64 // live bytes at most, without cuDNN's workspaces
	Parts    [nClasses]int64
	Params   int64 // bytes of parameters
	Complete bool  // false: the work budget ran out, and Reserved is the live peak so far
}

// Replay plays the trace on an empty device.
func (t *Trace) Replay(o Options) Result {
	d := allocator.New(t.births/2 + 64)
	d.Expandable = t.Expandable
	blocks := make([]allocator.Handle, 0, t.births)
	classes := make([]Class, 0, t.births)
	sizes := make([]int64, len(t.sizes))
	for i, s := range t.sizes {
		sizes[i] = t.at(s.bytes, o.Batch)
	}
	var r Result
	var live [nClasses]int64
	var sum int64
	cublas := false
	for _, e := range t.events {
		if d.Moves > Budget {
			r.Reserved = r.Peak
			return r
		}
		switch e.kind {
		case birth:
			class := t.sizes[e.n].class
			h := d.Alloc(sizes[e.n])
			blocks, classes = append(blocks, h), append(classes, class)
			if h == 0 {
				continue
			}
			live[class] += d.Size(h)
			sum += d.Size(h)
			if sum > r.Peak {
				r.Peak, r.Parts = sum, live
			}
		case death:
			if h := blocks[e.n]; h != 0 {
				live[classes[e.n]] -= d.Size(h)
				sum -= d.Size(h)
				d.Free(h)
			}
		case matmul:
			if !cublas {
				cublas = true
				if h := d.Alloc(o.CuBLAS); h != 0 {
					live[Workspace] += d.Size(h)
					sum += d.Size(h)
				}
			}
		default:
			c := &t.convolutions[e.n]
			d.Free(d.Alloc(o.Workspace.bytes(e.kind, c, t.at(c.in, o.Batch), t.at(c.out, o.Batch))))
		}
	}
	r.Params = t.parameters()
	r.Reserved, r.Complete = d.Reserved, true
	// What the allocator held beyond the live peak because a workspace had to
	// fit: shown as workspace, up to the gap.
	r.Parts[Workspace] += min(max(d.PeakAllocated-r.Peak, 0), r.Reserved-r.Peak)
	return r
}

func (t *Trace) parameters() int64 {
	var n int64
	for _, e := range t.events {
		if e.kind == birth && t.sizes[e.n].class == Parameters {
			n += t.sizes[e.n].bytes.first
		}
	}
	return n
}

// Scratch says how much workspace cuDNN takes for a convolution, in quarters of
// what it reads and writes (estimator/README.md, fitted constants).
type Scratch struct {
	Forward, Data, Weight int64 // windows that overlap, no groups
	Few                   int64 // backward, of an image's few channels or in groups
}

// fewChannels are those of an image.
const fewChannels = 4

func (s Scratch) bytes(k kind, c *Convolution, in, out int64) int64 {
	windows := c.Kernel[0] * c.Kernel[1] * c.Kernel[2]
	if windows <= 1 || c.Stride >= c.Kernel[0] || c.Groups == c.InChannels && c.Groups > 1 {
		return 0
	}
	quarters := s.Forward
	switch {
	case k != forward && (c.InChannels <= fewChannels || c.Groups > 1):
		quarters = s.Few
	case k == backwardData:
		quarters = s.Data
	case k == backwardWeight:
		quarters = s.Weight
	}
	return (in + out) / 4 * quarters
}
