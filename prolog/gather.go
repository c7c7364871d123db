// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/estimator/history"
	"carma/gres"
	"carma/gres/lease"
	"carma/prolog/evidence"
	"carma/prolog/oomscan"
	"carma/prolog/userfile"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/usertext"
)

// besideWithin is how long before the end of a job a co-located job may have done something that caused the end:
// a server's start profiles for some ten seconds, and samples are of ten.
const besideWithin = 30 * time.Second

// lately asks the records about the last while. Where the records do not tell, no co-located job has done anything,
// and nobody knows how many jobs were requeued.
func (ep *epilog) lately(ctx context.Context) db.Happened {
	ctx, cancel := context.WithTimeout(ctx, logWithin)
	defer cancel()
	now := time.Now()
	q := db.Lately{UID: ep.hook.UID, Now: now, Started: now.Add(-ep.held.Age), Hour: now.Add(-time.Hour),
		Neighbours: ep.held.Neighbours, Ended: now.Add(-besideWithin)}
	for _, g := range ep.held.GPUs {
		q.UUIDs = append(q.UUIDs, g.UUID)
	}
	past, err := ep.records.Lately(ctx, q)
	if err != nil {
		ep.node.Log.Warn("query what has happened within an hour", "job", ep.hook.JobKey, "error", err)
	}
	return past
}

// evidence puts together how the job ended, NVML's figures, and the job's text.
func (ep *epilog) evidence(ctx context.Context, r userfile.Reply, past db.Happened) evidence.Evidence {
	e := evidence.Evidence{Text: textOf(r), Program: oomscan.Program(r.Signature),
		End: evidence.EndOf(ep.hook.Exit.Code, ep.hook.Exit.Signal, ep.held.Age.Seconds())}
	s, err := ep.ledger.Snapshot(ctx)
	if err != nil {
		ep.node.Log.Warn("look for a neighbour's part in a failure", "job", ep.hook.JobKey, "error", err)
	}
	// Not of a cancelled job, or of a job whose text names another cause of the end.
	other := []oomscan.Kind{oomscan.HostMemory, oomscan.MPS, oomscan.GPUFault}
	if ep.hook.Exit.Code != 0 && !slices.Contains(other, r.Kind) {
		e.Neighbour = beside(ep.hook.JobID, ep.held, s.Leases, past, time.Now())
	}
	ofTheCard := func(g lease.Granted) bool { // as frameworks take at their start
		what := history.Preallocated(g.PeakMiB, 0, ep.about.FullMiB)
		return what != "" && g.PeakMiB < g.ReserveMiB
	}
	e.Memory = evidence.Unknown
	for _, g := range ep.held.GPUs {
		m := evidence.MemoryOf(e.Text, peakOf(g), g.ReserveMiB, ofTheCard(g), cardFull(g.UUID, s.Readings, past))
		if e.BookedMiB == 0 || slices.Index(evidence.Memories, m) < slices.Index(evidence.Memories, e.Memory) {
			e.Memory, e.PeakMiB, e.BookedMiB = m, g.PeakMiB, g.ReserveMiB
		}
	}
	return e
}

// peakOf is the peak that NVML saw of the job itself: a figure of the whole GPU is no evidence on a job beside
// others.
func peakOf(g lease.Granted) int64 {
	if g.PeakQuality() == figure.Exact {
		return g.PeakMiB
	}
	return 0
}

// textOf grades the text that was read.
func textOf(r userfile.Reply) evidence.Text {
	if r.State != userfile.StateOK {
		return evidence.Unread
	}
	quiet := r.QuietS >= int64(longQuiet.Seconds())
	return evidence.TextOf(r.Kind, r.Grade, r.Survived || quiet, r.OtherEnd)
}

// longQuiet is how long a program waits at most for other ranks after its last words: NCCL's half an hour, twice.
const longQuiet = time.Hour

// cardFull tells whether all memory of a GPU was in use in the last samples.
func cardFull(uuid string, readings []gres.Reading, past db.Happened) bool {
	const fullPct = 97 // a driver's own part is not given to jobs
	i := slices.IndexFunc(readings, func(r gres.Reading) bool { return r.UUID == uuid })
	if i < 0 || readings[i].TotalMiB == 0 {
		return false
	}
	used := past.UsedMiB[uuid]
	return len(used) > 0 && slices.Max(used)*100 >= readings[i].TotalMiB*fullPct
}

// beside tells what a co-located job did within seconds of the end; empty: nothing known.
func beside(job uint32, held lease.Held, leases []gres.Lease, past db.Happened, now time.Time) string {
	if ended := endedBeside(held, past, now); ended != "" {
		return ended
	}
	mine := func(uuid string) bool {
		return slices.ContainsFunc(held.GPUs, func(g lease.Granted) bool { return g.UUID == uuid })
	}
	for _, l := range leases {
		if l.Job.JobID != job && mine(l.UUID) && l.Age <= besideWithin {
			return fmt.Sprintf("job %d began on its GPU %d s before", l.Job.JobID, wholeSeconds(l.Age))
		}
	}
	if len(held.Neighbours) == 0 {
		return ""
	}
	for _, g := range held.GPUs {
		used := past.UsedMiB[g.UUID]
		for i := 1; i < len(used) && g.PeakMiB > 0; i++ {
			switch more := used[i-1] - used[i]; { // beyond the job's own peak
			case more > g.PeakMiB+slackMiB:
				return fmt.Sprintf("co-located jobs took at least %s more of its GPU before", usertext.GiB(more-g.PeakMiB))
			case -more > g.PeakMiB+slackMiB:
				return fmt.Sprintf("co-located jobs gave at least %s of its GPU back before", usertext.GiB(-more-g.PeakMiB))
			}
		}
	}
	return ""
}

// endedBeside names a co-located job with an end within seconds of this end, other than jobs with any of the notes;
// empty: none is known.
func endedBeside(held lease.Held, past db.Happened, now time.Time, notes ...string) string {
	for _, id := range held.Neighbours {
		with := func(note string) bool { return strings.HasPrefix(past.Notes[id], note) }
		if at, ok := past.Ended[id]; ok && !slices.ContainsFunc(notes, with) {
			return fmt.Sprintf("job %d ended on its GPU %d s before", id, wholeSeconds(now.Sub(at)))
		}
	}
	return ""
}

func wholeSeconds(d time.Duration) int { return int(max(d, 0).Round(time.Second).Seconds()) }

// slackMiB is a context of CUDA's, which not every driver counts to a process.
const slackMiB = 600

// noteOf is the note for the record that follows from a scan of stderr.
func noteOf(r userfile.Reply) string {
	switch {
	case r.State != userfile.StateOK:
		return unread[r.State]
	case r.Kind == oomscan.HostMemory:
		return "out of the node's memory"
	case r.Kind == oomscan.MPS:
		return endedByMPS
	case r.Kind == oomscan.GPUFault:
		return faultOnGPU
	}
	return ""
}

const (
	endedByMPS = "ended or not served by MPS"
	faultOnGPU = "fault of a program on the GPU"
)

// unread says what to do about an unreadable stderr.
var unread = map[userfile.State]string{
	userfile.StateNotRegular: "its error messages were not read: stderr is no file, but a pipe or a device like " +
		"/dev/null; with #SBATCH --error=FILE an OOM is found",
	userfile.StateMissing: "its error messages were not read: the file of its stderr is not there (was it removed or " +
		"renamed?); leave it until the job has ended",
	userfile.StateDenied: "its error messages were not read: its user may not read the file of its stderr on the node; " +
		"name another with #SBATCH --error=FILE",
	userfile.StateError: "its error messages were not read: the file of its stderr did not answer in time; " +
		"name one on another file system with #SBATCH --error=FILE",
}

// ofQueue are the symbols in the name of a file, with a width or without, that slurmctld alone can tell.
var ofQueue = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`%\d*[Aabx]`) })

// noteOfSuccess notes a job of exit 0 that says that the GPU was out of memory. slurmctld is not asked: the output
// of an array's task, named after the array, is not found then. The look costs a good job some milliseconds, and at
// most userfile's five seconds, before the GPUs are released: slurmctld gives the job's slots to nobody before the
// Epilog has ended, and the record is written once, before the agent completes the record.
func (ep *epilog) noteOfSuccess(ctx context.Context) string {
	if ofQueue().MatchString(ep.hook.StdErr + ep.hook.StdOut) {
		return ""
	}
	r := ep.scan(ctx, sctl.Job{}, "")
	e := evidence.Evidence{Text: textOf(r), Program: oomscan.Program(r.Signature), End: evidence.Well,
		Memory: evidence.Unknown}
	return e.Note()
}
