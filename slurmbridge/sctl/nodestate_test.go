// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"strings"
	"testing"
)

// All bases and flags of node_state_string_complete, 22.05.8 to 26.05.3.
func TestNodeState(t *testing.T) {
	type want struct{ lives, takes bool }
	up, reserved, down := want{true, true}, want{true, false}, want{false, false}
	cases := map[string]want{"IDLE": up, "MIXED": up, "ALLOCATED": up, "DOWN": down, "ERROR": down, "FUTURE": down,
		"UNKNOWN": down, "INVALID": down, "N/A": down, "?": down, "": down,
		"MIXED+CLOUD+PLANNED": up, "IDLE+DYNAMIC_NORM": up, "ALLOCATED+COMPLETING": up, "IDLE+SOMETHING_NEW": up,
		"DOWN+DRAIN+INVALID_REG": down, "IDLE+CLOUD+NOT_RESPONDING+POWERING_UP": down,
		"MIXED+MAINTENANCE+RESERVED": down}
	for list, w := range map[string]want{
		"CLOUD COMPLETING DYNAMIC_FUTURE DYNAMIC_NORM PERFCTRS POWER_UP RESUME PLANNED": up,
		"RESERVED BLOCKED": reserved,
		"DRAIN EXTERNAL INVALID_REG FAIL MAINTENANCE POWER_DOWN POWERED_DOWN POWERING_DOWN POWERING_UP " +
			"REBOOT_REQUESTED REBOOT_ISSUED NOT_RESPONDING": down,
	} {
		for flag := range strings.FieldsSeq(list) {
			cases["MIXED+"+flag] = w
		}
	}
	for text, w := range cases {
		for _, text := range []string{text, strings.ToLower(text)} {
			if lives, takes := nodeState(text); lives != w.lives || takes != w.takes {
				t.Errorf("%s: lives %v, takes jobs %v; want %+v", text, lives, takes, w)
			}
		}
	}
}
