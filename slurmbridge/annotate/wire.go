// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"strconv"

	"carma/slurmbridge/admincomment"
)

// EnvVersion is the value of CARMA_V: the meaning of the other keys.
const EnvVersion = 1

// AppendEnv appends to b what the node's hooks are told: each variable, as
// NAME=value without the prefix CARMA_, between begin and end. slurmctld hands
// them to Prolog and Epilog as SPANK_CARMA_* (job_desc_msg_t.spank_job_env);
// jobenv reads them back.
//
// It is written without fmt, as all that every submission runs through: in
// slurmctld that code is never in the cache.
func (a *Annotation) AppendEnv(b []byte, begin, end string) []byte {
	if a.GPUs == 0 {
		return b
	}
	text := func(name, value string) {
		b = append(append(append(append(append(b, begin...), name...), '='), value...), end...)
	}
	number := func(name string, value int64) { text(name, strconv.FormatInt(value, 10)) }
	number("V", EnvVersion)
	text("MODE", string(a.Mode))
	text("METHOD", string(a.Method))
	number("GPUS", int64(a.GPUs))
	number("MEM_MIB", a.ReserveMiB)
	number("FULL", a.FullMiB)
	if a.Key != 0 {
		text("KEY", a.Key.String())
	}
	if a.ByNodes {
		text("NODES", "fixed") // for the shim (record.c), when the job is to be changed
	}
	if a.EstMiB > 0 {
		number("EST_MIB", a.EstMiB)
	}
	if a.Learn {
		number("LEARN", 1)
	}
	if a.Policy != "" {
		text("POLICY", a.Policy)
	}
	if a.Requeue {
		text("REQUEUE", "timeout")
	}
	if a.SMActPct > 0 {
		number("SMACT", int64(a.SMActPct))
	}
	if a.NamesNodes {
		number("NAMES_NODES", 1)
	}
	return b
}

// AppendComment appends the token for people who look at AdminComment. It is never
// read back: other tools write there too.
func (a *Annotation) AppendComment(b []byte) []byte {
	b = strconv.AppendInt(append(b, `carma={"v":`...), EnvVersion, 10)
	b = append(append(append(b, `,"mode":"`...), a.Mode...), `","method":"`...)
	b = append(append(b, a.Method...), `","gpus":`...)
	b = strconv.AppendInt(b, int64(a.GPUs), 10)
	if a.EstMiB > 0 {
		b = strconv.AppendInt(append(b, `,"est_mib":`...), a.EstMiB, 10)
	}
	b = strconv.AppendInt(append(b, `,"reserve_mib":`...), a.ReserveMiB, 10)
	if a.Note != "" {
		b = append(append(append(b, `,"note":"`...), admincomment.Plain(a.Note)...), '"')
	}
	return append(b, '}')
}
