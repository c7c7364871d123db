// SPDX-License-Identifier: Apache-2.0

// Package history estimates a job by its earlier runs. The records stand in one file,
// a snapshot, which is made outside slurmctld and looked up inside: records of one
// size in the order of their keys, so that reading the file is no work. The package
// is pure.
package history

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"
)

// Value holds the results of the last runs of a key. Sizes are per GPU.
type Value struct {
	PeakMiB   int64 // highest
	MeanMiB   int64 // highest of the runs' means
	SpreadMiB int64 // highest less lowest peak
	RunS      int64 // mean
	SMActPct  float64
	Runs      int
}

// Reserve is the memory to book: the peak and 5 %, 10 % after a single run.
func (v Value) Reserve() int64 {
	more := int64(5)
	if v.Runs < 2 {
		more = 10
	}
	return v.PeakMiB + (v.PeakMiB*more+99)/100
}

// maxSpread is how many times the lowest peak the highest may be of runs of the same thing.
const maxSpread = 2

// Differ tells whether the runs seem to be of several things. The largest is booked.
func (v Value) Differ() bool { return v.PeakMiB > maxSpread*v.LeastMiB() }

// LeastMiB is the lowest peak.
func (v Value) LeastMiB() int64 { return v.PeakMiB - v.SpreadMiB }

// TellApart is the advice for runs that differ.
const TellApart = "vars= or job= tells them apart"

// Limits of a snapshot: 100,000 keys come to 3.2 MB.
const (
	maxKeys      = 100_000
	MaxBytes     = 16 << 20
	maxSizes     = 64 // of GPUs
	maxOwnShifts = 4096
	maxShifts    = maxSizes + maxOwnShifts
)

const (
	magic      = "CARMAHI1"
	headSize   = 24 // magic, keys, shifts, check sum, 4 bytes of nothing
	recordSize = 32
)

// Snapshot is a history as read from a file. The zero value knows nothing.
type Snapshot struct {
	records []byte
	shifts  []Shift // for others by size, then users' own by size and user
	own     int     // where users' own begin
	uid     uint32  // of the user who asks, where one does
	asked   bool
}

// ErrSpoiled means that a file is no snapshot, or not a whole one.
var ErrSpoiled = errors.New("it is not a history file; carma-report history --write makes a new one")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Parse reads a snapshot, and keeps text.
func Parse(text []byte) (Snapshot, error) {
	if len(text) < headSize || len(text) > MaxBytes || string(text[:len(magic)]) != magic {
		return Snapshot{}, ErrSpoiled
	}
	keys, shifts := int(binary.LittleEndian.Uint32(text[8:])), int(binary.LittleEndian.Uint32(text[12:]))
	body := text[headSize:]
	if keys > maxKeys || shifts > maxShifts || len(body) != (keys+shifts)*recordSize ||
		crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(text[16:]) {
		return Snapshot{}, ErrSpoiled
	}
	s := Snapshot{records: body[:keys*recordSize]}
	for i := 1; i < keys; i++ {
		if s.key(i-1) >= s.key(i) {
			return Snapshot{}, ErrSpoiled
		}
	}
	for rest := body[keys*recordSize:]; len(rest) > 0; rest = rest[recordSize:] {
		s.shifts = append(s.shifts, Shift{FullMiB: int64(binary.LittleEndian.Uint32(rest)),
			MiB:  int64(int32(binary.LittleEndian.Uint32(rest[4:]))),
			Jobs: int(binary.LittleEndian.Uint32(rest[8:])), UID: binary.LittleEndian.Uint32(rest[12:]),
			Since: int64(binary.LittleEndian.Uint64(rest[16:])), Own: binary.LittleEndian.Uint32(rest[24:]) == 1})
	}
	if s.own = slices.IndexFunc(s.shifts, func(o Shift) bool { return o.Own }); s.own < 0 {
		s.own = len(s.shifts)
	}
	return s, nil
}

// Len is the number of keys.
func (s Snapshot) Len() int { return len(s.records) / recordSize }

func (s Snapshot) key(i int) Key { return Key(binary.LittleEndian.Uint64(s.records[i*recordSize:])) }

// Find looks a key up.
func (s Snapshot) Find(k Key) (Value, bool) {
	low, high := 0, s.Len()
	for low < high {
		mid := (low + high) / 2
		if s.key(mid) < k {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == s.Len() || s.key(low) != k {
		return Value{}, false
	}
	r := s.records[low*recordSize:]
	word := func(at int) int64 { return int64(binary.LittleEndian.Uint32(r[at:])) }
	return Value{PeakMiB: word(8), MeanMiB: word(12), SpreadMiB: word(16), RunS: word(20),
		SMActPct: float64(binary.LittleEndian.Uint16(r[24:])) / 10, Runs: int(binary.LittleEndian.Uint16(r[26:]))}, true
}

// For is the snapshot for a user's job.
func (s Snapshot) For(uid uint32) Snapshot {
	s.uid, s.asked = uid, true
	return s
}

// ShiftMiB returns how far the base is off on GPUs of a size for the user who asks (For): by
// the user's own runs, or else by others' runs, which never lower the base.
func (s Snapshot) ShiftMiB(fullMiB int64) int64 {
	if i, ok := slices.BinarySearchFunc(s.shifts[s.own:], Shift{FullMiB: fullMiB, UID: s.uid}, byPlace); ok && s.asked {
		return s.shifts[s.own+i].MiB
	}
	if i, ok := slices.BinarySearchFunc(s.shifts[:s.own], Shift{FullMiB: fullMiB}, byPlace); ok {
		return max(s.shifts[i].MiB, 0)
	}
	return 0
}

// WithoutShifts is a snapshot that knows the runs only.
func (s Snapshot) WithoutShifts() Snapshot { return Snapshot{records: s.records} }

// Make writes a snapshot. Of more than maxKeys it keeps those with the newest runs,
// which stand first in order.
func Make(order []Key, values map[Key]Value, shifts []Shift) []byte {
	order = slices.Clone(order[:min(len(order), maxKeys)])
	slices.Sort(order)
	shifts = shifts[:min(len(shifts), maxShifts)]
	text := make([]byte, headSize+(len(order)+len(shifts))*recordSize)
	at := text[headSize:]
	clamp := func(v int64) uint32 { return uint32(min(max(v, 0), math.MaxUint32)) }
	for _, k := range order {
		v := values[k]
		binary.LittleEndian.PutUint64(at, uint64(k))
		for i, n := range [...]int64{v.PeakMiB, v.MeanMiB, v.SpreadMiB, v.RunS} {
			binary.LittleEndian.PutUint32(at[8+4*i:], clamp(n))
		}
		binary.LittleEndian.PutUint16(at[24:], uint16(min(max(math.Round(v.SMActPct*10), 0), 1000)))
		binary.LittleEndian.PutUint16(at[26:], uint16(min(v.Runs, math.MaxUint16)))
		at = at[recordSize:]
	}
	for _, s := range shifts {
		binary.LittleEndian.PutUint32(at, clamp(s.FullMiB))
		binary.LittleEndian.PutUint32(at[4:], uint32(int32(s.MiB)))
		binary.LittleEndian.PutUint32(at[8:], clamp(int64(s.Jobs)))
		binary.LittleEndian.PutUint32(at[12:], s.UID)
		binary.LittleEndian.PutUint64(at[16:], uint64(s.Since))
		if s.Own {
			binary.LittleEndian.PutUint32(at[24:], 1)
		}
		at = at[recordSize:]
	}
	copy(text, magic)
	binary.LittleEndian.PutUint32(text[8:], uint32(len(order)))
	binary.LittleEndian.PutUint32(text[12:], uint32(len(shifts)))
	binary.LittleEndian.PutUint32(text[16:], crc32.Checksum(text[headSize:], castagnoli))
	return text
}
