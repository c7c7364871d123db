// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/slurmbridge/policy"
)

func TestSoonest(t *testing.T) {
	const me, other = 1000, 2000
	shut := func(uuid string, change func(*gres.Reading)) gres.Reading {
		r := gpu(uuid)
		change(&r)
		return r
	}
	readings := []gres.Reading{gpu("a"), gpu("b"), gpu("c"), gpu("d"),
		shut("lost", func(r *gres.Reading) { r.Unreadable = "x" }),
		shut("bad", func(r *gres.Reading) { r.Quarantined = "x" }),
		shut("kept", func(r *gres.Reading) { r.HeldFor = 9 }), shut("mig", func(r *gres.Reading) { r.MIG = true }),
		shut("small", func(r *gres.Reading) { r.TotalMiB = 1000 })}
	on := func(uuid string, uid uint32, mib int64, minutes int, d gres.Daemon) gres.Lease {
		return gres.Lease{UUID: uuid, UID: uid, ReserveMiB: mib, Age: time.Duration(minutes) * time.Minute, Daemon: d}
	}
	alone := on("a", me, 40000, 50, "")
	alone.Exclusive = true
	whole := gres.Request{UID: me, GPUs: 1, Exclusive: true, ReserveMiB: 40000}
	all := whole
	all.GPUs = 5
	for _, c := range []struct {
		name   string
		leases []gres.Lease
		r      gres.Request
		want   string
	}{
		{"a whole GPU where carma.toml says a little more", nil, gres.Request{GPUs: 1, Exclusive: true, ReserveMiB: 40960},
			"a"},
		{"idle GPUs in order", nil, shared(2, 20000), "a b"},
		{"an idle one for a whole GPU", []gres.Lease{on("a", me, 1, 50, "a"), on("b", me, 1, 60, "b"),
			on("c", me, 1, 70, "c")}, whole, "d"},
		{"else that with the fewest jobs", []gres.Lease{on("a", me, 1, 90, "a"), on("a", me, 1, 90, "a"),
			on("b", me, 1, 60, "b"), on("c", me, 1, 70, "c"), on("c", me, 1, 70, "c"), on("d", me, 1, 10, "d")}, whole, "b"},
		{"more than there are", nil, all, ""},
		{"where the user's jobs leave room", []gres.Lease{on("a", me, 30000, 90, "a"), on("b", me, 10000, 1, "b"),
			on("c", other, 10000, 90, "c"), on("d", me, 30000, 90, "d")}, shared(1, 20000), "b"},
		{"where the user's oldest ends", []gres.Lease{on("a", me, 30000, 9, "a"), on("b", me, 20000, 50, "b"),
			on("b", me, 15000, 1, "b"), on("c", other, 1, 90, "c"), on("c", other, 1, 90, "c"), on("d", me, 30000, 8, "d")},
			shared(1, 20000), "b"},
		{"not beside one who is alone", []gres.Lease{alone, on("b", me, 30000, 60, "b"), on("c", me, 30000, 40, "c"),
			on("d", me, 30000, 40, "d")}, shared(1, 20000), "b"},
		{"as many jobs as may share", []gres.Lease{on("a", me, 1, 1, "a"), on("a", me, 1, 1, "a"), on("a", me, 1, 1, "a"),
			on("a", me, 1, 1, "a"), on("b", me, 1, 1, "b"), on("c", other, 1, 1, "c"), on("d", other, 1, 1, "d")},
			shared(1, 20000), "b"},
		{"several: none of other daemons", []gres.Lease{on("a", me, 1, 9, "a"), on("b", me, 1, 8, "b"),
			on("c", me, 1, 7, "c"), on("d", me, 1, 6, "d")}, shared(2, 20000), "a b"},
		{"several: of one daemon of the user", []gres.Lease{on("a", me, 1, 9, "a"), on("b", me, 1, 8, "b"),
			on("c", me, 1, 7, "c,d"), on("d", me, 1, 6, "c,d")}, shared(2, 20000), "c d"},
		{"several: not of another user's", []gres.Lease{on("a", me, 1, 9, "a"), on("b", me, 1, 8, "b"),
			on("c", other, 1, 7, "c,d"), on("d", other, 1, 6, "c,d")}, shared(2, 20000), "a b"},
		{"several: a daemon of too few", []gres.Lease{on("a", me, 1, 9, "a"), on("b", me, 1, 8, "b"),
			on("c", me, 1, 7, "c,d"), on("d", me, 1, 6, "c,d")}, shared(3, 20000), "a b c"},
		{"several: alone", []gres.Lease{on("c", me, 1, 7, "c,d"), on("d", me, 1, 6, "c,d")},
			gres.Request{GPUs: 3, Exclusive: true, ReserveMiB: 40000}, "a b c"},
	} {
		c.r.UID = me
		th := defaults
		th.CrossUser = false
		if got := strings.Join(Soonest(policy.MAGM, readings, c.leases, c.r, th), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	// Before a gate opens, and where a GPU is used for more than is booked, somebody has
	// to go. Where users may take turns, and the policy lets them, another's job may.
	r := shared(1, 20000)
	leases := []gres.Lease{on("a", me, 10000, 1, "a"), on("b", me, 30000, 90, "b"), on("c", other, 10000, 1, "c"),
		on("d", me, 30000, 80, "d")}
	for _, c := range []struct {
		name      string
		policy    Policy
		crossUser bool
		change    func(*gres.Reading) // of a
		want      string
	}{
		{"room", policy.MAGM, false, func(*gres.Reading) {}, "a"},
		{"busy", policy.MAGM, false, func(r *gres.Reading) { r.SMActPct = 97 }, "b"},
		{"uses more than it booked", policy.MAGM, false, func(r *gres.Reading) { r.UsedMiB = 35000 }, "b"},
		{"a step short of the room", policy.MAGM, false,
			func(r *gres.Reading) { r.UsedMiB = 40536 - 20000 - 2048 - 100 }, "b"},
		{"nobody shares", policy.Exclusive, false, func(*gres.Reading) {}, "b"},
		{"by turns", policy.MAGM, true, func(r *gres.Reading) { r.SMActPct = 97 }, "c"},
		{"never by turns", policy.Carma, true, func(r *gres.Reading) { r.SMActPct = 97 }, "b"},
	} {
		th := defaults
		th.CrossUser = c.crossUser
		with := slices.Clone(readings)
		c.change(&with[0])
		if got := strings.Join(Soonest(c.policy, with, leases, r, th), " "); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
