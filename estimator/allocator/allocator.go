// SPDX-License-Identifier: Apache-2.0

// Package allocator simulates PyTorch's caching allocator for CUDA
// (c10/cuda/CUDACachingAllocator.cpp, default settings): it takes the sizes of
// allocations and frees in order and says how much the process would have
// reserved from the driver, which is what nvidia-smi shows on top of the
// context.
package allocator

// Constants of c10/cuda/CUDACachingAllocator.cpp, in bytes.
const (
	minBlock    = 512      // kMinBlockSize: every size is rounded up to it
	smallSize   = 1 << 20  // kSmallSize: largest "small" allocation
	smallBuffer = 2 << 20  // kSmallBuffer: segment for small allocations
	minLarge    = 10 << 20 // kMinLargeAlloc: from here a segment of its own
	largeBuffer = 20 << 20 // kLargeBuffer: segment for 1 to 10 MiB
	roundLarge  = 2 << 20  // kRoundLarge: rounding of own segments
	maxBytes    = 1 << 52  // larger requests saturate; no device has that much
)

// Handle names an allocated block. The zero Handle is no block.
type Handle int32

type block struct {
	size       int64
	addr       int64
	prev, next int32 // neighbours within the segment, 0 for none
	free       bool
	small      bool
}

// free blocks, ordered by size, then address: lower_bound is best fit.
type freeEntry struct {
	size, addr int64
	id         int32
}

// Device is one GPU's allocator. The zero value is not ready; use New.
type Device struct {
	blocks   []block
	unused   []int32
	pools    [2][]freeEntry // large, small
	nextAddr int64

	Reserved      int64 // bytes in segments
	Allocated     int64 // bytes in live blocks
	PeakAllocated int64
	Moves         int64 // free-list entries moved: the work done, for a budget
}

// New gives an empty device with room for about n live blocks.
func New(n int) *Device {
	d := &Device{}
	d.blocks = make([]block, 1, n+64)
	d.pools[0] = make([]freeEntry, 0, 64)
	d.pools[1] = make([]freeEntry, 0, 64)
	d.unused = make([]int32, 0, 64)
	return d
}

// Alloc takes n bytes and gives the block; n <= 0 gives the zero Handle.
func (d *Device) Alloc(n int64) Handle {
	if n <= 0 {
		return 0
	}
	if n > maxBytes {
		n = maxBytes
	}
	size := (n + minBlock - 1) / minBlock * minBlock
	small := size <= smallSize
	pool := poolIndex(small)
	var id int32
	k := d.lowerBound(pool, size, 0)
	found := k < len(d.pools[pool])
	if found {
		id = d.pools[pool][k].id
	} else {
		id = d.segment(size, small)
	}
	rest := d.blocks[id].size - size
	switch split := small && rest >= minBlock || !small && rest > smallSize; {
	case split && found:
		d.replace(pool, k, d.split(id, size))
	case split:
		d.insert(pool, d.split(id, size))
	case found:
		d.drop(pool, k)
	}
	b := &d.blocks[id]
	b.free = false
	d.Allocated += b.size
	d.PeakAllocated = max(d.PeakAllocated, d.Allocated)
	return Handle(id)
}

// Size is the rounded size of a live block.
func (d *Device) Size(h Handle) int64 { return d.blocks[h].size }

// Free gives a block back; the zero Handle is ignored.
func (d *Device) Free(h Handle) {
	id := int32(h)
	if id <= 0 || int(id) >= len(d.blocks) || d.blocks[id].free {
		return
	}
	d.Allocated -= d.blocks[id].size
	pool := poolIndex(d.blocks[id].small)
	at := -1 // a neighbour's entry, to be replaced by the merged block's
	if p := d.blocks[id].prev; p != 0 && d.blocks[p].free {
		at = d.lowerBound(pool, d.blocks[p].size, d.blocks[p].addr)
		d.merge(p, id)
		id = p
	}
	if n := d.blocks[id].next; n != 0 && d.blocks[n].free {
		k := d.lowerBound(pool, d.blocks[n].size, d.blocks[n].addr)
		d.merge(id, n)
		if at >= 0 {
			d.drop(pool, k)
			if k < at {
				at--
			}
		} else {
			at = k
		}
	}
	b := &d.blocks[id]
	b.free = true
	e := freeEntry{b.size, b.addr, id}
	if at >= 0 {
		d.replace(pool, at, e)
	} else {
		d.insert(pool, e)
	}
}

func poolIndex(small bool) int {
	if small {
		return 1
	}
	return 0
}

// segment asks the driver for a new segment (get_allocation_size).
func (d *Device) segment(size int64, small bool) int32 {
	n := (size + roundLarge - 1) / roundLarge * roundLarge
	switch {
	case small:
		n = smallBuffer
	case size < minLarge:
		n = largeBuffer
	}
	d.Reserved += n
	id := d.newBlock()
	d.blocks[id] = block{size: n, addr: d.nextAddr, small: small}
	d.nextAddr += n
	return id
}

func (d *Device) newBlock() int32 {
	if k := len(d.unused); k > 0 {
		id := d.unused[k-1]
		d.unused = d.unused[:k-1]
		return id
	}
	d.blocks = append(d.blocks, block{})
	return int32(len(d.blocks) - 1)
}

// split leaves the first size bytes in block id and gives the free rest.
func (d *Device) split(id int32, size int64) freeEntry {
	rest := d.newBlock()
	b := &d.blocks[id]
	d.blocks[rest] = block{
		size: b.size - size, addr: b.addr + size, prev: id, next: b.next, free: true, small: b.small,
	}
	if b.next != 0 {
		d.blocks[b.next].prev = rest
	}
	b.next = rest
	b.size = size
	return freeEntry{d.blocks[rest].size, d.blocks[rest].addr, rest}
}

// merge appends block b to its left neighbour a.
func (d *Device) merge(a, b int32) {
	d.blocks[a].size += d.blocks[b].size
	d.blocks[a].next = d.blocks[b].next
	if n := d.blocks[b].next; n != 0 {
		d.blocks[n].prev = a
	}
	d.blocks[b] = block{free: true}
	d.unused = append(d.unused, b)
}

func (d *Device) lowerBound(pool int, size, addr int64) int {
	return search(d.pools[pool], size, addr)
}

// search gives the first entry that is not before (size, addr).
func search(l []freeEntry, size, addr int64) int {
	lo, hi := 0, len(l)
	for lo < hi {
		m := int(uint(lo+hi) >> 1)
		if l[m].size < size || l[m].size == size && l[m].addr < addr {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

func (d *Device) insert(pool int, e freeEntry) {
	k := d.lowerBound(pool, e.size, e.addr)
	l := append(d.pools[pool], freeEntry{})
	copy(l[k+1:], l[k:])
	l[k] = e
	d.pools[pool] = l
	d.Moves += int64(len(l) - k)
}

// replace puts e in the place that entry k frees, moving only what lies
// between.
func (d *Device) replace(pool, k int, e freeEntry) {
	l := d.pools[pool]
	if k > 0 && before(e, l[k-1]) {
		to := search(l[:k], e.size, e.addr)
		copy(l[to+1:k+1], l[to:k])
		l[to] = e
		d.Moves += int64(k - to)
		return
	}
	to := k + search(l[k+1:], e.size, e.addr)
	copy(l[k:to], l[k+1:to+1])
	l[to] = e
	d.Moves += int64(to - k)
}

func before(a, b freeEntry) bool {
	return a.size < b.size || a.size == b.size && a.addr < b.addr
}

func (d *Device) drop(pool, k int) {
	l := d.pools[pool]
	d.Moves += int64(len(l) - k)
	copy(l[k:], l[k+1:])
	d.pools[pool] = l[:len(l)-1]
}
