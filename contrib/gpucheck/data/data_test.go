// SPDX-License-Identifier: Apache-2.0

package data

import (
	"strings"
	"testing"
	"testing/fstest"
)

// What lies here can be read.
func TestRead(t *testing.T) {
	if _, err := Read(); err != nil {
		t.Error(err)
	}
}

func TestReadFrom(t *testing.T) {
	const machine = `{"kind":"machine","model":"GPU","driver":"580","date":"2026-11-22","command":"gpucheck all","simulated":false}` + "\n"
	const rows = `{"kind":"training","model":"mlp","batch":64,"mode":"fp32","input":[3,32,32],"used_mib":900}` + "\n" +
		`{"kind":"check","check":"x"}` + "\n" +
		`{"kind":"interference","demand_pct":[25,25],"mps":true,"rate":0.9}` + "\n"
	for _, c := range []struct{ name, text, want string }{
		{"good", machine + rows, ""},
		{"no machine", rows, "line 1: no line before it says machine"},
		{"no driver", strings.Replace(machine, "580", "", 1) + rows, "line 2: no line before it says machine"},
		{"simulated", strings.Replace(machine, "false", "true", 1) + rows, "line 1 is of a simulated GPU"},
		{"broken", machine + "{", "line 2: "},
	} {
		got, err := readFrom(fstest.MapFS{"a.jsonl": {Data: []byte(c.text)}, "README.md": {Data: []byte("no row")}})
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil || len(got.Trainings) != 1 || len(got.Interference) != 1 || got.Trainings[0].UsedMiB != 900 ||
			got.Interference[0].Rate != 0.9 || got.Interference[0].Machine.Driver != "580" {
			t.Errorf("%s: %v %+v", c.name, err, got)
		}
	}
}
