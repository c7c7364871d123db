// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Record is a job of another cluster: when it was submitted, on how many GPUs
// of one node it ran and how long. What it did on them nobody wrote down.
type Record struct {
	At   float64 // s since the epoch, or since the trace began
	RunS float64
	GPUs int
	User string
}

// Mapping is how records become submissions of jobs that are known.
type Mapping struct {
	Mix      Mix
	KeepRunS bool    // take run times from the records, not from the job table
	FromS    float64 // records before are left out, in the time of the records
	WindowS  float64 // so are those after so long; 0: none
	Seed     uint64
	Limits
}

// Map makes a trace of records. Sorted by GPU time, the smallest become jobs of
// the first class of the mix, the next of the second and so on; which job of the
// class is drawn from those on as many GPUs. Gaps between submissions are kept.
func Map(name string, records []Record, jobs []Job, m Mapping) (Workload, error) {
	w := Workload{Name: name, Jobs: jobs}
	records = slices.Clone(records)
	slices.SortStableFunc(records, func(a, b Record) int { return cmp.Compare(a.At, b.At) })
	records = slices.DeleteFunc(records, func(r Record) bool {
		return r.At < m.FromS || m.WindowS > 0 && r.At >= m.FromS+m.WindowS
	})
	if len(records) == 0 {
		return w, fmt.Errorf("%s: no job in this window", name)
	}
	bySize := make([]int, len(records))
	for i := range bySize {
		bySize[i] = i
	}
	slices.SortStableFunc(bySize, func(a, b int) int {
		x, y := &records[a], &records[b]
		return cmp.Compare(x.RunS*float64(x.GPUs), y.RunS*float64(y.GPUs))
	})
	class := make([]string, len(records))
	for rank, i := range bySize {
		class[i] = m.Mix.at(float64(rank) / float64(len(records)))
	}
	users := map[string]uint32{}
	r := rand.New(rand.NewPCG(m.Seed, 1))
	for i := range records {
		rec := &records[i]
		job, err := draw(r, jobs, class[i], rec.GPUs)
		if err != nil {
			if m.SkipBad {
				w.Skipped++
				continue
			}
			return w, fmt.Errorf("%s: job submitted %.0f s after the first: %w; --skip-bad leaves such jobs out", name,
				rec.At-records[0].At, err)
		}
		user, ok := users[rec.User]
		if !ok {
			user = uint32(1000 + len(users))
			users[rec.User] = user
		}
		s := Submission{ArrivalS: rec.At - records[0].At, Job: job, User: user}
		if m.KeepRunS {
			s.DurationS = max(rec.RunS, 1)
		}
		w.Trace = append(w.Trace, s)
	}
	if len(w.Trace) == 0 {
		return w, fmt.Errorf("%s: no job of it fits the job table", name)
	}
	return w, nil
}

// draw takes a job of a class on so many GPUs, or of any class if there is none.
func draw(r *rand.Rand, jobs []Job, class string, gpus int) (int32, error) {
	var best, other []int32
	for i := range jobs {
		switch {
		case jobs[i].GPUs != gpus:
		case jobs[i].Class == class:
			best = append(best, int32(i))
		default:
			other = append(other, int32(i))
		}
	}
	if len(best) == 0 {
		best = other
	}
	if len(best) == 0 {
		return 0, fmt.Errorf("no job on %d GPUs in the job table", gpus)
	}
	return best[r.IntN(len(best))], nil
}

// Mix is how many percent of a trace are of which class.
type Mix []Share

// Share is one class of a mix.
type Share struct {
	Class string
	Pct   float64
}

// ParseMix reads "light=65,medium=27,heavy=8".
func ParseMix(text string) (Mix, error) {
	var m Mix
	var sum float64
	for word := range strings.SplitSeq(text, ",") {
		class, number, ok := strings.Cut(strings.TrimSpace(word), "=")
		pct, err := strconv.ParseFloat(number, 64)
		if !ok || err != nil || class == "" || !(pct > 0 && pct <= 100) {
			return nil, fmt.Errorf("mix %q: %q is not class=percent", clip(text), clip(word))
		}
		m = append(m, Share{class, pct})
		sum += pct
	}
	if math.Abs(sum-100) > 0.01 {
		return nil, fmt.Errorf("mix %q: the shares make %g %%, not 100", clip(text), sum)
	}
	return m, nil
}

// at returns the class at a share of the whole, 0 to 1.
func (m Mix) at(x float64) string {
	for _, s := range m {
		if x -= s.Pct / 100; x < 0 {
			return s.Class
		}
	}
	return m[len(m)-1].Class
}

// parseTime reads seconds, or a date and time as Slurm and Philly write them.
func parseTime(text string) (float64, bool) {
	if v, err := strconv.ParseFloat(text, 64); err == nil {
		return v, v >= 0 && v <= 1e11
	}
	for _, layout := range []string{"2006-01-02T15:04:05", time.DateTime, time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return float64(at.Unix()), at.Unix() >= 0
		}
	}
	return 0, false
}

// ParseTime reads a point in time of a trace for a command line.
func ParseTime(text string) (float64, error) {
	at, ok := parseTime(text)
	if !ok {
		return 0, fmt.Errorf("%q is no time; write 2017-10-07T12:00:00, or seconds", clip(text))
	}
	return at, nil
}

// anonymous is a short name in place of a user's.
func anonymous(user string) string {
	h := fnv.New32a()
	h.Write([]byte(user))
	return fmt.Sprintf("u%08x", h.Sum32())
}
