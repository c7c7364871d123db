// SPDX-License-Identifier: Apache-2.0

// Package evidence decides whether a job that failed ran out of GPU memory: from how the job ended, from what
// NVML saw, and from what the job's text says. Table is all of the decision; docs/bench/oom.md shows it.
package evidence

import (
	"fmt"

	"carma/prolog/oomscan"
	"carma/slurmbridge/usertext"
)

// Text is what the job's text says.
type Text string

// The texts, in the words of the table.
const (
	Strong    Text = "strong: a framework's own last words"
	Weak      Text = "weak: any program's \"out of memory\""
	Disguise  Text = "disguise: cuDNN, cuBLAS, cuSOLVER, NCCL or XLA failed"
	Survived  Text = "any of these, and long work after it, or a retry"
	Hint      Text = "advice only: how to do with less memory"
	None      Text = "nothing about memory, and no error"
	OtherEnd  Text = "another error, or a fault, was the end"
	Unread    Text = "could not be read"
	Profiling Text = "a server's start found the free memory changed by others"
)

// TextOf grades what oomscan found.
func TextOf(kind oomscan.Kind, grade oomscan.Grade, survived, otherEnd bool) Text {
	switch {
	case kind == oomscan.Profiling:
		return Profiling
	case otherEnd, kind != oomscan.GPUMemory && kind != "":
		return OtherEnd
	case kind == "":
		return None
	case grade == oomscan.Hint:
		return Hint
	case survived:
		return Survived
	}
	return map[oomscan.Grade]Text{oomscan.Strong: Strong, oomscan.Weak: Weak, oomscan.Disguise: Disguise}[grade]
}

// Memory is what NVML saw of the job, on the GPU where the job was nearest to its booking.
type Memory string

// The memories, in the order of the table's columns.
const (
	AtLimit      Memory = "at its limit"
	Near         Memory = "near its limit"
	Below        Memory = "below"
	Preallocated Memory = "preallocated"
	Unknown      Memory = "not seen"
)

// Memories are the columns.
var Memories = []Memory{AtLimit, Near, Below, Preallocated, Unknown}

const (
	atLimitPct = 98 // what is missing then is less than one more allocation
	nearPct    = 90
)

// bookedPct is how far from the booking a peak of an allocator is that is told to take the booking.
const bookedPct = 2

// MemoryOf grades a peak against the booking. A peak that is a fixed part of the card is what a framework takes
// at its start; a full card refuses whatever a job has booked. Of a job whose text names no lack of memory a peak of
// just the booking is no evidence: an allocator that takes the booking at its start (JAX under an MPS limit, a server
// with CARMA_MEM_FRACTION) has that peak whatever ended the job.
func MemoryOf(text Text, peakMiB, bookedMiB int64, preallocated, fullCard bool) Memory {
	silent, refused := text == None || text == Hint, text == Strong || text == Weak || text == Disguise
	switch {
	case peakMiB <= 0 || bookedMiB <= 0:
		return Unknown
	case fullCard && refused && peakMiB*2 >= bookedMiB: // less is no part of what filled the card
		return AtLimit
	case preallocated:
		return Preallocated
	case silent && peakMiB*100 >= bookedMiB*(100-bookedPct) && peakMiB*100 <= bookedMiB*(100+bookedPct):
		return Preallocated
	case peakMiB*100 >= bookedMiB*atLimitPct:
		return AtLimit
	case peakMiB*100 >= bookedMiB*nearPct:
		return Near
	}
	return Below
}

// End is how the job ended.
type End string

// The ends.
const (
	Any     End = "failed"
	AtStart End = "failed within ten minutes, by no signal"
	Later   End = "failed later, or by a signal"
	Well    End = "exit 0"
)

// atStartS is how long a start takes at most, in seconds: to load a model and compile kernels.
const atStartS = 600

// EndOf grades an end. 128 and more is how shells tell of a signal.
func EndOf(code, signal int, ranS float64) End {
	switch {
	case code == 0 && signal == 0:
		return Well
	case signal == 0 && code < 128 && ranS <= atStartS:
		return AtStart
	}
	return Later
}

// Outcome is the decision on a job.
type Outcome string

// The outcomes.
const (
	Proven Outcome = "OOM"          // requeued with whole GPUs, in the recovery partition
	Said   Outcome = "OOM by text"  // requeued with whole GPUs, in its own partition, so often an hour
	Beside Outcome = "a neighbour?" // requeued as that, once, if a co-located job began, ended or grew
	Noted  Outcome = "noted"
	No     Outcome = "-"
)

// row is a line of the table: the outcomes in the order of Memories.
type row struct {
	Text     Text
	End      End
	Outcomes [5]Outcome
}

// table is the decision.
var table = []row{
	{Strong, Any, [5]Outcome{Proven, Proven, Said, Said, Said}},
	{Weak, Any, [5]Outcome{Proven, Proven, No, No, No}},
	{Disguise, Any, [5]Outcome{Proven, Proven, No, No, No}},
	{Survived, Any, [5]Outcome{No, Proven, No, No, No}}, // at the limit: where frameworks end that try less and less
	{Hint, Any, [5]Outcome{Proven, No, No, No, No}},
	{None, AtStart, [5]Outcome{Proven, No, No, No, No}},
	{None, Later, [5]Outcome{No, No, No, No, No}},
	{OtherEnd, Any, [5]Outcome{No, No, No, No, No}},
	{Unread, Any, [5]Outcome{No, No, No, No, No}},
	{Profiling, Any, [5]Outcome{Beside, Beside, Beside, Beside, Beside}},
	{Strong, Well, [5]Outcome{Noted, Noted, Noted, Noted, Noted}},
}

// Evidence is what is known of an end.
type Evidence struct {
	Text      Text
	Program   string // that says so
	End       End
	Memory    Memory
	PeakMiB   int64
	BookedMiB int64
	Neighbour string // what a co-located job did within seconds; empty: nothing
}

// Decide looks the outcome up. Beside is an outcome only with a neighbour.
func (e Evidence) Decide() Outcome {
	for _, r := range table {
		fits := r.End == e.End || r.End == Any && e.End != Well
		if r.Text != e.Text || !fits {
			continue
		}
		for i, m := range Memories {
			if m != e.Memory {
				continue
			}
			if o := r.Outcomes[i]; o != Beside || e.Neighbour != "" {
				return o
			}
		}
	}
	return No
}

// Note says on which evidence the outcome stands; empty: there is nothing to say.
func (e Evidence) Note() string {
	o := e.Decide()
	switch {
	case o == No && e.End == Well:
		return ""
	case o == Noted:
		return fmt.Sprintf("a message of %s says that the GPU was out of memory, and the job ended with exit 0: "+
			"results may be missing", e.Program)
	case o == Beside:
		return fmt.Sprintf("%s found the free memory of the GPU changed at its start: %s it failed", e.Program, e.Neighbour)
	case o == Proven && (e.Text == None || e.Text == Hint):
		return "no message says so, but it failed soon after its start and " + e.seen()
	case o != No:
		return fmt.Sprintf("%s says so; %s", e.Program, e.seen()) + e.beside()
	case e.Neighbour != "" && e.Text != Strong:
		return e.Neighbour + " it failed; nothing shows that it ran out of memory itself"
	case e.Text == Weak || e.Text == Disguise:
		return fmt.Sprintf("%s, as it may for want of GPU memory, but %s: not taken for out of memory", e.words(), e.seen())
	case e.Text == Survived:
		return fmt.Sprintf("a message of %s says that the GPU was out of memory, but it worked on after that", e.Program)
	case e.Text == Profiling:
		return e.Program + " found at its start that the free memory of the GPU had changed; no co-located job is known to " +
			"have done that"
	}
	return ""
}

func (e Evidence) words() string {
	if e.Text == Disguise {
		return e.Program + " failed"
	}
	return "it says that memory was not enough"
}

// seen describes the memory that NVML saw.
func (e Evidence) seen() string {
	used := fmt.Sprintf("it used %s of the %s that it booked", usertext.GiB(e.PeakMiB), usertext.GiB(e.BookedMiB))
	switch {
	case e.Memory == Unknown:
		return "its memory was not seen on the GPU"
	case e.Memory == Preallocated:
		return used + ", as its framework does whatever it needs"
	case e.Memory == AtLimit && e.PeakMiB*100 < e.BookedMiB*atLimitPct:
		return used + " when all memory of the GPU was in use"
	}
	return used
}

func (e Evidence) beside() string {
	if e.Neighbour == "" || e.Memory == AtLimit || e.Memory == Near {
		return ""
	}
	return "; " + e.Neighbour + " it failed"
}
