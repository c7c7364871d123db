// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"strings"
	"testing"

	"carma/gres"
	"carma/slurmbridge/policy"
)

// by is a lease of a user through a daemon.
func by(uid uint32, uuid string, d gres.Daemon) gres.Lease {
	l := held(uuid, 4000)
	l.UID, l.Daemon = uid, d
	return l
}

// Which GPUs a job of user 1000 gets, and the MPS daemon it is sent to.
func TestDaemon(t *testing.T) {
	never := defaults
	never.CrossUser = false
	streams := defaults
	streams.Streams = true
	node := defaults
	node.NodeDaemon = true
	const me, other = 1000, 2000
	for _, c := range []struct {
		name   string
		policy Policy
		t      Thresholds
		leases []gres.Lease
		k      int
		want   string // GPUs > daemon, or the refusal of the first
	}{
		{"one GPU", policy.MAGM, defaults, nil, 1, "a > a"},
		{"one GPU joins", policy.MUG, defaults, []gres.Lease{by(me, "b", "b")}, 1, "b > b"},
		{"several GPUs start a daemon", policy.MAGM, defaults, nil, 2, "a b > a,b"},
		{"in the order of the devices", policy.RoundRobin, defaults, nil, 4, "a b c d > a,b,c,d"},
		{"idle ones before those of a daemon", policy.LUG, defaults, []gres.Lease{by(me, "a", "a,b"), by(me, "b", "a,b")}, 2,
			"c d > c,d"},
		{"those of a daemon if they are to be filled", policy.MUG, defaults,
			[]gres.Lease{by(me, "a", "a,b"), by(me, "b", "a,b")},
			2, "a b > a,b"},
		{"those of a daemon if no others are left", policy.LUG, defaults,
			[]gres.Lease{by(me, "a", "a,b"), by(me, "b", "a,b"), by(me, "c", "c"), by(me, "d", "d")}, 2, "a b > a,b"},
		{"not those of two daemons", policy.LUG, defaults,
			[]gres.Lease{by(me, "a", "a"), by(me, "b", "b"), by(me, "c", "c")}, 2,
			"a: fits, but 2 that one MPS daemon serves are needed"},
		{"not with a GPU that the daemon does not serve", policy.LUG, defaults,
			[]gres.Lease{by(me, "a", "a,b"), by(me, "b", "a,b"), by(me, "c", "c"), by(me, "d", "d")}, 3,
			"a: fits, but 3 that one MPS daemon serves are needed"},
		{"a single GPU of a set", policy.LUG, defaults, []gres.Lease{by(me, "a", "a,b"), by(me, "b", "a,b"), by(me, "c", "c"),
			by(me, "d", "d"), by(me, "d", "d")}, 1, "a > a,b"},
		{"an idle GPU of a set keeps to it", policy.FirstFit, defaults, []gres.Lease{by(me, "b", "a,b")}, 1, "a > a,b"},
		{"two idle GPUs of a set too", policy.FirstFit, defaults, []gres.Lease{by(me, "c", "a,b,c")}, 2, "a b > a,b,c"},
		{"not to another user's", policy.FirstFit, defaults, []gres.Lease{by(other, "b", "a,b")}, 1, "a > a"},
		{"beside another user by turns", policy.FirstFit, defaults, []gres.Lease{by(other, "a", "a"), by(other, "b", "b"),
			by(other, "c", "c"), by(other, "d", "d")}, 1, "a > "},
		{"several beside another user by turns", policy.FirstFit, defaults,
			[]gres.Lease{by(other, "a", "a"), by(other, "b", "b"), by(other, "c", "c")}, 2, "d a > "},
		{"several, never by turns", policy.Carma, never, []gres.Lease{by(other, "a", "a"), by(other, "b", "b"),
			by(other, "c", "c")}, 2, "a: leased to another user"},
		{"carma never by turns", policy.Carma, defaults, []gres.Lease{by(other, "a", "a"), by(other, "b", "b"),
			by(other, "c", "c")}, 2, "a: its jobs and this one would be time-sliced"},
		{"carma joins", policy.Carma, defaults, []gres.Lease{by(me, "a", "a,b"), by(me, "b", "a,b"), by(other, "c", "c"),
			by(other, "d", "d")}, 2, "a b > a,b"},
		{"no MPS", policy.MAGM, streams, []gres.Lease{by(me, "a", ""), by(me, "b", ""), by(me, "c", "")}, 2, "d a > "},
		{"no MPS, carma", policy.Carma, streams,
			[]gres.Lease{by(me, "a", ""), by(me, "b", ""), by(me, "c", ""), by(me, "d", "")},
			1, "a > "},
		{"one daemon for the node", policy.MAGM, node, nil, 1, "a > a,b,c,d"},
		{"which is another user's", policy.MAGM, node, []gres.Lease{by(other, "a", "a,b,c,d")}, 1, "b > b"},
	} {
		in := Input{Readings: []gres.Reading{gpu("a"), gpu("b"), gpu("c"), gpu("d")}, Leases: c.leases,
			Request: shared(c.k, 5000), Thresholds: c.t}
		d := GPUs(c.policy, in)
		got := strings.Join(d.UUIDs, " ") + " > " + string(d.Daemon)
		if d.UUIDs == nil {
			got = d.Refusals[0].UUID + ": " + d.Refusals[0].Reason.String()
		}
		if got != c.want {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}

// What is alone on a GPU, and a MIG instance, needs no daemon.
func TestNoDaemon(t *testing.T) {
	in := Input{Readings: []gres.Reading{gpu("a")}, Request: gres.Request{GPUs: 1, Exclusive: true, UID: 1000},
		Thresholds: defaults}
	if d := GPUs(policy.MAGM, in); d.UUIDs == nil || d.Daemon != "" {
		t.Errorf("exclusive: %+v", d)
	}
	in.Request.Exclusive, in.Readings[0].MIG = false, true
	if d := GPUs(policy.MAGM, in); d.UUIDs == nil || d.Daemon != "" {
		t.Errorf("MIG: %+v", d)
	}
}

func TestCompanies(t *testing.T) {
	never := defaults
	never.CrossUser = false
	readings := []gres.Reading{gpu("a"), gpu("b"), gpu("c"), gpu("d")}
	leases := []gres.Lease{by(1, "a", "a,b"), by(2, "c", "c")}
	for _, c := range []struct {
		name   string
		policy Policy
		t      Thresholds
		want   string
	}{
		{"by turns anybody with anybody", policy.MAGM, defaults, "[[0 1 2 3]]"},
		{"idle, or of one daemon", policy.MAGM, never, "[[1 3] [0 1]]"},
		{"used ones first", policy.MUG, never, "[[0 1] [1 3]]"},
		{"carma", policy.Carma, defaults, "[[1 3] [0 1]]"},
	} {
		if got := fmt.Sprint(ShareableSets(c.policy, readings, leases, c.t)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
