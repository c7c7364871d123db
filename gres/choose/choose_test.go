// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"carma/gres"
)

var defaults = Thresholds{SMActMaxPct: 80, CoarseMaxPct: 95, MarginMiB: 2048, MaxJobs: 4, Settle: 30 * time.Second, CrossUser: true}

// gpu is an idle A100 with SM activity from GPM.
func gpu(uuid string) gres.Reading {
	return gres.Reading{GPU: gres.GPU{UUID: uuid, TotalMiB: 40536}, SMActPct: math.NaN(), Source: gres.SourceGPM}
}

// with changes a reading.
func with(r gres.Reading, f func(*gres.Reading)) gres.Reading { f(&r); return r }

// held is an old lease of user 1000 whose process has been seen.
func held(uuid string, mib int64) gres.Lease {
	return gres.Lease{UUID: uuid, UID: 1000, ReserveMiB: mib, Age: time.Minute, Seen: true, MPS: true}
}

func shared(gpus int, mib int64) gres.Request {
	return gres.Request{GPUs: gpus, ReserveMiB: mib, HasEstimate: true, UID: 1000}
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
		{"most available memory", []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{held("a", 5000), held("b", 4000)}, shared(1, 10240), "b"},
		{"what was promised counts as used", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 3000 }), gpu("b")},
			[]gres.Lease{held("a", 3000), held("b", 30000)}, shared(1, 5000), "a"},
		{"what is used counts though it was not promised", []gres.Reading{busy(10), with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 39000 })},
			[]gres.Lease{held("a", 1000), held("b", 5000)}, shared(1, 5000), "b"},
		{"the margin is kept free", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 20000)}, shared(1, 18489), "a: 20536 MiB free, 20537 needed"},
		{"to the last MiB", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 20000)}, shared(1, 18488), "a"},
		{"no margin without an estimate", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 20000)}, gres.Request{GPUs: 1, ReserveMiB: 20536, UID: 1000}, "a"},
		{"an idle GPU takes what fits into all of it", []gres.Reading{gpu("a")}, nil, shared(1, 40000), "a"},
		{"more than it has", []gres.Reading{gpu("a")}, nil, shared(1, 50000), "a: it has 40536 MiB, 50000 needed"},
		{"exclusive wants an idle one", []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{held("a", 1000)}, exclusive, "b"},
		{"exclusive finds none", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 1000)}, exclusive, "a: not idle"},
		{"exclusive by the size in carma.toml", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.TotalMiB = 40503 })}, nil, exclusive, "a"},
		{"exclusive, but too small a GPU", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.TotalMiB = 24564 })}, nil, exclusive, "a: it has 24564 MiB, 40536 needed"},
		{"exclusive is left alone", []gres.Reading{gpu("a")}, []gres.Lease{{UUID: "a", UID: 1000, Exclusive: true, ReserveMiB: 40536, Seen: true}}, shared(1, 1000), "a: held exclusively"},
		{"memory that nobody owns", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 1025 })}, nil, exclusive, "a: not idle"},
		{"the driver's own memory", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 1024 })}, nil, exclusive, "a"},
		{"SM activity at the threshold", []gres.Reading{busy(80)}, []gres.Lease{held("b", 5000)}, shared(1, 1000), "b"},
		{"SM activity above it", []gres.Reading{busy(80.5)}, []gres.Lease{held("b", 5000)}, shared(1, 1000), "b: SM activity 80.5 % above 80 %"},
		{"coarse SM activity", []gres.Reading{with(busy(90), func(r *gres.Reading) { r.Source = gres.SourceUtilisation })}, []gres.Lease{held("b", 5000)}, shared(1, 1000), "b"},
		{"coarse SM activity above its threshold", []gres.Reading{with(busy(96), func(r *gres.Reading) { r.Source = gres.SourceUtilisation })}, []gres.Lease{held("b", 5000)}, shared(1, 1000), "b: SM activity 96.0 % above 95 %"},
		{"SM activity of a job that has gone", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.SMActPct = 99 })}, nil, shared(1, 1000), "a"},
		{"SM activity not measured", []gres.Reading{busy(math.NaN())}, []gres.Lease{held("b", 5000)}, shared(1, 1000), "b"},
		{"at most so many jobs", []gres.Reading{gpu("a")}, []gres.Lease{held("a", 1), held("a", 1), held("a", 1), held("a", 1)}, shared(1, 1000), "a: 4 jobs share it already"},
		{"a newcomer settles", []gres.Reading{gpu("a")}, []gres.Lease{{UUID: "a", UID: 1000, ReserveMiB: 1000, Age: 29 * time.Second}}, shared(1, 1000), "a: a new job has not shown itself yet"},
		{"a newcomer that never shows itself", []gres.Reading{gpu("a")}, []gres.Lease{{UUID: "a", UID: 1000, ReserveMiB: 1000, Age: 30 * time.Second}}, shared(1, 1000), "a"},
		{"a process of no job", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.Foreign = 1 })}, nil, shared(1, 1000), "a: 1 process of no job"},
		{"a GPU that cannot be read", []gres.Reading{with(gpu("a"), func(r *gres.Reading) { r.Unreadable = "GPU is lost" }), gpu("b")}, nil, shared(1, 1000), "b"},
		{"another user's GPU comes last", []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{{UUID: "a", UID: 2000, ReserveMiB: 1000, Seen: true}, held("b", 20000)}, shared(1, 1000), "b"},
		{"another user's GPU rather than none", []gres.Reading{gpu("a")}, []gres.Lease{{UUID: "a", UID: 2000, ReserveMiB: 1000, Seen: true}}, shared(1, 1000), "a"},
		{"two GPUs", []gres.Reading{gpu("a"), gpu("b"), gpu("c")}, []gres.Lease{held("a", 1000)}, shared(2, 9000), "b c"},
		{"two GPUs or none", []gres.Reading{gpu("a"), gpu("b")}, []gres.Lease{held("a", 39000)}, shared(2, 9000), "a: 1536 MiB free, 11048 needed; b: fits, but 2 are needed at once"},
		{"no GPU at all", nil, nil, shared(1, 1), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := MAGM(c.readings, c.leases, c.r, defaults)
			got := strings.Join(d.UUIDs, " ")
			if d.UUIDs == nil {
				var why []string
				for _, r := range d.Refusals {
					why = append(why, r.UUID+": "+r.Reason)
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
	d := MAGM([]gres.Reading{gpu("a")}, []gres.Lease{{UUID: "a", UID: 2000, ReserveMiB: 1000, Seen: true}}, shared(1, 1000), never)
	if d.UUIDs != nil || !reflect.DeepEqual(d.Refusals, []Refusal{{"a", "held by another user"}}) {
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
		{"used more than promised", with(gpu("a"), func(r *gres.Reading) { r.UsedMiB = 20000 }), []gres.Lease{held("a", 10000)}, "18488 "},
		{"full", gpu("a"), []gres.Lease{held("a", 39000)}, "0 no memory free"},
		{"closed", with(gpu("a"), func(r *gres.Reading) { r.Foreign = 2 }), nil, "0 2 processes of no job"},
		{"leases elsewhere", gpu("a"), []gres.Lease{held("b", 10000)}, "40536 "},
	} {
		mib, why := Placeable(c.r, c.leases, defaults)
		if got := fmt.Sprint(mib, " ", why); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
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
			if mib > 0 && MAGM([]gres.Reading{r}, leases, shared(1, mib), defaults).UUIDs == nil {
				t.Fatalf("used %d, booked %d: %d MiB published do not fit", used, booked, mib)
			}
			if MAGM([]gres.Reading{r}, leases, shared(1, mib+1), defaults).UUIDs != nil {
				t.Fatalf("used %d, booked %d: more fits than the %d MiB published", used, booked, mib)
			}
		}
	}
}

func BenchmarkMAGM(b *testing.B) {
	for _, size := range []struct{ gpus, leases int }{{8, 8}, {64, 16}} {
		b.Run(fmt.Sprintf("%dx%d", size.gpus, size.leases), func(b *testing.B) {
			var readings []gres.Reading
			var leases []gres.Lease
			for g := range size.gpus {
				uuid := fmt.Sprintf("GPU-%032d", g)
				readings = append(readings, gpu(uuid))
				for range size.leases {
					leases = append(leases, held(uuid, int64(100+g)))
				}
			}
			t := defaults
			t.MaxJobs = 48
			b.ReportAllocs()
			for b.Loop() {
				if MAGM(readings, leases, shared(1, 1000), t).UUIDs == nil {
					b.Fatal("none fits")
				}
			}
		})
	}
}
