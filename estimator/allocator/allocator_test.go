// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"math/rand"
	"slices"
	"testing"
)

const mib = 1 << 20

func TestSegments(t *testing.T) {
	for _, c := range []struct {
		name     string
		sizes    []int64
		reserved int64
	}{
		{"nothing", []int64{0, -5}, 0},
		{"one byte takes a small segment", []int64{1}, 2 * mib},
		{"small blocks share a segment", []int64{512, 1000, mib}, 2 * mib},
		{"two of 1 MiB fill it, a third opens another", []int64{mib, mib, 1}, 4 * mib},
		{"above 1 MiB comes from 20 MiB", []int64{mib + 1}, 20 * mib},
		{"mid-sized blocks share it", []int64{5 * mib, 5 * mib, 9 * mib}, 20 * mib},
		{"from 10 MiB an own segment of 2 MiB steps", []int64{10 * mib, 11*mib + 1}, 10*mib + 12*mib},
	} {
		d := New(8)
		for _, n := range c.sizes {
			d.Alloc(n)
		}
		if d.Reserved != c.reserved {
			t.Errorf("%s: reserved %d, want %d", c.name, d.Reserved, c.reserved)
		}
	}
}

func TestBestFitSplitMerge(t *testing.T) {
	d := New(8)
	a, b := d.Alloc(30*mib), d.Alloc(50*mib)
	d.Free(a)
	d.Free(b)
	if d.Allocated != 0 || d.Reserved != 80*mib {
		t.Fatalf("allocated %d, reserved %d", d.Allocated, d.Reserved)
	}
	// 29 MiB fits the 30; the rest of 1 MiB is too small to be split off.
	c := d.Alloc(29 * mib)
	if d.Size(c) != 30*mib {
		t.Errorf("best fit gave a block of %d", d.Size(c))
	}
	// 20 and 25 MiB are cut from the 50 and merge again.
	x, y := d.Alloc(20*mib), d.Alloc(25*mib)
	d.Free(x)
	d.Free(y)
	if z := d.Alloc(50 * mib); d.Size(z) != 50*mib || d.Reserved != 80*mib {
		t.Errorf("pieces did not merge: block of %d, reserved %d", d.Size(z), d.Reserved)
	}
}

func TestFreeTwice(t *testing.T) {
	d := New(1)
	h := d.Alloc(mib)
	d.Free(h)
	d.Free(h)
	d.Free(0)
	d.Free(99)
	if d.Allocated != 0 {
		t.Errorf("allocated %d", d.Allocated)
	}
}

// A segment that grows has no gaps between what its blocks leave: 30 and 50 MiB
// make room for 80.
func TestExpandable(t *testing.T) {
	d := New(8)
	d.Expandable = true
	a, b := d.Alloc(30*mib), d.Alloc(50*mib)
	d.Free(a)
	d.Free(b)
	if d.Alloc(80 * mib); d.Reserved != 80*mib {
		t.Errorf("reserved %d", d.Reserved)
	}
	// The small pool has its own, in pages of 2 MiB; the large one grows by 20.
	d.Alloc(512)
	if d.Alloc(81 * mib); d.Reserved != (80+2+100)*mib {
		t.Errorf("reserved %d", d.Reserved)
	}
	// What is free at the end counts.
	if d.Alloc(39 * mib); d.Reserved != (80+2+100+20)*mib {
		t.Errorf("reserved %d", d.Reserved)
	}
}

// Any order of calls keeps the books: live bytes add up, blocks do not
// overlap, the free lists are sorted.
func TestBooks(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		books(t, expandable)
	}
}

func books(t *testing.T, expandable bool) {
	t.Helper()
	rng := rand.New(rand.NewSource(1))
	d := New(8)
	d.Expandable = expandable
	live := map[Handle]bool{}
	for range 20000 {
		if len(live) > 0 && rng.Intn(100) < 48 {
			for h := range live {
				d.Free(h)
				delete(live, h)
				break
			}
			continue
		}
		live[d.Alloc(int64(rng.ExpFloat64()*4*mib))] = true
	}
	delete(live, 0)
	var sum int64
	type span struct{ from, to int64 }
	seen := map[int64]span{}
	for h := range live {
		b := d.blocks[h]
		sum += b.size
		if o, ok := seen[b.addr]; ok {
			t.Fatalf("block at %d twice: %v", b.addr, o)
		}
		seen[b.addr] = span{b.addr, b.addr + b.size}
	}
	if sum != d.Allocated {
		t.Errorf("live blocks hold %d, the device says %d", sum, d.Allocated)
	}
	free := int64(0)
	for k := range d.pools {
		checkSorted(t, &d.pools[k])
		for _, e := range slices.Concat(d.pools[k].lists[:]...) {
			free += e.size
			if b := d.blocks[e.id]; !b.free || b.size != e.size || b.addr != e.addr {
				t.Fatalf("entry %v is not its block %v", e, b)
			}
		}
	}
	if free+sum != d.Reserved {
		t.Errorf("free %d and live %d are not the reserved %d", free, sum, d.Reserved)
	}
	for h := range live {
		d.Free(h)
	}
	if d.Allocated != 0 {
		t.Errorf("%d bytes left", d.Allocated)
	}
}

// checkSorted: entries are in their size class and in order, and the classes
// that have any are marked.
func checkSorted(t *testing.T, p *pool) {
	t.Helper()
	for c, l := range p.lists {
		if marked := p.used>>c&1 == 1; marked != (len(l) > 0) {
			t.Fatalf("class %d with %d entries: marked %v", c, len(l), marked)
		}
		for i, e := range l {
			if classOf(e.size) != c || i > 0 && !before(l[i-1], e) {
				t.Fatalf("class %d is wrong at %d: %v", c, i, l)
			}
		}
	}
}

// A Touch changes nothing that a later Alloc finds.
func TestTouch(t *testing.T) {
	for seed := range int64(50) {
		r := rand.New(rand.NewSource(seed))
		one, two := New(8), New(8)
		one.Expandable, two.Expandable = seed%2 == 0, seed%2 == 0
		var live [][2]Handle
		for range 2000 {
			n := int64(1) << r.Intn(27)
			n += r.Int63n(n) - 1
			switch k := len(live); {
			case r.Intn(3) == 0:
				h := two.Alloc(n)
				size := two.Size(h)
				two.Free(h)
				if got := one.Touch(n); got != size {
					t.Fatalf("seed %d: a touch of %d bytes takes %d, an allocation %d", seed, n, got, size)
				}
			case k > 0 && r.Intn(2) == 0:
				i := r.Intn(k)
				one.Free(live[i][0])
				two.Free(live[i][1])
				live[i] = live[k-1]
				live = live[:k-1]
			default:
				live = append(live, [2]Handle{one.Alloc(n), two.Alloc(n)})
			}
			if one.Reserved != two.Reserved || one.Allocated != two.Allocated || one.PeakAllocated != two.PeakAllocated {
				t.Fatalf("seed %d: %d reserved, %d allocated, peak %d; by Alloc and Free %d, %d, %d", seed,
					one.Reserved, one.Allocated, one.PeakAllocated, two.Reserved, two.Allocated, two.PeakAllocated)
			}
		}
	}
}
