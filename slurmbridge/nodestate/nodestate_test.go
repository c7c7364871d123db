// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"strings"
	"testing"
)

// All that node_state_string and node_state_string_compact return, 22.05.11 to 26.05.3,
// by what it says. {} stands for the signs in signed.
func TestParse(t *testing.T) {
	const signed = "*~#!%$@^"
	type want struct {
		State
		lives, takes bool
	}
	cases := map[string]want{}
	all := func(list string, s State, lives, takes bool) {
		for word := range strings.FieldsSeq(list) {
			if stem, ok := strings.CutSuffix(word, "{}"); ok {
				cases[stem] = want{s, lives, takes}
				for i := range len(signed) {
					cases[stem+signed[i:i+1]] = want{State{s.Base, s.Flags | signs[signed[i]]}, false, false}
				}
				continue
			}
			cases[word] = want{s, lives, takes}
		}
	}
	all("IDLE{}", State{Idle, 0}, true, true)
	all("MIXED{} MIX{}", State{Mixed, 0}, true, true)
	all("ALLOCATED{} ALLOC{}", State{Allocated, 0}, true, true)
	all("ALLOCATED+ ALLOC+", State{Allocated, Completing}, true, true)
	all("COMPLETING{} COMP{}", State{Idle, Completing}, true, true)
	all("MIXED- MIX-", State{Mixed, Planned}, true, true)
	all("PLANNED PLND", State{Idle, Planned}, true, true)
	all("PERFCTRS NPC", State{Idle, PerfCtrs}, true, true)
	all("RESERVED RESV", State{Idle, Reserved}, true, false)
	all("BLOCKED BLOCK", State{Idle, Blocked}, true, false)
	all("DOWN{}", State{Down, 0}, false, false)
	all("DRAINED{} DRAIN{}", State{Idle, Drain}, false, false)
	all("DRAINING{} DRNG{}", State{Mixed, Drain}, false, false)
	all("FAIL FAIL", State{Idle, Fail}, false, false)
	all("FAIL*", State{Idle, Fail | NotResponding}, false, false)
	all("FAILING FAILG", State{Mixed, Fail}, false, false)
	all("FAILING* FAILG*", State{Mixed, Fail | NotResponding}, false, false)
	all("MAINT", State{Idle, Maintenance}, false, false)
	all("MAINT*", State{Idle, Maintenance | NotResponding}, false, false)
	all("REBOOT BOOT", State{Idle, RebootRequested}, false, false)
	all("REBOOT* BOOT*", State{Idle, RebootRequested | NotResponding}, false, false)
	all("REBOOT^ BOOT^", State{Idle, RebootRequested | RebootIssued}, false, false)
	all("FUTURE{} FUTR{}", State{Future, 0}, false, false)
	all("UNKNOWN UNK", State{Unknown, 0}, false, false)
	all("UNKNOWN* UNK*", State{Unknown, NotResponding}, false, false)
	all("INVAL", State{Unknown, InvalidReg}, false, false)
	all("INVALID", State{Invalid, 0}, false, false)
	for f, list := range map[Flags]string{RebootIssued: "REBOOT_ISSUED", RebootCancel: "CANCEL_REBOOT CANC_R",
		External: "EXTERNAL EXT", Cloud: "CLOUD",
		PowerDown: "POWER_DOWN POW_DN", PowerUp: "POWER_UP POW_UP", PoweringDown: "POWERING_DOWN POWRING_DN",
		PoweredDown: "POWERED_DOWN POWERED_DN",
		PoweringUp:  "POWERING_UP", Undrain: "UNDRAIN", DynamicFuture: "DYNAMIC_FUTURE", DynamicNorm: "DYNAMIC_NORM",
		Resume:   "RESUME RESM",
		Unlisted: "? N/A", NotResponding | Unlisted: "?*"} {
		all(list, State{Unknown, f}, false, false)
	}
	// The complete form.
	all("MIXED+CLOUD+PLANNED", State{Mixed, Cloud | Planned}, true, true)
	all("IDLE+DYNAMIC_NORM", State{Idle, DynamicNorm}, true, true)
	all("IDLE+CLOUD+POWERED_DOWN", State{Idle, Cloud | PoweredDown}, false, false)
	all("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP", State{Idle, Cloud | NotResponding | PoweringUp}, false, false)
	all("ALLOCATED+COMPLETING", State{Allocated, Completing}, true, true)
	all("IDLE+RESERVED", State{Idle, Reserved}, true, false)
	all("MIXED+MAINTENANCE+RESERVED", State{Mixed, Maintenance | Reserved}, false, false)
	all("DOWN+DRAIN+INVALID_REG", State{Down, Drain | InvalidReg}, false, false)
	all("MIXED+REBOOT_REQUESTED", State{Mixed, RebootRequested}, false, false)
	all("IDLE+SOMETHING_NEW", State{Idle, Unlisted}, true, true)
	for word, f := range flags {
		if f&(away|Reserved|Blocked) == 0 {
			all("MIXED+"+word, State{Mixed, f}, true, true)
		} else if got := Parse("MIXED+" + word); got != (State{Mixed, f}) || got.Takes() {
			t.Errorf("%s: %+v", word, got)
		}
	}
	for text, w := range cases {
		for _, text := range []string{text, strings.ToLower(text)} {
			if got := Parse(text); got != w.State || got.Lives() != w.lives || got.Takes() != w.takes {
				t.Errorf("%s: %+v, lives %v, takes jobs %v; want %+v", text, got, got.Lives(), got.Takes(), w)
			}
		}
	}
}
