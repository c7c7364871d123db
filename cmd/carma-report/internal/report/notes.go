// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"math"

	"carma/db/figure"
	"carma/estimator/history"
	"carma/estimator/method"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/jobstate"
	"carma/slurmbridge/usertext"
)

// notes say what to change next time: the first part of a report to be read.
func notes(p *jobPage) (list []string) {
	j := p.job
	f := j.figures
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	// A peak of several jobs together, as NVML tells of the whole GPU, is no advice to one of them.
	known := j.PeakMiB > 0 && f.PeakHow == figure.Exact
	better := suggestion(j.PeakMiB)
	if j.Unread > 0 {
		say("line %d of its script was meant for CARMA and was not read: #CARMA and a blank begin a line, before the first "+
			"command; `carma-estimate` shows what a script says", j.Unread)
	}
	switch {
	case j.Requeued != "" && j.OOM == "": // its MPS server had a fault, or a neighbour changed the GPU's memory
		say("it was requeued to run alone on %s: %s", j.Requeued, cmp.Or(j.OOMNote, "no reason is known"))
	case j.Requeued != "":
		if known && j.Recovered && better*1024 > j.FailedMiB {
			say("it ran out of GPU memory and was requeued to run alone on %s; "+
				"with `#CARMA mem=%dG` its first run would have been enough", j.Requeued, better)
		} else {
			say("it ran out of GPU memory with %s booked and was requeued to run alone on %s", usertext.GiB(j.FailedMiB),
				j.Requeued)
		}
		if j.OOMNote != "" {
			say("%s", j.OOMNote)
		}
	case j.OOM != "":
		say("it ran out of GPU memory (%s) with %s booked and was not requeued: %s", j.OOM, usertext.GiB(j.FailedMiB),
			cmp.Or(j.OOMNote, "no reason is known"))
	case j.OOMNote != "":
		say("%s", j.OOMNote)
	case j.preallocated() != "": // below: the peak says nothing of the need
	case j.Mode == jobenv.ModeShared && known && better*1024 <= j.ReserveMiB*9/10:
		say("estimate %s, peak %s: `#CARMA mem=%dG` would %s", usertext.GiB(max(j.EstMiB, j.ReserveMiB)), usertext.GiB(j.PeakMiB),
			better, more(p.totalMiB, j.ReserveMiB, better*1024))
	case j.Mode == jobenv.ModeShared && known && j.PeakMiB > j.ReserveMiB*97/100 && j.Method != method.History:
		say("the peak came within 3 %% of what was booked: `#CARMA mem=%dG` is safer", better)
	case j.Mode == jobenv.ModeExclusive && known && p.totalMiB > 0 && better*1024+2048 < p.totalMiB && len(f.UUIDs) == 1:
		say("it had a GPU of its own and used %s of %s: `#CARMA mem=%dG` lets others share it", usertext.GiB(j.PeakMiB),
			usertext.GiB(p.totalMiB), better)
	}
	if j.State == jobstate.Requeued && j.Requeued != "" {
		say("no later attempt is recorded: it waits in the queue, or was cancelled there; `sacct -j %s` tells", j.id())
	}
	if f.PeakHow == figure.Shared {
		say("its peak is that of the GPU while others held it too, less what is known of them: NVML does not tell the " +
			"memory of single processes here, and no figure for mem= follows")
	}
	if what := j.preallocated(); what != "" {
		say("%s", preallocatedNote(what, usertext.GiB(j.PeakMiB)))
	}
	busy := f.LeaseS > 60 && f.SMActPct.Known()
	switch {
	case f.LeaseS > 60 && (j.PeakMiB <= 0 || f.PeakHow == figure.QualityNone) && (!f.SMActPct.Known() || f.SMActPct < 1):
		say("none of its processes was seen on the GPU: it may not need a GPU")
	case busy && len(f.UUIDs) > 1 && f.SMActPct < 20:
		say("its %d GPUs were %.0f %% busy: fewer may be enough", len(f.UUIDs), float64(f.SMActPct))
	case busy && f.SMActPct < 5:
		say("the GPU was %.0f %% busy: check whether the input pipeline is fast enough", float64(f.SMActPct))
	}
	if s := j.savedS(); s.Known() && s > 60 {
		say("sharing saved %.2f GPU-hours compared with a GPU of its own", float64(s)/3600)
	}
	if j.Attempts > 1 && j.OOM == "" {
		say("it was started %d times", j.Attempts)
	}
	return list
}

// preallocated tells what its highest peak is a part of, if it is what a framework takes
// at its start.
func (j *job) preallocated() string {
	if j.figures.PeakHow != figure.Exact {
		return ""
	}
	if j.Mode != jobenv.ModeShared { // it had whole GPUs
		return history.Preallocated(j.PeakMiB, 0, max(j.FullMiB, j.ReserveMiB))
	}
	return history.Preallocated(j.PeakMiB, j.ReserveMiB, j.FullMiB)
}

// preallocatedNote says which setting shows the need of a job whose peak may not.
func preallocatedNote(what, peak string) string {
	const jax, tensorflow = "XLA_PYTHON_CLIENT_PREALLOCATE=false", "TF_FORCE_GPU_ALLOW_GROWTH=true"
	who, set := "JAX or TensorFlow", jax+" or "+tensorflow
	switch what {
	case "75 %":
		what, who, set = "75 % of the GPU", "JAX", jax
	case "90 %":
		what, who, set = "90 % of the GPU", "vLLM or SGLang", "gpu_memory_utilization or mem_fraction_static"
	case "all of the GPU":
		who, set = "TensorFlow", tensorflow
	}
	return fmt.Sprintf("preallocated: the peak of %s is %s, which %s allocates at its start whatever it needs. "+
		"Nothing is learned from this run while there are others; to see the real need, set %s", peak, what, who, set)
}

// suggestion is a mem= in GiB that holds a peak with 5 % to spare.
func suggestion(peakMiB int64) int64 { return int64(math.Ceil(float64(peakMiB) * 1.05 / 1024)) }

var countWords = [...]string{"", "", "two", "three", "four", "five", "six", "seven", "eight", "nine"}

// more names the gain of a smaller booking.
func more(totalMiB, reserve, better int64) string {
	n := int64(0)
	if totalMiB > 0 && better > 0 {
		n = totalMiB/better - max(totalMiB/max(reserve, 1), 1)
	}
	switch {
	case n == 1:
		return "let one more such job share"
	case n > 1 && n < 10:
		return fmt.Sprintf("let %s more such jobs share", countWords[n])
	}
	return "leave more to others"
}
