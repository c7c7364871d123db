// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"fmt"
	"strings"

	"carma/slurmbridge/admincomment"
)

// EnvVersion is the value of CARMA_V: the meaning of the other keys.
const EnvVersion = 1

// Env lists what the node's hooks are told, as NAME=value lines without the
// prefix CARMA_. slurmctld hands them to Prolog and Epilog as SPANK_CARMA_*
// (job_desc_msg_t.spank_job_env); jobenv reads them back.
func (a Annotation) Env() []string {
	if a.GPUs == 0 {
		return nil
	}
	env := []string{
		fmt.Sprintf("V=%d", EnvVersion),
		"MODE=" + string(a.Mode),
		"METHOD=" + string(a.Method),
		fmt.Sprintf("GPUS=%d", a.GPUs),
		fmt.Sprintf("MEM_MIB=%d", a.ReserveMiB),
		fmt.Sprintf("FULL=%d", a.FullMiB),
	}
	if a.Key != 0 {
		env = append(env, "KEY="+a.Key.String())
	}
	if a.EstMiB > 0 {
		env = append(env, fmt.Sprintf("EST_MIB=%d", a.EstMiB))
	}
	if a.Policy != "" {
		env = append(env, "POLICY="+a.Policy)
	}
	if a.Requeue {
		env = append(env, "REQUEUE=timeout")
	}
	if a.SMActPct > 0 {
		env = append(env, fmt.Sprintf("SMACT=%d", a.SMActPct))
	}
	return env
}

// Comment is the token for people who look at AdminComment. It is never read
// back: other tools write there too.
func (a Annotation) Comment() string {
	var b strings.Builder
	fmt.Fprintf(&b, `carma={"v":%d,"mode":"%s","method":"%s","gpus":%d`, EnvVersion, a.Mode, a.Method, a.GPUs)
	if a.EstMiB > 0 {
		fmt.Fprintf(&b, `,"est_mib":%d`, a.EstMiB)
	}
	fmt.Fprintf(&b, `,"reserve_mib":%d`, a.ReserveMiB)
	if a.Note != "" {
		fmt.Fprintf(&b, `,"note":"%s"`, admincomment.Plain(a.Note))
	}
	b.WriteByte('}')
	return b.String()
}
