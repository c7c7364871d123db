// SPDX-License-Identifier: Apache-2.0

// Package nvml reads GPUs through NVML. No other package imports
// go-nvml.
//
// Any NVML call may block for as long as the driver is wedged, in a state in
// which not even SIGKILL ends the process. So each GPU is read by a goroutine of
// its own: one that hangs is told as unreadable, the others go on. Whoever must
// be able to end reads in a process of its own.
package nvml

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"carma/db/figure"
	"carma/gres"
)

// answerIn is how long a GPU may take to answer.
const answerIn = 2 * time.Second

// NVML is an open library. An NVML is not safe for concurrent use.
type NVML struct {
	lib     nvml.Interface
	readers []*reader
	// Lost are the GPUs that cannot be opened, by index, as one that has fallen off the
	// bus. Lost GPUs have no sample, for their UUID is not known, and are tried again.
	Lost      map[int]error
	trying    chan opened // a try that has not come back; nil: none
	tried     time.Time
	triedLast int // the GPU
}

// opened is the result of a try to open a GPU.
type opened struct {
	index  int
	device *device
	err    error
}

// tryEvery is how often a GPU that could not be opened is tried again.
const tryEvery = 30 * time.Second

// reader reads one device in a goroutine of its own.
type reader struct {
	device *device
	ask    chan struct{}
	answer chan []gres.Sample
	busy   bool // has not answered the last ask
	last   []gres.Sample
}

// Open loads the library, a name for the dynamic linker or a path, and lists
// the GPUs that can be opened. The first Sample after it has no SM activity from GPM, which needs
// two looks.
func Open(library string) (*NVML, error) {
	n := &NVML{lib: nvml.New(nvml.WithLibraryPath(library)), Lost: map[int]error{}, tried: time.Now()}
	if ret := n.lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("load NVML from %s: %w", library, ret)
	}
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		n.lib.Shutdown()
		return nil, fmt.Errorf("count GPUs: %w", ret)
	}
	var devices []*device
	for i := range count {
		d, err := n.openDevice(i)
		if err != nil {
			n.Lost[i] = fmt.Errorf("open GPU %d: %w", i, err)
			continue
		}
		devices = append(devices, d)
	}
	n.link(devices, devices)
	for _, d := range devices {
		n.read(d)
	}
	return n, nil
}

func (n *NVML) read(d *device) {
	r := &reader{device: d, ask: make(chan struct{}), answer: make(chan []gres.Sample, 1)}
	go r.run()
	n.readers = append(n.readers, r)
}

// reopen tries again to open what is lost, one GPU at a time, and waits for none: the call
// may hang.
func (n *NVML) reopen() {
	select {
	case o := <-n.trying:
		n.trying = nil
		if o.err != nil {
			n.Lost[o.index] = fmt.Errorf("open GPU %d: %w", o.index, o.err)
			break
		}
		delete(n.Lost, o.index)
		devices := []*device{o.device}
		for _, r := range n.readers {
			devices = append(devices, r.device)
		}
		n.link(devices[:1], devices)
		n.read(o.device)
		slices.SortFunc(n.readers, func(a, b *reader) int { return a.device.gpu.Index - b.device.gpu.Index })
	default:
	}
	if n.trying != nil || len(n.Lost) == 0 || time.Since(n.tried) < tryEvery {
		return
	}
	lost := slices.Sorted(maps.Keys(n.Lost))
	index := lost[0]
	if after := slices.IndexFunc(lost, func(i int) bool { return i > n.triedLast }); after >= 0 {
		index = lost[after]
	}
	n.tried, n.triedLast = time.Now(), index
	answer := make(chan opened, 1)
	n.trying = answer
	go func() {
		d, err := n.openDevice(index)
		answer <- opened{index, d, err}
	}()
}

// Close unloads the library, unless a GPU hangs in a call into it.
func (n *NVML) Close() {
	if n.trying != nil {
		return
	}
	for _, r := range n.readers {
		if r.busy {
			return
		}
	}
	for _, r := range n.readers {
		close(r.ask)
		r.device.close()
	}
	n.lib.Shutdown()
}

func (r *reader) run() {
	for range r.ask {
		r.answer <- r.device.sample()
	}
}

// Sample looks at every GPU once, at all of them at the same time. A GPU that
// cannot be read is told so in its sample and does not keep the others from
// being read; one that has hung since an earlier look is not waited for again.
// A device with MIG has a sample for each instance.
func (n *NVML) Sample() []gres.Sample {
	n.reopen()
	ctx, cancel := context.WithTimeout(context.Background(), answerIn)
	defer cancel()
	gone, goneCancel := context.WithCancel(ctx)
	goneCancel()
	var samples []gres.Sample
	waits := make([]context.Context, len(n.readers))
	for i, r := range n.readers {
		waits[i] = gone
		if !r.busy {
			waits[i], r.busy = ctx, true
			r.ask <- struct{}{}
		}
	}
	for i, r := range n.readers {
		samples = append(samples, r.wait(waits[i])...)
	}
	return samples
}

// wait returns the reader's samples, or what it had before as unreadable.
func (r *reader) wait(ctx context.Context) []gres.Sample {
	select {
	case r.last = <-r.answer:
	case <-ctx.Done():
		select {
		case r.last = <-r.answer:
		default:
			return r.hung()
		}
	}
	r.busy = false
	return r.last
}

func (r *reader) hung() []gres.Sample {
	last := r.last
	if last == nil {
		last = []gres.Sample{blank(r.device.gpu)}
	}
	samples := make([]gres.Sample, len(last))
	for i := range last {
		samples[i] = blank(last[i].GPU)
		samples[i].Unreadable = "NVML does not answer"
	}
	return samples
}

// SampleTwice takes two looks, so far apart, for a caller without a window.
func (n *NVML) SampleTwice(apart time.Duration) []gres.Sample {
	n.Sample()
	time.Sleep(apart)
	return n.Sample()
}

// blank is a sample of nothing.
func blank(g gres.GPU) gres.Sample {
	return gres.Sample{GPU: g, SMActPct: figure.Unknown, SMOccPct: figure.Unknown, DRAMPct: figure.Unknown,
		PowerWatts: figure.Unknown, EnergyJ: figure.Unknown, Source: figure.SourceNone}
}
