// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"errors"
	"reflect"
	"testing"

	"carma/slurmbridge/schedule"
)

func TestNeeds(t *testing.T) {
	for row, want := range map[string]schedule.Needs{
		"12|n[1-2]|n3|gpu,all|1-2|a&b|4|200G|0|(null)|": {Named: "n[1-2]", Excluded: "n3", Partitions: "gpu,all", Nodes: 1,
			Features: "a&b", Least: schedule.Size{CPUs: 4, MemMiB: 204800}},
		"12||(null)|gpu|2|(null)|1|6500M|1.5T|maint|": {Partitions: "gpu", Nodes: 2, Reserved: "n[2-3]",
			Least: schedule.Size{CPUs: 1, MemMiB: 6500, TmpMiB: 3 << 19}},
		"12||||||x|NaN|-1|flex|":  {},
		"12|||||||||two,of them|": {},
	} {
		squeue := `sep=${SQUEUE_FORMAT#%A}; sep=${sep%%\%n*}; echo '` + row + `' | sed "s/|/$sep/g"`
		scontrol := `flags=; [ "$4" != flex ] || flags=FLEX,; echo "ReservationName=$4 Nodes=n[2-3] Flags=${flags}SPEC_NODES"`
		got, err := needs(t.Context(), client(t, map[string]string{"squeue": squeue, "scontrol": scontrol}), 12)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", row, got, err)
		}
	}
	if _, err := client(t, map[string]string{"squeue": ""}).MayRun(t.Context(), 12, "n1"); !errors.Is(err, ErrNoJob) {
		t.Errorf("no job: %v", err)
	}
}

func TestHost(t *testing.T) {
	c := client(t, map[string]string{"sinfo": showRows("gpu*%a,nvlink%64%100000%0%", "all%a,nvlink%64%100000%0%")})
	want := schedule.Host{Name: "n1", Partitions: []string{"gpu", "all"}, Features: "a,nvlink",
		Size: schedule.Size{CPUs: 64, MemMiB: 100000}}
	if got, err := host(t.Context(), c, "n1"); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	squeue := `sep=${SQUEUE_FORMAT#%A}; sep=${sep%%\%n*}; echo "12|||gpu|1|$FEATURE|1|0|0||" | sed "s/|/$sep/g"`
	for feature, want := range map[string]bool{"nvlink": true, "b": false} {
		c := client(t, map[string]string{"squeue": "FEATURE=" + feature + "; " + squeue,
			"sinfo": showRows("gpu*%a,nvlink%64%100000%0%")})
		if may, err := c.MayRun(t.Context(), 12, "n1"); may != want || err != nil {
			t.Errorf("--constraint=%s: may run %v, %v", feature, may, err)
		}
	}
	if got, err := host(t.Context(), client(t, map[string]string{"sinfo": "exit 0"}), "n1"); err == nil {
		t.Errorf("an unknown node: %+v", got)
	}
}
