// SPDX-License-Identifier: Apache-2.0

package admincomment

import (
	"strings"
	"testing"

	"carma/slurmbridge/jobenv"
)

// What is written for a job is read for its record, whatever stands around it.
func TestAdviceIn(t *testing.T) {
	c := jobenv.Carma{Mode: jobenv.ModeShared, Method: "user", GPUs: 2, EstMiB: 9000, ReserveMiB: 10000, Key: 0xab,
		UnreadLine: 3}
	token := string(AppendAdvice(nil, &c, `a "note"`))
	advice := Advice{Mode: "shared", Method: "user", EstMiB: 9000, ReserveMiB: 10000, Note: "a 'note'",
		Key: "00000000000000ab", UnreadLine: 3}
	for comment, want := range map[string]Advice{
		token:                       advice,
		"site " + token + " more=1": advice,
		`carma-advice={"v":1,"key":"0"} ` + token: advice,
		"": {}, "carma-advice=": {}, "carma-advice={": {}, "carma-advice=[]": {},
		`carma-advice={"est_mib":-1}`:                         {},
		`carma-advice={"reserve_mib":1e12}`:                   {},
		`carma-advice={"key":"00000000000000a"}`:              {},
		`carma-advice={"unread":-1}`:                          {},
		string(AppendAdvice(nil, &jobenv.Carma{}, "refused")): {Note: "refused"},
	} {
		if got, ok := AdviceIn(comment); got != want || ok != (want != Advice{}) {
			t.Errorf("%s: got %+v, %v", comment, got, ok)
		}
	}
	if got := Without("a " + token + " b"); got != "a b" {
		t.Errorf("without tokens: %q", got)
	}
}

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"as it is, 1 < 2":         "as it is, 1 < 2",
		"\"a\\b\"\n\x1b[31mé\x7f": "'a'b'??[31m??",
		strings.Repeat("x", 100):  strings.Repeat("x", 100),
		strings.Repeat("x", 101):  strings.Repeat("x", 97) + "...",
		strings.Repeat("é", 101):  strings.Repeat("?", 97) + "...",
	} {
		if got := plain(text); got != want {
			t.Errorf("plain(%q) = %q, want %q", text, got, want)
		}
	}
}
