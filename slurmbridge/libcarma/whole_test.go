// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// What a partition has for jobs that say nothing is not meant here: the job may have said something.
func TestWholes(t *testing.T) {
	configure(t)
	part := site.site.Partitions["gpu"]
	part.Directive = "mem=1G"
	site.site.Partitions["gpu"] = part
	text := wholes(&site.site)
	if got, want := strings.Count("\n"+text, "\nwhole "), 3*4*4; got != want {
		t.Errorf("%d blocks, want %d", got, want)
	}
	for _, c := range []struct{ head, want string }{
		{"whole 2 node 0 gpu\n", `book gres:carma:81072
tell carma: ` + lateNote + `
env V=1
env MODE=exclusive
env METHOD=none
env GPUS=2
env MEM_MIB=40536
env FULL=40536
time SUBMIT
comment carma={"v":1,"mode":"exclusive","method":"none","gpus":2,"reserve_mib":40536,"note":"` + lateNote + `"}
`},
		{"whole 1 job 1 slots\n", `book gres:carma:40536
constrain carma1>=40536|carma1u4294967294>=40536
time_limit 240
tell carma: ` + lateNote + `
env V=1
env MODE=exclusive
env METHOD=none
env GPUS=1
env MEM_MIB=40536
env FULL=40536
env NODES=fixed
env COUNTED=1
time SUBMIT
comment carma={"v":1,"mode":"exclusive","method":"none","gpus":1,"reserve_mib":40536,"note":"` + lateNote + `"}
`},
		{"whole 4 node 1 \n", `book gres:carma:162144
constrain carmaall>=4
tell carma: ` + lateNote + `
env V=1
env MODE=exclusive
env METHOD=none
env GPUS=4
env MEM_MIB=40536
env FULL=40536
env COUNTED=1
env ALL=1
time SUBMIT
comment carma={"v":1,"mode":"exclusive","method":"none","gpus":4,"reserve_mib":40536,"note":"` + lateNote + `"}
`},
	} {
		_, block, _ := strings.Cut(text, c.head)
		if block, _, _ = strings.Cut(block, "\nwhole "); strings.TrimSuffix(block, "\n")+"\n" != c.want {
			t.Errorf("%s%s\nwant\n%s", c.head, block, c.want)
		}
	}
	if strings.Contains(text, "\nwhole 5") || strings.Count(text, "\ntell ") != strings.Count(text, "\nbook ") {
		t.Error(text)
	}
}
