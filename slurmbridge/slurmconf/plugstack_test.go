// SPDX-License-Identifier: Apache-2.0

package slurmconf

import (
	"reflect"
	"testing"
)

func TestPlugstack(t *testing.T) {
	texts := map[string][]string{
		"plugstack.conf.d/*": {"required /usr/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis # b", "optional last.so"},
		"loop":               {"include loop"},
		"none":               nil,
	}
	include := func(pattern string) []string { return texts[pattern] }
	for text, want := range map[string][]Plugin{
		"": nil,
		"# required x.so\n\noptional\nnonsense x.so\n": nil,
		"  optional\t/a/spank_carma.so /usr/sbin/carma-task-prolog\r\ninclude plugstack.conf.d/*\ninclude none\n": {
			{Path: "/a/spank_carma.so", Args: []string{"/usr/sbin/carma-task-prolog"}},
			{Required: true, Path: "/usr/lib/slurm/spank_pyxis.so", Args: []string{"runtime_path=/run/pyxis"}},
			{Path: "last.so", Args: []string{}},
		},
		"include loop\noptional x.so": {{Path: "x.so", Args: []string{}}},
	} {
		if got := Plugstack(text, include); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}
