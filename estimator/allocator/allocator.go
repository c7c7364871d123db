// SPDX-License-Identifier: Apache-2.0

// Package allocator simulates PyTorch's caching allocator for CUDA
// (c10/cuda/CUDACachingAllocator.cpp, default settings): it takes the sizes of
// allocations and frees in order and says how much the process would have
// reserved from the driver, which is what nvidia-smi shows on top of the
// context.
package allocator

import "math/bits"

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

type freeEntry struct {
	size, addr int64
	id         int32
}

// classes is the number of size classes: one a power of two of blocks of
// minBlock, up to what a segment that grows can come to.
const classes = 56

// pool holds free blocks by size class, each list ordered by size, then
// address: the first that is not before a size is the best fit.
type pool struct {
	used  uint64 // a bit for each class that has entries
	lists [classes][]freeEntry
}

// place is where an entry is in a pool.
type place struct{ class, index int }

func classOf(size int64) int { return bits.Len64(uint64(size) / minBlock) }

// Device is one GPU's allocator. The zero value is not ready; use New.
type Device struct {
	blocks   []block
	unused   []int32
	pools    [2]pool // large, small
	nextAddr int64
	tails    [2]int32 // of each pool the last block, where its segment can grow

	// Expandable is PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: each pool
	// has one segment, which grows at its end. Set it before the first Alloc.
	Expandable bool

	Reserved      int64 // bytes in segments
	Allocated     int64 // bytes in live blocks
	PeakAllocated int64
	Moves         int64 // free-list entries moved: the work done, for a budget
}

// New gives an empty device with room for about n live blocks.
func New(n int) *Device {
	d := &Device{}
	d.blocks = make([]block, 1, n+64)
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
	free := d.pool(small)
	var id int32
	at, found := free.bestFit(size)
	if found {
		id = free.lists[at.class][at.index].id
	} else if d.Expandable {
		id = d.grow(size, small)
	} else {
		id = d.segment(size, small)
	}
	switch split := splits(small, d.blocks[id].size-size); {
	case split && found:
		d.replace(free, at, d.split(id, size))
	case split:
		d.insert(free, d.split(id, size))
	case found:
		d.drop(free, at)
	}
	b := &d.blocks[id]
	b.free = false
	d.Allocated += b.size
	d.PeakAllocated = max(d.PeakAllocated, d.Allocated)
	return Handle(id)
}

// Touch is an Alloc and the Free of the block, and gives the block's size. A free block that is large
// enough is the same afterwards, so no block moves.
func (d *Device) Touch(n int64) int64 {
	if n <= 0 {
		return 0
	}
	size := (min(n, maxBytes) + minBlock - 1) / minBlock * minBlock
	small := size <= smallSize
	at, found := d.pool(small).bestFit(size)
	if !found {
		h := d.Alloc(n)
		size = d.Size(h)
		d.Free(h)
		return size
	}
	if have := d.pool(small).lists[at.class][at.index].size; !splits(small, have-size) {
		size = have
	}
	d.PeakAllocated = max(d.PeakAllocated, d.Allocated+size)
	return size
}

// splits says whether the rest of a block is large enough to be a block of its own.
func splits(small bool, rest int64) bool {
	return small && rest >= minBlock || !small && rest > smallSize
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
	free := d.pool(d.blocks[id].small)
	var at place // of a neighbour's entry, which the merged block's replaces
	merged := false
	if p := d.blocks[id].prev; p != 0 && d.blocks[p].free {
		at, merged = free.find(&d.blocks[p]), true
		d.merge(p, id)
		id = p
	}
	if n := d.blocks[id].next; n != 0 && d.blocks[n].free {
		next := free.find(&d.blocks[n])
		d.merge(id, n)
		if merged {
			d.drop(free, next)
			if next.class == at.class && next.index < at.index {
				at.index--
			}
		} else {
			at, merged = next, true
		}
	}
	b := &d.blocks[id]
	b.free = true
	e := freeEntry{b.size, b.addr, id}
	if merged {
		d.replace(free, at, e)
	} else {
		d.insert(free, e)
	}
}

func (d *Device) pool(small bool) *pool {
	if small {
		return &d.pools[1]
	}
	return &d.pools[0]
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

// expandableStart is where the small pool's segment begins, beyond all that the
// large one's can come to.
const expandableStart = 1 << 61

// grow makes a pool's only segment longer, by pages of smallBuffer or largeBuffer
// (ExpandableSegment::map), so that its last block has size bytes, and takes
// that block.
func (d *Device) grow(size int64, small bool) int32 {
	free, page, start := d.pool(small), int64(largeBuffer), int64(0)
	if small {
		page, start = smallBuffer, expandableStart
	}
	tail := &d.tails[0]
	if small {
		tail = &d.tails[1]
	}
	t := *tail
	if t != 0 && d.blocks[t].free {
		b := &d.blocks[t]
		d.drop(free, free.find(b))
		more := (size - b.size + page - 1) / page * page
		b.size += more
		d.Reserved += more
		return t
	}
	id := d.newBlock()
	n := (size + page - 1) / page * page
	d.blocks[id] = block{size: n, addr: start, prev: t, small: small}
	if t != 0 {
		d.blocks[id].addr = d.blocks[t].addr + d.blocks[t].size
		d.blocks[t].next = id
	}
	d.Reserved += n
	*tail = id
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
	if d.Expandable {
		d.moveTail(id, rest)
	}
	b.next = rest
	b.size = size
	return freeEntry{d.blocks[rest].size, d.blocks[rest].addr, rest}
}

// moveTail follows the last block of a segment that grows.
func (d *Device) moveTail(from, to int32) {
	for i, t := range d.tails {
		if t == from && t != 0 {
			d.tails[i] = to
		}
	}
}

// merge appends block b to its left neighbour a.
func (d *Device) merge(a, b int32) {
	d.blocks[a].size += d.blocks[b].size
	d.blocks[a].next = d.blocks[b].next
	if n := d.blocks[b].next; n != 0 {
		d.blocks[n].prev = a
	}
	if d.Expandable {
		d.moveTail(b, a)
	}
	d.blocks[b] = block{free: true}
	d.unused = append(d.unused, b)
}

// bestFit finds the smallest free block of at least size bytes, of several the
// one with the lowest address.
func (p *pool) bestFit(size int64) (place, bool) {
	c := classOf(size)
	if k := search(p.lists[c], size, 0); k < len(p.lists[c]) {
		return place{c, k}, true
	}
	larger := p.used >> (c + 1) << (c + 1)
	return place{bits.TrailingZeros64(larger), 0}, larger != 0
}

// find gives the place of a free block.
func (p *pool) find(b *block) place {
	c := classOf(b.size)
	return place{c, search(p.lists[c], b.size, b.addr)}
}

// search gives the first entry that is not before (size, addr). The comparison has no branch: the
// half of a list with the place is as good as random, and a wrong guess of the processor costs more
// than the comparison.
func search(l []freeEntry, size, addr int64) int {
	first, n := 0, len(l)
	for n > 0 {
		half := (n + 1) / 2
		e := &l[first+half-1]
		_, less := bits.Sub64(uint64(e.addr), uint64(addr), 0)
		_, less = bits.Sub64(uint64(e.size), uint64(size), less)
		first += half & -int(less)
		n = n - half // the upper half may be one longer than is needed
	}
	return first
}

func (d *Device) insert(p *pool, e freeEntry) {
	c := classOf(e.size)
	l := p.lists[c]
	k := search(l, e.size, e.addr)
	if l == nil {
		l = make([]freeEntry, 0, 16)
	}
	l = append(l, freeEntry{})
	copy(l[k+1:], l[k:])
	l[k] = e
	p.lists[c] = l
	p.used |= 1 << c
	d.Moves += int64(len(l) - k)
}

// replace puts e in the pool for the entry at, moving only what lies between.
func (d *Device) replace(p *pool, at place, e freeEntry) {
	if classOf(e.size) != at.class {
		d.drop(p, at)
		d.insert(p, e)
		return
	}
	l, k := p.lists[at.class], at.index
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

func (d *Device) drop(p *pool, at place) {
	l := p.lists[at.class]
	d.Moves += int64(len(l) - at.index)
	copy(l[at.index:], l[at.index+1:])
	p.lists[at.class] = l[:len(l)-1]
	if len(l) == 1 {
		p.used &^= 1 << at.class
	}
}
