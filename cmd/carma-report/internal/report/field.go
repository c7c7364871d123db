// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"carma/db"
	"carma/db/figure"
	"carma/slurmbridge/slurmtime"
)

// kind is how a field is written.
type kind int

const (
	text    kind = iota
	integer      // a number
	mib          // memory
	seconds      // a time span, as sacct's Elapsed
	hours        // GPU time in seconds, shown as hours
	joules
	percent
	ratio     // times
	deviation // percent, with its sign
	moment    // a time
	yesNo     // yes or no
	ids       // a list of numbers
	words     // a list of texts
)

// value is a field of one job. known is false where there is none; the items of a
// list stand in text, between commas. A value is small enough to travel in
// registers, for a report may hand over forty million.
type value struct {
	known bool
	num   float64
	text  string
	mark  bool // a figure of several jobs: marked for people
}

// field is a column. The names are those of sacct where it has them.
type field struct {
	name, title, json string
	kind              kind
	help              string
	of                func(*job) value
}

func str(s string) value               { return value{known: s != "", text: s} }
func num[T int64 | float64](v T) value { return value{known: true, num: float64(v)} }
func positive(v int64) value           { return value{known: v > 0, num: float64(v)} }
func measured(m figure.Measured) value { return value{known: m.Known(), num: float64(m)} }
func texts(list []string) value        { return str(strings.Join(list, ",")) }
func numbers(list []uint32) value      { return str(db.JoinIDs(list)) }
func when(t time.Time) value {
	return value{known: !t.IsZero(), num: float64(t.UnixMilli()) / 1000}
}

// fields are all columns, in the order of JSON.
var fields = []field{
	{"JobID", "JOBID", "id", text, "job id, with the task of an array", func(j *job) value { return str(j.id()) }},
	{"JobIDRaw", "JOBIDRAW", "job_id", integer, "job id", func(j *job) value { return num(int64(j.JobID)) }},
	{"Cluster", "CLUSTER", "cluster", text, "cluster", func(j *job) value { return str(j.Attempt.Cluster) }},
	{"JobName", "NAME", "name", text, "name of the job", func(j *job) value { return str(j.Name) }},
	{"User", "USER", "user", text, "user",
		func(j *job) value { return str(j.User) }},
	{"Account", "ACCOUNT", "account", text, "account", func(j *job) value { return str(j.Account) }},
	{"Partition", "PARTITION", "partition", text, "partition of the last attempt",
		func(j *job) value { return str(j.Partition) }},
	{"State", "STATE", "state", text, "state that the job ended in", func(j *job) value { return str(j.State) }},
	{"ExitCode", "EXIT", "exit_code", text, "exit code:signal of the last attempt",
		func(j *job) value { return str(strconv.Itoa(j.ExitCode) + ":" + strconv.Itoa(j.ExitSignal)) }},
	{"NodeList", "NODES", "nodes", words, "nodes of the last attempt", func(j *job) value { return texts(j.Nodes) }},
	{"NGPUs", "GPUS", "ngpus", integer, "GPUs of the last attempt",
		func(j *job) value { return num(int64(len(j.figures.UUIDs))) }},
	{"GPU", "GPU", "gpu", text, "model of the GPUs", func(j *job) value { return str(j.figures.Model) }},
	{"GPUs", "UUIDS", "gpus", words, "UUIDs of the GPUs of the last attempt",
		func(j *job) value { return texts(j.figures.UUIDs) }},
	{"Submit", "SUBMIT", "submit", moment, "submitted", func(j *job) value { return when(j.Submit) }},
	{"Start", "START", "start", moment, "first attempt started", func(j *job) value { return when(j.Start) }},
	{"End", "END", "end", moment, "last attempt ended", func(j *job) value { return when(j.End) }},
	{"Wait", "WAIT", "wait_s", seconds, "time in the queue, before all attempts",
		func(j *job) value { return measured(j.WaitS) }},
	{"Elapsed", "RUN", "run_s", seconds, "time of all attempts", func(j *job) value { return num(j.RunS) }},
	{"Attempts", "TRIES", "attempts", integer, "attempts", func(j *job) value { return num(int64(j.Attempts)) }},
	{"Mode", "MODE", "mode", text, "shared, exclusive or off", func(j *job) value { return str(string(j.Mode)) }},
	{"Method", "METHOD", "method", text, "where the estimate came from", func(j *job) value { return str(j.Method) }},
	{"Key", "KEY", "key", text, "key of the history",
		func(j *job) value { return str(j.Key) }},
	{"EstMem", "EST", "est_mib", mib, "memory per GPU as estimated",
		func(j *job) value { return positive(j.EstMiB) }},
	{"ReserveMem", "BOOKED", "reserve_mib", mib, "memory per GPU as booked",
		func(j *job) value { return num(j.ReserveMiB) }},
	{"PeakMem", "PEAK", "peak_mib", mib, "highest memory of one GPU; with *, of several jobs together",
		func(j *job) value {
			v := positive(j.PeakMiB)
			v.mark = j.figures.PeakHow == figure.Shared
			return v
		}},
	{"PeakMemQ", "PEAKQ", "peak_quality", text, "how PeakMem was measured: exact, shared, unknown",
		func(j *job) value { return str(string(j.figures.PeakHow)) }},
	{"Preallocated", "PREALLOCATED", "preallocated", text,
		"part of the GPU that a framework seems to have preallocated",
		func(j *job) value { return str(j.preallocated()) }},
	{"MeanMem", "MEAN", "mean_mib", mib, "mean memory of one GPU",
		func(j *job) value { return positive(j.figures.MeanMiB) }},
	{"MemErr", "ERR", "mem_err_pct", deviation, "estimate above (+) or below (-) the peak",
		func(j *job) value { return measured(j.memErrPct()) }},
	{"SMAct", "SMACT", "smact_pct", percent, "mean SM activity, the job's own",
		func(j *job) value { return measured(j.figures.SMActPct) }},
	{"SMActMax", "SMACTMAX", "smact_max", percent, "highest SM activity, the job's own",
		func(j *job) value { return measured(j.figures.SMActMax) }},
	{"SMActQ", "SMACTQ", "smact_quality", text, "how SMAct was measured: exact, shared, unknown",
		func(j *job) value { return str(string(j.figures.SMActHow)) }},
	{"Energy", "ENERGY", "energy_j", joules, "energy, the job's share",
		func(j *job) value { return measured(j.figures.EnergyJ) }},
	{"EnergyIdle", "IDLE", "idle_j", joules, "part of Energy that the GPU draws when idle",
		func(j *job) value { return measured(j.figures.IdleJ) }},
	{"EnergyQ", "ENERGYQ", "energy_quality", text, "how Energy was measured: exact, shared, unknown",
		func(j *job) value { return str(string(j.figures.EnergyHow)) }},
	{"GPUHours", "GPUHOURS", "gpu_s", hours, "GPU time held", func(j *job) value { return num(j.figures.LeaseS) }},
	{"SharedHours", "SHAREDH", "shared_s", hours, "part of GPUHours spent with other jobs",
		func(j *job) value { return num(j.figures.SharedS) }},
	{"HeldHours", "HELDH", "held_s", hours, "GPU time divided by the number of jobs that held the GPU",
		func(j *job) value { return num(j.figures.HeldS) }},
	{"Saved", "SAVED", "saved_s", hours, "GPU time saved compared with running exclusively",
		func(j *job) value { return measured(j.savedS()) }},
	{"ExpSlowdown", "EXPECTED", "expected_slowdown", ratio,
		"run time divided by run time alone, as the law of interference expects",
		func(j *job) value { return measured(j.expectedSlowdown()) }},
	{"Slowdown", "SLOWDOWN", "slowdown", ratio, "as ExpSlowdown, from the SM activity that was measured",
		func(j *job) value { return measured(j.slowdown()) }},
	{"Neighbours", "SHARED WITH", "neighbours", ids, "jobs that held one of its GPUs at the same time",
		func(j *job) value { return numbers(j.Neighbours) }},
	{"OOM", "OOM", "oom", yesNo, "ran out of GPU memory", func(j *job) value {
		return value{known: true,
			num: b2f(j.OOM != ""), text: j.oomText()}
	}},
	{"OOMSig", "SIGNATURE", "oom_signature", text, "signature of the OOM message",
		func(j *job) value { return str(j.OOM) }},
	{"Requeued", "REQUEUED TO", "requeued_to", text, "partition where it was requeued",
		func(j *job) value { return str(j.Requeued) }},
	{"Note", "NOTE", "note", text, "further information about the end", func(j *job) value { return str(j.OOMNote) }},
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// usual are the columns of a table unless the user says.
const usual = "JobID,User,State,NGPUs,EstMem,ReserveMem,PeakMem,SMAct,Wait,Elapsed,Energy,Saved,Neighbours,OOM"

// column is a field as printed.
type column struct {
	field
	width int  // 0: as wide as needed
	left  bool // against the kind's own side
}

// parseColumns reads sacct's -o: names with %width (negative: to the left), any
// case; "+name" adds to the usual ones; "all" is all.
func parseColumns(list string) ([]column, error) {
	if list == "" {
		list = usual
	}
	var columns []column
	for n, word := range strings.Split(list, ",") {
		if rest, ok := strings.CutPrefix(word, "+"); ok {
			if n == 0 {
				columns, _ = parseColumns(usual)
			}
			word = rest
		}
		name, width, hasWidth := strings.Cut(word, "%")
		c := column{}
		if hasWidth {
			w, err := strconv.Atoi(width)
			if err != nil || w == 0 || w < -500 || w > 500 {
				const text = "%q: the width must be a number from 1 to 500, or negative to stand to the left"
				return nil, fmt.Errorf(text, word)
			}
			c.width, c.left = max(w, -w), w < 0
		}
		if strings.EqualFold(name, "all") {
			for _, f := range fields {
				columns = append(columns, column{f, c.width, c.left})
			}
			continue
		}
		found := false
		for _, f := range fields {
			if strings.EqualFold(f.name, name) {
				c.field, found = f, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no column %q; carma-report --helpformat lists them", name)
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// style is how values are written for people.
type style struct {
	unit byte // of memory: K M G T P, 0: M as a plain number
	time slurmtime.Format
	raw  bool // plain numbers: MiB, seconds, joules, percent
}

const unknownText = "-"

// appendText writes a value for a table or, raw, for a program.
func (s *style) appendText(to []byte, k kind, v value) []byte {
	if !v.known {
		return append(to, unknownText...)
	}
	switch k {
	case text, words:
		return append(to, v.text...)
	case integer:
		return strconv.AppendInt(to, int64(v.num), 10)
	case ids:
		return s.appendIDs(to, v.text)
	case yesNo:
		switch {
		case s.raw:
			return strconv.AppendInt(to, int64(v.num), 10)
		case v.num == 0:
			return append(to, unknownText...)
		}
		return append(to, v.text...)
	case moment:
		return s.time.Append(to, time.UnixMilli(int64(math.Round(v.num*1000))))
	case mib:
		if to = appendMiB(to, v.num, s.unit); v.mark && !s.raw {
			to = append(to, '*')
		}
		return to
	}
	if s.raw {
		return appendNumber(to, v.num)
	}
	switch k {
	case seconds:
		return appendClock(to, v.num)
	case hours:
		h := math.Round(v.num/36)/100 + 0 // no minus before a zero
		return append(strconv.AppendFloat(to, h, 'f', 2, 64), 'h')
	case joules:
		return appendJoules(to, v.num)
	case ratio:
		return strconv.AppendFloat(to, v.num, 'f', 2, 64)
	}
	if k == deviation && v.num >= 0.5 {
		to = append(to, '+')
	}
	return append(strconv.AppendInt(to, int64(math.Round(v.num)), 10), '%') // percent, deviation
}

// appendIDs writes job ids; for people the first ones, and how many more there are.
func (s *style) appendIDs(to []byte, list string) []byte {
	const most = 3
	if n := strings.Count(list, ",") + 1; n > most && !s.raw {
		end := 0
		for range most {
			end += strings.IndexByte(list[end:], ',') + 1
		}
		return fmt.Appendf(append(to, list[:end]...), "+%d", n-most)
	}
	return append(to, list...)
}

// appendMiB writes memory in a unit as sacct does: 9.0G; without one as MiB.
func appendMiB(to []byte, v float64, unit byte) []byte {
	i := strings.IndexByte("KMGTP", unit)
	if i < 0 {
		return strconv.AppendInt(to, int64(v), 10)
	}
	v *= math.Pow(1024, float64(1-i))
	decimals := 1
	if v >= 1000 {
		decimals = 0
	}
	return append(strconv.AppendFloat(to, v, 'f', decimals, 64), unit)
}

// appendClock writes seconds as sacct prints Elapsed: [d-]hh:mm:ss.
func appendClock(to []byte, s float64) []byte {
	n := max(int64(math.Round(s)), 0)
	if days := n / 86400; days > 0 {
		to = append(strconv.AppendInt(to, days, 10), '-')
	}
	for i, v := range [...]int64{n / 3600 % 24, n / 60 % 60, n % 60} {
		if i > 0 {
			to = append(to, ':')
		}
		to = append(to, byte('0'+v/10), byte('0'+v%10))
	}
	return to
}

func appendJoules(to []byte, v float64) []byte {
	switch {
	case v < 10e3:
		return append(strconv.AppendFloat(to, v, 'f', 0, 64), 'J')
	case v < 10e6:
		return append(strconv.AppendFloat(to, v/1e3, 'f', 0, 64), "kJ"...)
	}
	return append(strconv.AppendFloat(to, v/1e6, 'f', 1, 64), "MJ"...)
}

// right tells whether figures of this kind stand to the right.
func (k kind) right() bool {
	switch k {
	case integer, mib, seconds, hours, joules, percent, ratio, deviation:
		return true
	}
	return false
}
