// SPDX-License-Identifier: Apache-2.0

package jobenv

import (
	"strconv"
	"time"

	"carma/estimator/history"
)

// Carma is what job_submit adds to a job, and what the hooks on its node are told. The
// zero value stands for a job that was not annotated.
type Carma struct {
	Mode        Mode
	Method      string      // package method
	GPUs        int         // of a node at most
	ReserveMiB  int64       // per GPU, booked; FullMiB when exclusive
	EstMiB      int64       // per GPU; 0: unknown
	FullMiB     int64       // a whole GPU
	SMActPct    int         // expected; 0: unknown
	MaxSlowdown float64     // that its user allows; 0: the site's
	Key         history.Key // 0: none
	Policy      string      // placement that the user asks for; empty: the site's
	ByNodes     bool        // GPUs follows from the job's nodes and tasks, which must thus stay
	Learn       bool        // the job runs alone for want of a figure that would let it share
	Requeue     Requeue
	// Counted: slurmctld starts the job where the node's Extra says that its GPUs can give the
	// booking (package extra), or, for a job on All GPUs of its nodes, that all are there and
	// well.
	Counted, All bool
	UnreadLine   int // of the script: meant for CARMA, and not read; 0: none

	// Of a job whose hook reads this.
	Annotated bool
	Submit    time.Time // zero: unknown
}

// Mode is how a job may use its GPUs.
type Mode string

// The modes. ModeOff is ModeExclusive for a user who wants none of CARMA.
const (
	ModeShared    Mode = "shared"
	ModeExclusive Mode = "exclusive"
	ModeOff       Mode = "off"
)

// Requeue is when CARMA requeues the job: empty, after an OOM.
type Requeue string

// The values. A wrapper that reads the first failure has no use for a second attempt: RequeueNo keeps the requeues that
// Slurm makes itself, and those before the job's start.
const (
	RequeueTimeout Requeue = "timeout" // also when the time slot is over
	RequeueNo      Requeue = "no"      // after no failure
)

// carmaVersion is the value of V: the meaning of the other variables.
const carmaVersion = 1

// slurmctld keeps the variables in the job's spank_job_env, and hands them to Prolog and
// Epilog with this prefix.
const carmaPrefix = "SPANK_CARMA_"

// EnvSubmit is the variable that the shim adds.
const EnvSubmit = "SUBMIT"

// AppendEnv appends to b each variable, as NAME=value between begin and end.
//
// AppendEnv does without fmt, as does all code that every submission runs
// through: in slurmctld the code of fmt is never in the cache.
func (c *Carma) AppendEnv(b []byte, begin, end string) []byte {
	if c.GPUs == 0 {
		return b
	}
	text := func(name, value string) {
		b = append(append(append(append(append(b, begin...), name...), '='), value...), end...)
	}
	number := func(name string, value int64) { text(name, strconv.FormatInt(value, 10)) }
	number("V", carmaVersion)
	text("MODE", string(c.Mode))
	text("METHOD", c.Method)
	number("GPUS", int64(c.GPUs))
	number("MEM_MIB", c.ReserveMiB)
	number("FULL", c.FullMiB)
	if c.Key != 0 {
		text("KEY", c.Key.String())
	}
	if c.ByNodes {
		text("NODES", "fixed") // the shim reads NODES, too (record.c), when the job is to be changed
	}
	if c.EstMiB > 0 {
		number("EST_MIB", c.EstMiB)
	}
	if c.Learn {
		number("LEARN", 1)
	}
	if c.Policy != "" {
		text("POLICY", c.Policy)
	}
	if c.Requeue != "" {
		text("REQUEUE", string(c.Requeue))
	}
	if c.SMActPct > 0 {
		number("SMACT", int64(c.SMActPct))
	}
	if c.MaxSlowdown > 0 {
		number("SLOWDOWN", int64(c.MaxSlowdown*1000+0.5)) // thousandths
	}
	if c.Counted {
		number("COUNTED", 1)
	}
	if c.All {
		number("ALL", 1)
	}
	if c.UnreadLine > 0 {
		number("UNREAD", int64(c.UnreadLine))
	}
	return b
}

// carmaFromEnv reads the variables of AppendEnv. Only slurmctld can have written
// these (the shim drops what clients send), so a value that cannot be read is
// taken as absent and the job as not annotated.
func carmaFromEnv(get Getenv) Carma {
	n := numbers{get: func(name string) string { return get(carmaPrefix + name) }}
	if n.get("V") != strconv.Itoa(carmaVersion) {
		return Carma{}
	}
	c := Carma{
		Annotated:  true,
		Mode:       Mode(n.get("MODE")),
		Method:     n.get("METHOD"),
		Policy:     n.get("POLICY"),
		ByNodes:    n.get("NODES") == "fixed",
		Learn:      n.get("LEARN") == "1",
		Requeue:    Requeue(n.get("REQUEUE")),
		GPUs:       int(n.required("GPUS", 16)),
		ReserveMiB: int64(n.required("MEM_MIB", 40)),
		FullMiB:    int64(n.required("FULL", 40)),
		EstMiB:     int64(n.optional("EST_MIB", 40)),
		SMActPct:   int(n.optional("SMACT", 7)),
		Counted:    n.get("COUNTED") == "1",
		All:        n.get("ALL") == "1",
		UnreadLine: int(n.optional("UNREAD", 31)),
	}
	c.MaxSlowdown = float64(n.optional("SLOWDOWN", 17)) / 1000
	c.Key, _ = history.ParseKey(n.get("KEY"))
	if s := n.optional(EnvSubmit, 48); s > 0 {
		c.Submit = time.Unix(int64(s), 0)
	}
	if n.err != nil {
		return Carma{}
	}
	return c
}
