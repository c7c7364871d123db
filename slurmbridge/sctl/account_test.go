// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestParseAccounted(t *testing.T) {
	for _, c := range []struct {
		row  []string
		want Accounted
		ok   bool
	}{
		{[]string{"c", "12", "12", "1001", "alice", "gpu", "COMPLETED", "1764200000", "JS1:x carma1:y"},
			Accounted{"c", 12, 1001, 0, "", "alice", "gpu", "COMPLETED", true, "JS1:x carma1:y"}, true},
		{[]string{"c", "12", "12", "1001", "alice", "gpu", "COMPLETED", "Unknown", ""},
			Accounted{"c", 12, 1001, 0, "", "alice", "gpu", "COMPLETED", false, ""}, true},
		{[]string{"c", "12", "12", "1001", "alice", "gpu", "REQUEUED", "1764200000", ""},
			Accounted{"c", 12, 1001, 0, "", "alice", "gpu", "REQUEUED", false, ""}, true},
		{[]string{"c", "13", "12_4", "1001", "alice", "gpu", "CANCELLED by 1000", "1764200000", ""},
			Accounted{"c", 13, 1001, 12, "4", "alice", "gpu", "CANCELLED", true, ""}, true},
		{[]string{"c", "14", "12+0", "1001", "alice", "gpu", "NEWSTATE", "1764200000", ""},
			Accounted{"c", 14, 1001, 0, "", "alice", "gpu", "NEWSTATE", true, ""}, true},
		{[]string{"c", "12.batch", "12.batch", "", "", "", "COMPLETED", "", ""}, Accounted{}, false},
		{[]string{"c", "12", "12", "alice", "1001", "gpu", "COMPLETED", "", ""}, Accounted{}, false},
	} {
		if got, ok := parseAccounted(c.row); ok != c.ok || got != c.want {
			t.Errorf("%q: %+v, %v", c.row, got, ok)
		}
	}
}

// A job's name may read as a record of another job; no question about records asks
// for it.
func TestNamesOfHostileJobs(t *testing.T) {
	forged := "x\n@|c|99|99|1002|bob|gpu|COMPLETED|carma1:"
	sacct := `for a; do case $a in --delimiter=*) sep=${a#*=};; --format=*) format=${a#*=};; esac; done
case $format in *AdminComment) printf '%s' "c@12@12@1001@alice@gpu@COMPLETED@1764200000@carma1:y@";;
*) printf '%s' "c@12@ml@` + forged + `@";; esac | sed "s/@/$sep/g"`
	a := Accounting(client(t, map[string]string{"sacct": strings.ReplaceAll(sacct, "\n@", "\n")}))
	var jobs []Accounted
	if err := a.Accounted(t.Context(), AccountedFilter{}, func(j Accounted) { jobs = append(jobs, j) }); err != nil ||
		len(jobs) != 1 || jobs[0].JobID != 12 {
		t.Errorf("%+v, %v", jobs, err)
	}
	var names []Named
	want := Named{Cluster: "c", JobID: 12, Account: "ml", Name: strings.ReplaceAll(forged, "\n@", "\n")}
	if err := a.Names(t.Context(), AccountedFilter{}, func(n Named) { names = append(names, n) }); err != nil ||
		len(names) != 1 || names[0] != want {
		t.Errorf("%+v, %v", names, err)
	}
}

// What is asked of slurmdbd, with times that mean the same in every zone: half past two
// of a night that has it twice is told apart.
func TestAccountedAsks(t *testing.T) {
	zone := time.FixedZone("CEST", 7200)
	delimiter := regexp.MustCompile(`--delimiter=@[0-9a-f]{32}@ `)
	all := "sacct --noheader --allocations --parsable " +
		"--format=Cluster,JobIDRaw,JobID,UID,User,Partition,State,End,AdminComment "
	for want, f := range map[string]AccountedFilter{
		"--allusers --starttime=uts1000000": {},
		"--jobs=1,2 --allusers":             {Jobs: []uint32{1, 2}},
		"--accounts=ml --clusters=a,b --user=x,y --starttime=uts1792888200 --endtime=uts1792891800": {
			Accounts: []string{"ml"}, Clusters: []string{"a", "b"}, Users: []string{"x", "y"},
			From: time.Date(2026, 10, 25, 2, 30, 0, 0, zone), To: time.Date(2026, 10, 25, 3, 30, 0, 0, zone)},
	} {
		a := Accounting(client(t, map[string]string{"sacct": "exit 0"}))
		if err := a.Accounted(t.Context(), f, func(Accounted) {}); err != nil {
			t.Fatal(err)
		}
		if got := delimiter.ReplaceAllString(calls(t, Client(a)), ""); !strings.HasPrefix(got, all+want+" conf=") {
			t.Errorf("got  %s\nwant %s", got, all+want)
		}
	}
}

// Whatever a comment holds, no record of another job comes out.
func FuzzScanAccounted(f *testing.F) {
	f.Add("carma1:", "gpu")
	f.Add("x\n@@", "@\n99@99")
	f.Fuzz(func(t *testing.T, comment, state string) {
		sep := newSeparator()
		var b strings.Builder
		for range 2 {
			for _, s := range []string{"c", "13", "12_4", "1001", "alice", "gpu", state, "Unknown", comment} {
				b.WriteString(s + string(sep))
			}
			b.WriteByte('\n')
		}
		n := 0
		_, err := sep.scan(strings.NewReader(b.String()), 9, func(row []string) {
			j, ok := parseAccounted(row)
			if n++; !ok || j.JobID != 13 || j.UID != 1001 || j.ArrayJobID != 12 || j.ArrayTask != "4" || j.Comment != comment {
				t.Errorf("%+v of %q", j, row)
			}
		})
		if err != nil || n != 2 {
			t.Errorf("%d jobs, %v", n, err)
		}
	})
}

// MySQL cuts a longer comment without an error, and the records of the job's other nodes would be lost with it.
func TestNoCommentIsCut(t *testing.T) {
	a := Accounting(client(t, map[string]string{"sacctmgr": "exit 0\n"}))
	if err := a.SetComment(t.Context(), "c", 5, strings.Repeat("x", 65535)); err != nil {
		t.Error(err)
	}
	if err := a.SetComment(t.Context(), "c", 5, strings.Repeat("x", 65536)); !errors.Is(err, ErrLong) {
		t.Errorf("65,536 bytes: %v", err)
	}
}
