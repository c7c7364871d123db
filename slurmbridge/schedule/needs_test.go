// SPDX-License-Identifier: Apache-2.0

package schedule

import "testing"

func TestAllow(t *testing.T) {
	n1 := Host{Name: "n1", Partitions: []string{"gpu", "all"}, Features: "a,nvlink",
		Size: Size{CPUs: 64, MemMiB: 100000, TmpMiB: 500}}
	for name, c := range map[string]struct {
		needs Needs
		want  bool
	}{
		"nothing":                 {Needs{}, true},
		"named":                   {Needs{Named: "n[1-2]", Excluded: "n3"}, true},
		"others are named":        {Needs{Named: "n2"}, false},
		"another is named of two": {Needs{Named: "n2", Nodes: 2}, true},
		"two others are named":    {Needs{Named: "n[2-3]", Nodes: 2}, false},
		"excluded":                {Needs{Excluded: "n[1-2]"}, false},
		"named and excluded":      {Needs{Named: "n1", Excluded: "n1"}, false},
		"named, not read":         {Needs{Named: "n2["}, true},
		"excluded, not read":      {Needs{Excluded: "n1["}, true},
		"reserved":                {Needs{Reserved: "n[1-2]"}, true},
		"others are reserved":     {Needs{Reserved: "n2"}, false},
		"its partition":           {Needs{Partitions: "cpu,gpu"}, true},
		"another partition":       {Needs{Partitions: "cpu"}, false},
		"its features":            {Needs{Features: "a&nvlink"}, true},
		"another's feature":       {Needs{Features: "a&b"}, false},
		"a feature of some nodes": {Needs{Features: "b*1&a*1", Nodes: 2}, true},
		"features, not read":      {Needs{Features: "a&&"}, true},
		"all of it":               {Needs{Least: Size{64, 100000, 500}}, true},
		"memory, rounded":         {Needs{Least: Size{MemMiB: 100004}}, true},
		"more memory":             {Needs{Least: Size{MemMiB: 102400}}, false},
		"more cores":              {Needs{Least: Size{CPUs: 65}}, false},
		"more of /tmp":            {Needs{Least: Size{TmpMiB: 1000}}, false},
	} {
		c.needs.Partitions = map[bool]string{true: "gpu", false: c.needs.Partitions}[c.needs.Partitions == ""]
		if got := c.needs.Allow(n1); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !(Needs{Partitions: "gpu", Least: Size{64, 1 << 20, 0}}).Allow(Host{Name: "n1"}) {
		t.Error("what is not known forbids a node")
	}
	if (Needs{Least: Size{TmpMiB: 1}}).Allow(Host{Name: "n1"}) {
		t.Error("a node without /tmp")
	}
}
