// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
	"carma/slurmbridge/policy"
)

var defaults = Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4, Settle: 30 * time.Second,
	CrossUser: true}

// gpu is an idle A100 with SM activity from GPM.
func gpu(uuid string) gres.Reading {
	return gres.Reading{GPU: gres.GPU{UUID: uuid, TotalMiB: 40536}, Source: figure.SourceGPM}
}

// with changes a reading.
func with(r gres.Reading, f func(*gres.Reading)) gres.Reading { f(&r); return r }

// held is an old lease of user 1000 whose process has been seen.
func held(uuid string, mib int64) gres.Lease {
	return gres.Lease{UUID: uuid, UID: 1000, ReserveMiB: mib, Age: time.Minute, Seen: true, Daemon: gres.Daemon(uuid)}
}

func shared(gpus int, mib int64) gres.Request {
	return gres.Request{GPUs: gpus, ReserveMiB: mib, MarginMiB: 2048, UID: 1000}
}

func TestMAGM(t *testing.T) {
	exclusive := gres.Request{GPUs: 1, Exclusive: true, ReserveMiB: 40536, UID: 1000}
	busy := func(pct float64) gres.Reading {
		return with(gpu("b"), func(r *gres.Reading) { r.UsedMiB, r.SMActPct = 5000, pct })
	}
	for _, c := range []struct {
		name     string
		readings []gres.Reading
		leases   []gres.Lease
		r        gres.Request
		want     string // GPUs, or the refusals
	}{
		{"idle GPUs in order", []gres.Reading{gpu("a"), gpu("b")}, nil, shared(1, 10240), "a"},
		{"most available memory", []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{held("a", 5000), held("b", 4000)},
			shared(1, 10240), "b"},
		{"what was promised counts as used", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 3000 }),
			gpu("b")},
			[]gres.Lease{held("a", 3000), held("b", 30000)}, shared(1, 5000), "a"},
		{"what is used counts though it was not promised", []gres.Reading{busy(10),
			with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 39000 })},
			[]gres.Lease{held("a", 1000), held("b", 5000)}, shared(1, 5000), "b"},
		{"the margin is kept free", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 20000)}, shared(1, 18489),
			"a: 20536 MiB free, 20537 needed"},
		{"to the last MiB", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 20000)}, shared(1, 18488), "a"},
		{"no margin without an estimate", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 20000)},
			gres.Request{GPUs: 1, ReserveMiB: 20536, UID: 1000}, "a"},
		{"an idle GPU takes what fits into all of it", []gres.Reading{gpu("a")}, nil, shared(1, 40000), "a"},
		{"more than it has", []gres.Reading{gpu("a")}, nil, shared(1, 50000), "a: it has 40536 MiB, 50000 needed"},
		{"exclusive wants an idle one", []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{held("a", 1000)}, exclusive, "b"},
		{"exclusive finds none", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 1000)}, exclusive, "a: not idle"},
		{"exclusive by the size in carma.toml", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.TotalMiB = 40503 })},
			nil, exclusive, "a"},
		{"exclusive, but too small a GPU", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.TotalMiB = 24564 })}, nil,
			exclusive, "a: it has 24564 MiB, 40536 needed"},
		{"exclusive is left alone", []gres.Reading{gpu("a")}, []gres.Lease{{UUID: "a", UID: 1000, Exclusive: true,
			ReserveMiB: 40536, Seen: true}}, shared(1, 1000), "a: leased exclusively"},
		{"memory that nobody owns", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 1025 })}, nil,
			exclusive, "a: not idle"},
		{"the driver's own memory", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 1024 })}, nil,
			exclusive, "a"},
		{"SM activity at the threshold", []gres.Reading{busy(80)}, []gres.Lease{held("b", 5000)}, shared(1, 1000), "b"},
		{"SM activity above it", []gres.Reading{busy(80.5)}, []gres.Lease{held("b", 5000)}, shared(1, 1000),
			"b: SM activity 80.5 % above 80 %"},
		{"coarse SM activity", []gres.Reading{with(busy(90), func(r *gres.Reading) { r.Source = figure.SourceUtilisation })},
			[]gres.Lease{held("b", 5000)}, shared(1, 1000), "b"},
		{"coarse SM activity above its threshold", []gres.Reading{with(busy(96),
			func(r *gres.Reading) { r.Source = figure.SourceUtilisation })}, []gres.Lease{held("b", 5000)}, shared(1, 1000),
			"b: SM activity 96.0 % above 95 %"},
		{"SM activity of a job that has gone", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.SMActPct = 99 })},
			nil, shared(1, 1000), "a"},
		{"SM activity not measured", []gres.Reading{busy(math.NaN())}, []gres.Lease{held("b", 5000)}, shared(1, 1000),
			"b: SM activity is not known"},
		{"at most so many jobs", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 1), held("a", 1), held("a", 1),
			held("a", 1)}, shared(1, 1000), "a: 4 jobs share it already"},
		{"a newcomer settles", []gres.Reading{gpu("a")}, []gres.Lease{{UUID: "a", UID: 1000, ReserveMiB: 1000,
			Age: 29 * time.Second}}, shared(1, 1000), "a: a new job has not settled yet"},
		{"a newcomer that never shows itself", []gres.Reading{gpu("a")},
			[]gres.Lease{{UUID: "a", UID: 1000, ReserveMiB: 1000, Age: 30 * time.Second}}, shared(1, 1000), "a"},
		{"a process of no job", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.Foreign = 1 })}, nil,
			shared(1, 1000), "a: 1 process that belongs to no job"},
		{"a GPU that cannot be read", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.Unreadable = "GPU is lost" }),
			gpu("b")}, nil, shared(1, 1000), "b"},
		{"another user's GPU comes last", []gres.Reading{gpu("a"), gpu("b")},
			[]gres.Lease{{UUID: "a", UID: 2000, ReserveMiB: 1000, Seen: true}, held("b", 20000)}, shared(1, 1000), "b"},
		{"another user's GPU rather than none", []gres.Reading{gpu("a")},
			[]gres.Lease{{UUID: "a", UID: 2000, ReserveMiB: 1000, Seen: true}}, shared(1, 1000), "a"},
		{"two GPUs", []gres.Reading{gpu("a"), gpu("b"), gpu("c")}, []gres.Lease{held("a", 1000)}, shared(2, 9000), "b c"},
		{"two GPUs or none", []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{held("a", 39000)}, shared(2, 9000),
			"a: 1536 MiB free, 11048 needed; b: fits, but 2 are needed at once"},
		{"no GPU at all", nil, nil, shared(1, 1), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := GPUs(policy.MAGM, Input{Readings: c.readings, Leases: c.leases, Request: c.r, Thresholds: defaults})
			got := strings.Join(d.UUIDs, " ")
			if d.UUIDs == nil {
				var why []string
				for _, r := range d.Refusals {
					why = append(why, r.UUID+": "+r.Reason.String())
				}
				got = strings.Join(why, "; ")
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestMAGMOtherUsersNever(t *testing.T) {
	never := defaults
	never.CrossUser = false
	d := GPUs(policy.MAGM, Input{Readings: []gres.Reading{gpu("a")}, Leases: []gres.Lease{{UUID: "a", UID: 2000,
		ReserveMiB: 1000, Seen: true}}, Request: shared(1, 1000), Thresholds: never})
	if d.UUIDs != nil || len(d.Refusals) != 1 || d.Refusals[0].Reason.String() != "leased to another user" {
		t.Errorf("got %+v", d)
	}
}

func TestPlaceable(t *testing.T) {
	for _, c := range []struct {
		name   string
		r      gres.Reading
		leases []gres.Lease
		want   string
	}{
		{"idle", gpu("a"), nil, "40536 "},
		{"shared", gpu("a"), []gres.Lease{held("a", 10000)}, "28488 "},
		{"used more than promised", with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 20000 }),
			[]gres.Lease{held("a", 10000)}, "18488 "},
		{"full", gpu("a"), []gres.Lease{held("a", 39000)}, "0 no memory free"},
		{"closed", with(gpu("a"), func(r *gres.Reading) { r.Foreign = 2 }), nil, "0 2 processes that belong to no job"},
		{"kept for a job", with(gpu("a"), func(r *gres.Reading) { r.HeldFor = 7 }), nil, "0 held for job 7"},
		{"kept for a job that can start", with(gpu("a"), func(r *gres.Reading) { r.HeldFor, r.HeldOpen = 7, true }), nil,
			"40536 "},
		{"leases elsewhere", gpu("a"), []gres.Lease{held("b", 10000)}, "40536 "},
	} {
		mib, why := Placeable(c.r, c.leases, defaults)
		if got := fmt.Sprint(mib, " ", why); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// A node that gives idle GPUs alone offers no others.
func TestOffer(t *testing.T) {
	for _, c := range []struct {
		policy Policy
		leases []gres.Lease
		want   int64
	}{
		{policy.Exclusive, nil, 40536},
		{policy.Exclusive, []gres.Lease{held("a", 10000)}, 0},
		{policy.MAGM, []gres.Lease{held("a", 10000)}, 28488},
	} {
		mib, _ := Offer(c.policy == policy.Exclusive, gpu("a"), c.leases, defaults)
		fits := GPUs(c.policy, Input{Readings: []gres.Reading{gpu("a")}, Leases: c.leases,
			Request: shared(1, max(mib, 1000)), Thresholds: defaults}).UUIDs != nil
		if mib != c.want || fits != (mib > 0) {
			t.Errorf("%s, %d leases: offers %d, fits %v", c.policy, len(c.leases), mib, fits)
		}
	}
}

// Every GPU that a request is refused is closed in the counts, or has too little memory
// there, or the request waits for idle GPUs after some returns to the queue.
func TestUncounted(t *testing.T) {
	other := held("a", 10000)
	other.UID = 2000
	never, bounded := defaults, defaults
	never.CrossUser = false
	bounded.MaxSlowdown = 1.1
	active := held("a", 10000)
	active.SMActPct = 60
	many := func(uuid string, d gres.Daemon) gres.Lease {
		l := held(uuid, 10000)
		l.Daemon = d
		return l
	}
	alone := gres.Request{GPUs: 1, Exclusive: true, ReserveMiB: 20000, UID: held("a", 0).UID}
	busy := shared(1, 1000)
	busy.SMActPct = 50
	for _, c := range []struct {
		name     string
		p        Policy
		readings []gres.Reading
		leases   []gres.Lease
		r        gres.Request
		t        Thresholds
		want     bool
	}{
		{"another user", policy.MAGM, []gres.Reading{gpu("a")}, []gres.Lease{other}, shared(1, 1000), never, true},
		{"by turns", policy.Carma, []gres.Reading{gpu("a")}, []gres.Lease{other}, shared(1, 1000), defaults, true},
		{"alone, booked by a smaller GPU", policy.MAGM, []gres.Reading{gpu("a")}, []gres.Lease{held("a", 10000)}, alone,
			defaults,
			true},
		{"a bound on slowdown", policy.MAGM, []gres.Reading{gpu("a")}, []gres.Lease{active}, busy, bounded, true},
		{"two daemons", policy.Carma, []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{many("a", "a"), many("b", "b")},
			shared(2, 1000), defaults, true},
		{"full", policy.MAGM, []gres.Reading{gpu("a")}, []gres.Lease{held("a", 39000)}, shared(1, 10000), defaults, false},
		{"faulty", policy.MAGM, []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.Quarantined = "fault" })}, nil,
			shared(1, 1000), defaults, false},
	} {
		d := GPUs(c.p, Input{Readings: c.readings, Leases: c.leases, Request: c.r, Thresholds: c.t})
		if d.UUIDs != nil || d.Uncounted() != c.want {
			t.Errorf("%s: %+v, uncounted %v", c.name, d, d.Uncounted())
		}
	}
}

// What is published as free fits, and one MiB more does not: slurmctld and the
// Prolog must agree.
func TestPlaceableAgreesWithChoice(t *testing.T) {
	for used := int64(0); used < 40000; used += 1777 {
		for booked := int64(0); booked < 40000; booked += 1999 {
			r := with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = used })
			leases := []gres.Lease{held("a", booked)}
			mib, _ := Placeable(r, leases, defaults)
			takes := func(mib int64) bool {
				return GPUs(policy.MAGM, Input{Readings: []gres.Reading{r}, Leases: leases, Request: shared(1, mib),
					Thresholds: defaults}).UUIDs != nil
			}
			if mib > 0 && !takes(mib) {
				t.Fatalf("used %d, booked %d: %d MiB published do not fit", used, booked, mib)
			}
			if takes(mib + 1) {
				t.Fatalf("used %d, booked %d: more fits than the %d MiB published", used, booked, mib)
			}
		}
	}
}

// Whoever is not the owner is refused, and the owner is not: what is published for
// the one part of the users and not for the others must be so on the node.
func TestOwnerAgreesWithChoice(t *testing.T) {
	of := func(uid uint32) gres.Lease {
		l := held("a", 10000)
		l.UID = uid
		return l
	}
	for _, c := range []struct {
		name      string
		policy    Policy
		leases    []gres.Lease
		crossUser bool
		heldFor   uint32 // of user 7
		own       bool
	}{
		{"idle", policy.MAGM, nil, false, 0, false},
		{"leases elsewhere", policy.MAGM, []gres.Lease{held("b", 10000)}, false, 0, false},
		{"one user's", policy.MAGM, []gres.Lease{of(7), of(7)}, false, 0, true},
		{"by turns", policy.MAGM, []gres.Lease{of(7)}, true, 0, false},
		{"never by turns", policy.Carma, []gres.Lease{of(7)}, true, 0, true},
		{"kept for a job", policy.MAGM, nil, true, 5, true},
	} {
		th := defaults
		th.CrossUser = c.crossUser
		a := gpu("a")
		if a.HeldFor = c.heldFor; c.heldFor != 0 {
			a.HeldUID, a.HeldOpen = 7, true
		}
		uid, own := Owner(c.policy, a, c.leases, th)
		if own != c.own || own && uid != 7 {
			t.Errorf("%s: user %d, own %v", c.name, uid, own)
		}
		for _, user := range []uint32{7, 8} {
			r := shared(1, 1000)
			if r.UID = user; user == 7 {
				r.JobID = c.heldFor
			}
			takes := GPUs(c.policy, Input{Readings: []gres.Reading{a}, Leases: c.leases, Request: r,
				Thresholds: th}).UUIDs != nil
			if want := !own || user == uid; takes != want {
				t.Errorf("%s: takes user %d's job: %v", c.name, user, takes)
			}
		}
	}
}

// Each policy has a situation in which it, and only it, takes this GPU.
func TestPolicies(t *testing.T) {
	readings := []gres.Reading{
		with(gpu("first"), func(r *gres.Reading) { r.SMActPct = 40 }),
		with(gpu("tight"), func(r *gres.Reading) { r.SMActPct = 50 }),
		with(gpu("busy"), func(r *gres.Reading) { r.SMActPct = 70 }),
		with(gpu("quiet"), func(r *gres.Reading) { r.SMActPct = 10 }),
		with(gpu("roomy"), func(r *gres.Reading) { r.SMActPct = 60 }),
		with(gpu("turn"), func(r *gres.Reading) { r.SMActPct = 30 }),
		with(gpu("idle"), func(r *gres.Reading) { r.TotalMiB = 24000 }),
		with(gpu("hot"), func(r *gres.Reading) { r.SMActPct = 90 }),
	}
	leases := []gres.Lease{
		held("first", 10000), held("tight", 20000), held("busy", 12000), held("quiet", 11000), held("roomy", 1000),
		held("turn", 13000), held("hot", 100),
	}
	for p, want := range map[Policy]string{
		policy.MAGM: "roomy", policy.LUG: "idle", policy.MUG: "busy", policy.RoundRobin: "turn", policy.Exclusive: "idle",
		policy.FirstFit: "first", policy.BestFit: "tight",
	} {
		in := Input{Readings: readings, Leases: leases, Request: shared(1, 5000), Thresholds: defaults, Last: "roomy"}
		if d := GPUs(p, in); len(d.UUIDs) != 1 || d.UUIDs[0] != want {
			t.Errorf("%s takes %v, want %s", p, d.UUIDs, want)
		}
	}
	// Without the idle one, LUG takes the quietest.
	in := Input{Readings: readings[:6], Leases: leases, Request: shared(1, 5000), Thresholds: defaults}
	if d := GPUs(policy.LUG, in); d.UUIDs[0] != "quiet" {
		t.Errorf("lug takes %v", d.UUIDs)
	}
	if d := GPUs(policy.Exclusive, in); d.UUIDs != nil {
		t.Errorf("exclusive takes %v", d.UUIDs)
	}
}

// Carma takes the least utilised GPU on which all jobs are clients of one MPS
// server.
func TestCarmaNeverByTurns(t *testing.T) {
	readings := []gres.Reading{
		with(gpu("busy"), func(r *gres.Reading) { r.SMActPct = 70 }),
		with(gpu("calm"), func(r *gres.Reading) { r.SMActPct = 40 }),
		with(gpu("other"), func(r *gres.Reading) { r.SMActPct = 10 }),
		with(gpu("turns"), func(r *gres.Reading) { r.SMActPct = 10 }),
	}
	other, turns := held("other", 1000), held("turns", 1000)
	other.UID, turns.Daemon = 2000, ""
	leases := []gres.Lease{held("busy", 1000), held("calm", 1000), other, turns}
	d := GPUs(policy.Carma, Input{Readings: readings, Leases: leases, Request: shared(1, 5000), Thresholds: defaults})
	if strings.Join(d.UUIDs, " ") != "calm" {
		t.Errorf("takes %v", d.UUIDs)
	}
	for _, r := range d.Refusals {
		if got := r.Reason.String(); got != "its jobs and this one would be time-sliced" {
			t.Errorf("%s: %s", r.UUID, got)
		}
	}
	in := Input{Readings: append(readings, gpu("idle")), Leases: leases, Request: shared(2, 5000), Thresholds: defaults}
	if d := GPUs(policy.Carma, in); d.UUIDs != nil {
		t.Errorf("two GPUs: %v", d.UUIDs)
	}
	in.Readings = append(in.Readings, gpu("idle2"))
	if d := GPUs(policy.Carma, in); strings.Join(d.UUIDs, " ") != "idle idle2" {
		t.Errorf("two idle GPUs: %v", d.UUIDs)
	}
}

// Five jobs on four GPUs (after figures 6.3 and 6.4 of the thesis): exclusive
// gives each a GPU and the fifth waits; MUG fills one GPU and leaves the others
// off.
func TestExclusiveAgainstMUG(t *testing.T) {
	for p, want := range map[Policy]string{policy.Exclusive: "a b c d -", policy.MUG: "a a a a b"} {
		var leases []gres.Lease
		var got []string
		for range 5 {
			r := []gres.Reading{gpu("a"), gpu("b"), gpu("c"), gpu("d")}
			for i := range r {
				for _, l := range leases {
					if l.UUID == r[i].UUID {
						r[i].SMActPct = 15 * float64(len(leases))
					}
				}
			}
			d := GPUs(p, Input{Readings: r, Leases: leases, Request: shared(1, 8000), Thresholds: defaults})
			if d.UUIDs == nil {
				got = append(got, "-")
				continue
			}
			got = append(got, d.UUIDs[0])
			leases = append(leases, held(d.UUIDs[0], 8000))
		}
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%s: %s, want %s", p, g, want)
		}
	}
}

func TestRoundRobinGoesAround(t *testing.T) {
	in := Input{Readings: []gres.Reading{gpu("a"), gpu("b"), gpu("c")}, Request: shared(1, 1000), Thresholds: defaults}
	var got []string
	for range 7 {
		in.Last = GPUs(policy.RoundRobin, in).UUIDs[0]
		got = append(got, in.Last)
	}
	if g := strings.Join(got, ""); g != "abcabca" {
		t.Errorf("got %s", g)
	}
	in.Last, in.Request.GPUs = "b", 2
	if d := GPUs(policy.RoundRobin, in); strings.Join(d.UUIDs, "") != "ca" {
		t.Errorf("two GPUs after b: %v", d.UUIDs)
	}
	in.Last = "gone"
	if d := GPUs(policy.RoundRobin, in); strings.Join(d.UUIDs, "") != "ab" {
		t.Errorf("after a GPU that is gone: %v", d.UUIDs)
	}
}

// GPUs of one job are near each other where NVML tells.
func TestNearness(t *testing.T) {
	at := func(uuid string, index, numa int, nvlink uint64) gres.Reading {
		return with(gpu(uuid), func(r *gres.Reading) { r.Index, r.NUMA, r.NVLink = index, numa, nvlink })
	}
	for _, c := range []struct {
		name     string
		readings []gres.Reading
		leases   []gres.Lease
		k        int
		want     string
	}{
		{"NUMA", []gres.Reading{at("a", 0, 0, 0), at("b", 1, 1, 0), at("c", 2, 0, 0), at("d", 3, 1, 0)}, nil, 2, "ac"},
		{"NVLink before NUMA", []gres.Reading{at("a", 0, 0, 1<<3), at("b", 1, 0, 1<<2), at("c", 2, 1, 1<<1),
			at("d", 3, 1, 1<<0)}, nil, 2, "ad"},
		{"NVLink that one end tells", []gres.Reading{at("a", 0, 0, 1<<3), at("b", 1, 0, 0), at("c", 2, 1, 0),
			at("d", 3, 1, 0)}, nil, 2, "ad"},
		{"NVLink that the other end tells", []gres.Reading{at("a", 0, 0, 0), at("b", 1, 0, 0), at("c", 2, 1, 0),
			at("d", 3, 1, 1<<0)}, nil, 2, "ad"},
		{"after the policy's first", []gres.Reading{at("a", 0, 0, 0), at("b", 1, 1, 0), at("c", 2, 0, 0), at("d", 3, 1, 0)},
			[]gres.Lease{held("a", 100)}, 2, "bd"},
		{"not known", []gres.Reading{at("a", 0, -1, 0), at("b", 1, -1, 0), at("c", 2, -1, 0)},
			[]gres.Lease{by(1000, "a", "a,b"), by(1000, "b", "a,b"), by(1000, "b", "a,b"), by(1000, "c", "c")}, 2, "ab"},
	} {
		in := Input{Readings: c.readings, Leases: c.leases, Request: shared(c.k, 1000), Thresholds: defaults}
		d := GPUs(policy.MAGM, in)
		if g := strings.Join(d.UUIDs, ""); g != c.want {
			t.Errorf("%s: %s, want %s", c.name, g, c.want)
		}
	}
}

func TestGates(t *testing.T) {
	busy := func(f func(*gres.Reading)) gres.Reading {
		return with(gpu("a"), func(r *gres.Reading) { r.SMActPct = 10; f(r) })
	}
	one := []gres.Lease{held("a", 1000)}
	for _, c := range []struct {
		name   string
		r      gres.Reading
		leases []gres.Lease
		want   string
	}{
		{"open", busy(func(*gres.Reading) {}), one, ""},
		{"activity not known", busy(func(r *gres.Reading) { r.SMActPct = math.NaN() }), one, "SM activity is not known"},
		{"coarse activity not known", busy(func(r *gres.Reading) {
			r.SMActPct, r.Source = math.NaN(),
				figure.SourceUtilisation
		}), one,
			"SM activity is not known"},
		{"not known and idle", busy(func(r *gres.Reading) { r.SMActPct = math.NaN() }), nil, ""},
		{"quarantined", busy(func(r *gres.Reading) { r.Quarantined = "MPS server in FAULT" }), nil, "MPS server in FAULT"},
		{"kept for another", busy(func(r *gres.Reading) { r.HeldFor = 77 }), nil, "held for job 77"},
		{"kept for this one", busy(func(r *gres.Reading) { r.HeldFor = 5 }), nil, ""},
		{"clients of the MPS server", busy(func(r *gres.Reading) { r.MPSClients = 48 }), one,
			"its MPS server has 48 clients"},
		{"MIG instance", busy(func(r *gres.Reading) { r.MIG = true }), nil, ""},
		{"MIG instance in use", busy(func(r *gres.Reading) { r.MIG = true }), one, "MIG instance in use"},
	} {
		r := shared(1, 5000)
		r.JobID = 5
		d := GPUs(policy.MAGM, Input{Readings: []gres.Reading{c.r}, Leases: c.leases, Request: r, Thresholds: defaults})
		got := ""
		if d.UUIDs == nil {
			got = d.Refusals[0].Reason.String()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestReasonsHaveWords(t *testing.T) {
	for c := unreadable; c <= noMemory; c++ {
		if (Reason{code: c, text: "x"}).String() == "" {
			t.Errorf("reason %d has no words", c)
		}
	}
	if (Reason{}).String() != "" {
		t.Error("no reason has words")
	}
}

func BenchmarkGPUs(b *testing.B) {
	for _, size := range []struct{ gpus, leases int }{{8, 8}, {64, 16}} {
		var readings []gres.Reading
		var leases []gres.Lease
		for g := range size.gpus {
			uuid := fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", g)
			readings = append(readings, with(gpu(uuid), func(r *gres.Reading) { r.Index, r.SMActPct = g, 20 }))
			for range size.leases {
				l := held(strings.Clone(uuid), int64(100+g))
				leases = append(leases, l)
			}
		}
		t := defaults
		t.MaxJobs = 48
		for _, name := range policy.Placements() {
			p := Policy(name)
			b.Run(fmt.Sprintf("%dx%d/%s", size.gpus, size.leases, p), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if GPUs(p, Input{Readings: readings, Leases: leases, Request: shared(1, 1000), Thresholds: t}).UUIDs == nil {
						b.Fatal("none fits")
					}
				}
			})
		}
	}
}
