// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"carma/db"
	"carma/gres/lease"
	"carma/prolog/oomscan"
	"carma/prolog/userfile"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

// seen is a ledger whose jobs were seen with this peak.
type seen struct {
	EpilogLedger
	peak       int64
	neighbours []uint32
}

func (s seen) Find(ctx context.Context, key jobenv.JobKey) (lease.Held, bool, error) {
	held, ok, err := s.EpilogLedger.Find(ctx, key)
	for i := range held.GPUs {
		held.GPUs[i].PeakMiB = s.peak
	}
	if s.neighbours != nil {
		held.Neighbours = s.neighbours
	}
	return held, ok, err
}

// What a program made do without is an OOM where NVML saw the job near its booking, and
// not if a framework takes that at its start. The hook's job books 10240 of 40536 MiB.
func TestBackOffLines(t *testing.T) {
	for peak, oom := range map[int64]bool{0: false, 5000: false, 9300: true, 9900: true, 10200: false} {
		w := newWorld(t)
		w.oom()
		w.stderr.Signature, w.stderr.Survived = "cuda", true
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.prolog(t, hook(7))
		if err := w.Epilog(t.Context(), failed(hook(7)), seen{w.book, peak, nil}, w.records, w.slurm,
			func(context.Context) error { return nil }); err != nil {
			t.Fatal(err)
		}
		const survived = "a message of CUDA driver says that the GPU was out of memory, but it worked on after that"
		if a := w.records.attempts[0]; (a.OOM != "") != oom || (a.RequeuedTo != "") != oom ||
			!oom && (a.State != "FAILED" || a.OOMNote != survived) {
			t.Errorf("peak %d: %+v", peak, a)
		}
	}
}

// A server that refused to start is requeued as any job, and its record says what would
// have let it start; also where it is not requeued.
func TestAdviceInTheRecord(t *testing.T) {
	const advice = "set gpu_memory_utilization to at most 0.22"
	for _, enabled := range []bool{true, false} {
		w := newWorld(t)
		w.oom()
		w.stderr.Signature = "vllm"
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.prolog(t, hook(7))
		if !enabled {
			w.Config.Partition["gpu"] = config.Partition{Share: true}
		}
		w.epilog(t, failed(hook(7)))
		a := w.records.attempts[0]
		if !strings.Contains(a.OOMNote, advice) || (a.RequeuedTo != "") != enabled ||
			strings.Contains(a.OOMNote, "no recovery partition") == enabled {
			t.Errorf("recovery %v: %+v", enabled, a)
		}
	}
}

// A place in the recovery partition, and GPUs kept for it, has who NVML saw near the limit, so often an hour; what
// a text alone says is requeued where it was, so often an hour.
func TestRecoveryNeedsMemory(t *testing.T) {
	for name, c := range map[string]struct {
		peak   int64
		before map[string]int
		weak   bool
		to     string // partition; empty: not requeued
		held   bool
		oom    string
		note   string
	}{
		"at its limit":        {10100, nil, false, "gpu-ex", true, "pytorch", "PyTorch says so; it used 9.9 GiB"},
		"far below":           {100, nil, false, "gpu", false, "pytorch", "PyTorch says so; it used 0.1 GiB"},
		"never seen":          {0, nil, false, "gpu", false, "pytorch", "PyTorch says so; its memory was not seen"},
		"too many in an hour": {100, map[string]int{"gpu": 40}, false, "", false, "pytorch", "not requeued: no figure"},
		"the eleventh with evidence": {10100, map[string]int{"gpu-ex": 10}, false, "gpu", false, "pytorch",
			"requeued in its own partition"},
		"both full, with evidence": {10100, map[string]int{"gpu-ex": 10, "gpu": 40}, false, "gpu", false, "pytorch",
			"requeued in its own partition"},
		"nobody can tell how many, with evidence": {10100, nil, false, "gpu", false, "pytorch",
			"requeued in its own partition, as the records did not tell"},
		"nobody can tell how many": {100, nil, false, "", false, "pytorch",
			"not requeued: no figure of its GPU's memory confirms it, and the records did not tell"},
		"any program, at its limit": {9950, nil, true, "gpu-ex", true, "out-of-memory", "its text says so; it used 9.7 GiB"},
		"any program, far below":    {4096, nil, true, "", false, "", "it says that memory was not enough"},
	} {
		w := newWorld(t)
		w.oom()
		w.peak, w.records.past.Requeues = c.peak, c.before
		if strings.HasPrefix(name, "nobody can tell") {
			w.records.unread = errors.New("the database is locked")
		}
		if c.weak {
			w.stderr.Signature, w.stderr.Grade = "out-of-memory", oomscan.Weak
		}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.prolog(t, hook(7))
		w.epilog(t, failed(hook(7)))
		s, err := w.book.Snapshot(t.Context())
		a := w.records.attempts[0]
		if err != nil || a.RequeuedTo != c.to || (len(s.Holds) > 0) != c.held || a.OOM != c.oom ||
			!strings.HasPrefix(a.OOMNote, c.note) {
			t.Errorf("%s: requeued to %q, holds %v, %q, note %q", name, a.RequeuedTo, s.Holds, a.OOM, a.OOMNote)
		}
	}
}

// A start that a co-located job disturbed is tried once more, alone, in the job's own partition; without such a job,
// or the second time, it stays failed. What a neighbour did is noted where nothing else explains the end.
func TestNeighboursPart(t *testing.T) {
	now := time.Now()
	past := db.Happened{Ended: map[uint32]time.Time{8: now.Add(-4 * time.Second)}}
	if got := endedBeside(lease.Held{Neighbours: []uint32{8}}, past, now); got != "job 8 ended on its GPU 4 s before" {
		t.Error(got)
	}
	ended := map[uint32]time.Time{8: now.Add(time.Hour)} // as soon as can be, on any machine
	for name, c := range map[string]struct {
		kind    oomscan.Kind
		past    db.Happened
		comment string
		to      string
		note    string
	}{
		"its profiling, a job ended": {oomscan.Profiling, db.Happened{Ended: ended}, "", "gpu",
			"vLLM found the free memory of the GPU changed at its start: job 8 ended on its GPU 0 s before it failed"},
		"again": {oomscan.Profiling, db.Happened{Ended: ended}, `carma-retry={"reason":"neighbour","from":"gpu"}`, "",
			"it was requeued for that before; vLLM found"},
		"its profiling, others took memory": {oomscan.Profiling,
			db.Happened{UsedMiB: map[string][]int64{"GPU-0": {16384, 4096}}}, "", "gpu",
			"vLLM found the free memory of the GPU changed at its start: co-located jobs took at least 10.0 GiB"},
		"its profiling, nobody": {oomscan.Profiling,
			db.Happened{UsedMiB: map[string][]int64{"GPU-0": {4096, 3500}}}, "", "",
			"vLLM found at its start that the free memory of the GPU had changed; no co-located job"},
		"nothing said, a job ended": {"", db.Happened{Ended: ended}, "", "",
			"job 8 ended on its GPU 0 s before it failed; nothing shows that it ran out of memory itself"},
	} {
		w := newWorld(t)
		w.stderr.Kind, w.peak, w.records.past = c.kind, 2000, c.past
		if c.kind != "" {
			w.stderr.Signature = "vllm-start"
		}
		w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
		w.slurm.words.AdminComment = c.comment
		w.prolog(t, hook(7))
		w.neighbours = []uint32{8}
		w.epilog(t, failed(hook(7)))
		a := w.records.attempts[0]
		if a.RequeuedTo != c.to || a.OOM != "" || !strings.HasPrefix(a.OOMNote, c.note) {
			t.Errorf("%s: requeued to %q, %q, note %q", name, a.RequeuedTo, a.OOM, a.OOMNote)
		}
		if q := w.records.asked; time.Since(q.Now) > time.Minute || q.Now.Sub(q.Started) > time.Minute ||
			q.Started.After(q.Now) || q.Now.Sub(q.Ended) != besideWithin {
			t.Errorf("%s: asked about %+v", name, q)
		}
		back := strings.Contains(w.slurm.comment, `carma-retry={"reason":"neighbour","from":"gpu"}`)
		if back != (c.to != "") {
			t.Errorf("%s: AdminComment %q", name, w.slurm.comment)
		}
	}
}

// A job near its start of which no text tells is brought back where it used more than allocators take that are told to
// take the booking, and not where it used just that: JAX that preallocates under an MPS limit, say.
func TestAllocatorsThatTakeTheBooking(t *testing.T) {
	for peak, oom := range map[int64]bool{10000: false, 10100: false, 10240: false, 10440: false, 10500: true} {
		for _, hint := range []bool{false, true} {
			w := newWorld(t)
			w.peak = peak
			if hint {
				w.oom()
				w.stderr.Grade, w.peak = oomscan.Hint, peak
			}
			w.slurm.words.TresPerNode = "gres:gpu:1,gres:carma:10240"
			w.prolog(t, hook(7))
			w.epilog(t, failed(hook(7)))
			if a := w.records.attempts[0]; (a.OOM != "") != oom || (a.RequeuedTo != "") != oom {
				t.Errorf("peak %d, advice %v: %q, requeued to %q, note %q", peak, hint, a.OOM, a.RequeuedTo, a.OOMNote)
			}
		}
	}
}

// A job of exit 0 whose text says that the GPU was out of memory completes, and the record notes the text.
// slurmctld is not asked.
func TestExitZeroAfterAnOOM(t *testing.T) {
	for survived, want := range map[bool]string{false: "a message of PyTorch says that the GPU was out of memory, and " +
		"the job ended with exit 0: results may be missing", true: ""} {
		w := newWorld(t)
		w.oom()
		w.stderr.Survived = survived
		w.prolog(t, hook(7))
		w.epilog(t, hook(7))
		a := w.records.attempts[0]
		if a.State != "COMPLETED" || a.OOM != "" || a.OOMNote != want || len(w.slurm.calls) > 0 {
			t.Errorf("%+v, %v", a, w.slurm.calls)
		}
	}
}

// Output whose name holds what slurmctld alone knows, with a width or without, is not looked for: the name would be
// another file's.
func TestGoodJobWithOutputOfUnknownName(t *testing.T) {
	for name, scans := range map[string]int{"%A.err": 0, "%a.err": 0, "%x": 0, "e.%b": 0,
		"log-%4a": 0, "%02A/err": 0, "%8x.err": 0,
		"%j.err": 1, "%%j_a.err": 1, "x%jA": 1} {
		w := newWorld(t)
		w.prolog(t, hook(7))
		h, asked := hook(7), len(w.asked)
		h.StdErr = name
		w.epilog(t, h)
		if got := len(w.asked) - asked; got != scans {
			t.Errorf("%s: %d scans, want %d", name, got, scans)
		}
	}
}

// What could not be read is said with what to do.
func TestUnreadStdErr(t *testing.T) {
	for state, word := range map[userfile.State]string{
		userfile.StateNotRegular: "/dev/null", userfile.StateMissing: "not there",
		userfile.StateDenied: "may not read", userfile.StateError: "in time"} {
		w := newWorld(t)
		w.stderr.State = state
		w.prolog(t, hook(7))
		w.epilog(t, failed(hook(7)))
		if a := w.records.attempts[0]; !strings.HasPrefix(a.OOMNote, "its error messages were not read: ") ||
			!strings.Contains(a.OOMNote, word) {
			t.Errorf("%s: %q", state, a.OOMNote)
		}
	}
}
