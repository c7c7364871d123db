// SPDX-License-Identifier: Apache-2.0

package jobenv

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

// What job_submit writes of a job is what its hooks read.
func TestCarmaRoundTrip(t *testing.T) {
	all := Carma{Mode: ModeShared, Method: "user", GPUs: 2, ReserveMiB: 3, EstMiB: 4, FullMiB: 5, SMActPct: 6, Key: 7,
		Policy: "lug", ByNodes: true, Learn: true, Requeue: RequeueNo, Counted: true, All: true, MaxSlowdown: 1.3,
		UnreadLine: 9, Annotated: true, Submit: time.Unix(8, 0)}
	for i := range reflect.TypeFor[Carma]().NumField() {
		if reflect.ValueOf(all).Field(i).IsZero() {
			t.Errorf("%s is not tried", reflect.TypeFor[Carma]().Field(i).Name)
		}
	}
	for name, c := range map[string]Carma{"all": all, "least": {Mode: ModeOff, Method: "none", GPUs: 1, Annotated: true}} {
		env := map[string]string{}
		if !c.Submit.IsZero() { // by the shim
			env[carmaPrefix+EnvSubmit] = "8"
		}
		for line := range strings.Lines(string(c.AppendEnv(nil, carmaPrefix, "\n"))) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			env[key] = value
		}
		if got := carmaFromEnv(get(env)); got != c {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, c)
		}
	}
}
