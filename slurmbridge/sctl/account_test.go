// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"strings"
	"testing"
	"time"
)

func TestParseAccounted(t *testing.T) {
	line := func(fields ...string) string { return strings.Join(fields, separator) }
	for _, c := range []struct {
		line string
		want Accounted
		ok   bool
	}{
		{line("c", "12", "12", "alice", "ml", "gpu", "COMPLETED", "a|b", "JS1:x carma1:y"), Accounted{"c", 12, 0, "", "a|b", "alice", "ml", "gpu", "COMPLETED", "JS1:x carma1:y"}, true},
		{line("c", "13", "12_4", "alice", "ml", "gpu", "CANCELLED by 1000", "n", ""), Accounted{"c", 13, 12, "4", "n", "alice", "ml", "gpu", "CANCELLED", ""}, true},
		{line("c", "14", "12+0", "alice", "", "gpu", "NEWSTATE", "n", ""), Accounted{"c", 14, 0, "", "n", "alice", "", "gpu", "NEWSTATE", ""}, true},
		{line("c", "12.batch", "12.batch", "", "ml", "", "COMPLETED", "batch", ""), Accounted{}, false},
		{line("c", "12"), Accounted{}, false},
		{"", Accounted{}, false},
		{"sacct: warning of something new", Accounted{}, false},
	} {
		if got, ok := parseAccounted(c.line); ok != c.ok || got != c.want {
			t.Errorf("%q: %+v, %v", c.line, got, ok)
		}
	}
}

// What is asked of slurmdbd, with times that mean the same in every zone: half past two
// of a night that has it twice is told apart.
func TestAccountedAsks(t *testing.T) {
	zone := time.FixedZone("CEST", 7200)
	all := "sacct --noheader --allocations --parsable2 --delimiter=" + separator + " --format=Cluster,JobIDRaw,JobID,User,Account,Partition,State,JobName,AdminComment "
	for want, f := range map[string]AccountedFilter{
		"--allusers --starttime=uts1000000": {},
		"--jobs=1,2 --allusers":             {Jobs: []uint32{1, 2}},
		"--accounts=ml --clusters=a,b --user=x,y --starttime=uts1792888200 --endtime=uts1792891800": {
			Accounts: []string{"ml"}, Clusters: []string{"a", "b"}, Users: []string{"x", "y"},
			From: time.Date(2026, 10, 25, 2, 30, 0, 0, zone), To: time.Date(2026, 10, 25, 3, 30, 0, 0, zone)},
	} {
		c := client(t, map[string]string{"sacct": "exit 0"})
		if err := c.Accounted(t.Context(), f, func(Accounted) {}); err != nil {
			t.Fatal(err)
		}
		if got := calls(t, c); !strings.HasPrefix(got, all+want+" conf=") {
			t.Errorf("got  %s\nwant %s", got, all+want)
		}
	}
}

func FuzzParseAccounted(f *testing.F) {
	f.Add(strings.Join([]string{"c", "13", "12_4", "alice", "ml", "gpu", "CANCELLED by 1000", "n", "carma1:"}, separator))
	f.Fuzz(func(t *testing.T, line string) {
		if j, ok := parseAccounted(line); ok && strings.Contains(j.State, " ") {
			t.Errorf("state %q", j.State)
		}
	})
}
