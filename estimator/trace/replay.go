// SPDX-License-Identifier: Apache-2.0

package trace

import "carma/estimator/allocator"

// budget bounds the moves in the allocator's free lists: a replay that needs
// more ends early. The most that a trace of timm's needs is far below it.
const budget = 4 << 20

// Options are the values that a trace does not tell.
type Options struct {
	Batch     int64 // per GPU; 0: as traced
	CuBLAS    int64 // bytes of a workspace of cuBLAS
	Workspace Scratch
}

// Result is the memory of a replay.
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
	classes := make([]purpose, 0, t.births)
	sizes := make([]int64, len(t.sizes))
	for i, s := range t.sizes {
		sizes[i] = t.at(s.bytes, o.Batch)
	}
	var r Result
	var live [nClasses]int64
	var sum int64
	// PyTorch has a cuBLAS handle for each thread, and a workspace for each handle (aten/src/ATen/cuda/
	// CublasHandlePool.cpp); the backward pass has a thread of its own (torch/csrc/autograd/engine.cpp). Its
	// first matrix product is taken to be where the first gradient of a parameter is made.
	var handles struct{ forward, backward bool }
	handle := func(of *bool) {
		if *of {
			return
		}
		*of = true
		if h := d.Alloc(o.CuBLAS); h != 0 {
			live[workspace] += d.Size(h)
			sum += d.Size(h)
		}
	}
	for _, e := range t.events {
		if d.Moves > budget {
			r.Reserved = r.Peak
			return r
		}
		switch e.kind {
		case birth:
			class := t.sizes[e.n].class
			if class == gradients && handles.forward {
				handle(&handles.backward)
			}
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
			handle(&handles.forward)
		default:
			c := &t.convolutions[e.n]
			d.Touch(o.Workspace.bytes(e.kind, c, t.at(c.in, o.Batch), t.at(c.out, o.Batch)))
		}
	}
	r.Params = t.parameters()
	r.Reserved, r.Complete = d.Reserved, true
	// What the allocator held beyond the live peak because a workspace had to
	// fit: shown as workspace, up to the gap.
	r.Parts[workspace] += min(max(d.PeakAllocated-r.Peak, 0), r.Reserved-r.Peak)
	return r
}

func (t *Trace) parameters() int64 {
	var n int64
	for _, e := range t.events {
		if e.kind == birth && t.sizes[e.n].class == parameters {
			n += t.sizes[e.n].bytes.first
		}
	}
	return n
}

// Scratch says how much workspace cuDNN takes for a convolution, in quarters of
// the bytes read and written (estimator/README.md, fitted constants).
type Scratch struct {
	Forward, Data, Weight int64 // windows that overlap, no groups
	Few, Grouped, Patch   int64 // backward: an image's few channels, groups, windows side by side
	Point                 int64 // forward: windows of one pixel
}

// fewChannels are the channels of an image.
const fewChannels = 4

func (s Scratch) bytes(k kind, c *convolution, in, out int64) int64 {
	var quarters [3]int64 // forward, of the input's gradient, of the weight's
	switch {
	case c.Groups == c.InChannels && c.Groups > 1:
		// Depthwise: PyTorch's own kernels, which take none.
	case c.Kernel[0]*c.Kernel[1]*c.Kernel[2] <= 1:
		quarters = [3]int64{s.Point, 0, 0}
	case c.Stride >= c.Kernel[0]:
		quarters = [3]int64{0, s.Patch, s.Patch}
	case c.InChannels <= fewChannels:
		quarters = [3]int64{0, s.Few, s.Few}
	case c.Groups > 1:
		quarters = [3]int64{0, s.Grouped, s.Grouped}
	default:
		quarters = [3]int64{s.Forward, s.Data, s.Weight}
	}
	return (in + out) / 4 * quarters[k-forward]
}

// transformBytes is the memory that cuDNN's FFT algorithms take for a filter: a
// tile of 32 x 32 has 32 x 17 complex frequencies of eight bytes.
const transformBytes = 32 * 17 * 8

// Transform is the scratch memory that the largest convolution takes if cuDNN
// uses FFT: its filters, transformed. FFT is possible where the output is as
// wide as the input, and wider than a pixel.
func (t *Trace) Transform() int64 {
	var most int64
	for i := range t.convolutions {
		c := &t.convolutions[i]
		wide := c.in.first/c.InChannels == c.out.first/c.OutChannels &&
			c.in.first/c.InChannels > max(t.Batch[0], 1)*c.ElemBytes
		if wide {
			filters := c.OutChannels * (c.InChannels / min(c.Groups, c.InChannels))
			most = max(most, min(filters, maxStorage/transformBytes)*transformBytes)
		}
	}
	return most
}
