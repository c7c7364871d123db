// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"carma/db/figure"
	"carma/db/texttable"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/status"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

func exampleNode() status.Node {
	gpu := func(i int, used int64, smact float64) gres.Reading {
		return gres.Reading{GPU: gres.GPU{UUID: "GPU-" + strings.Repeat(string(rune('a'+i)), 8) + "-1", Index: i,
			Model: "NVIDIA A100-SXM4-40GB", TotalMiB: 40536},
			UsedMiB: used, SMActPct: smact, Source: figure.SourceDCGM, MPSClients: i}
	}
	job := func(gpu int, id, uid uint32, mib int64, age time.Duration) gres.Lease {
		return gres.Lease{Job: jobenv.JobKey{JobID: id}, UUID: "GPU-" + strings.Repeat(string(rune('a'+gpu)), 8) + "-1",
			UID: uid, ReserveMiB: mib, Age: age, Seen: true, Daemon: "d"}
	}
	s := lease.Snapshot{Readings: []gres.Reading{gpu(0, 31744, 53), gpu(1, 18432, 91.2), gpu(2, 30720, 79), gpu(3, 0, 0),
		gpu(4, 0, 0), gpu(5, 200, float64(figure.Unknown))}}
	s.Leases = []gres.Lease{job(0, 1, 0, 24576, 3*time.Hour), job(0, 11, 0, 10240, 65*time.Second),
		job(0, 12345678, 0, 1024, 49*time.Hour), job(0, 12345679, 0, 1024, 4*time.Second),
		job(1, 2, 4242, 10240, time.Minute), job(2, 10, 0, 40536, time.Second)}
	s.Leases[5].Exclusive = true
	s.Leases[4].Slowed = 1.84
	s.Leases[0].Idle, s.Leases[1].Idle = 45*time.Minute, 50*time.Second
	s.Readings[3].Quarantined, s.Readings[3].Cause = "its MPS server has faulted", gres.CauseMPS
	s.Readings[4].HeldFor = 99
	h100 := gpu(5, 0, 0)
	h100.Model, h100.TotalMiB, h100.Source = "NVIDIA H100 80GB HBM3", 81559, figure.SourceUtilisation
	s.Readings[5] = h100
	s.Readings[5].SMActPct = float64(figure.Unknown)
	lost := h100
	lost.UUID, lost.Index, lost.Source, lost.Unreadable, lost.SMActPct = "GPU-99999999-1", 6, figure.SourceNone,
		"read memory: GPU is lost", 50
	mig := h100
	mig.UUID, mig.Index, mig.Model, mig.TotalMiB, mig.Source, mig.MIG, mig.SMActPct = "MIG-88888888-1", 7,
		"NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40320, figure.SourceNone, true, float64(figure.Unknown)
	s.Readings = append(s.Readings, lost, mig)
	user := func(uid uint32) string {
		if uid == 0 {
			return "alice"
		}
		return "a-user-with-a-long-name"
	}
	n := status.Of("gpu01", s, choose.Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4},
		30*time.Minute, user, func(uuid string) status.MPS {
			if strings.Contains(uuid, "f") {
				return status.MPSDown
			}
			return status.MPSUp
		})
	n.WindowS, n.Statistic = 60, "mean"
	return n
}

func TestPrintStatus(t *testing.T) {
	for file, style := range map[string]texttable.Style{"status.txt": {ASCII: true}, "status-utf8.txt": {},
		"status-colour.txt": {Colour: true}, "observe.txt": {ASCII: true}} {
		var b strings.Builder
		n := exampleNode()
		if file == "observe.txt" {
			n.Mode = config.ModeObserve
		}
		if err := n.Print(&b, style); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 && !style.Colour {
				t.Errorf("%s: %d columns: %s", file, n, line)
			}
		}
		if *update {
			if err := os.WriteFile("testdata/"+file, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile("testdata/" + file); err != nil || b.String() != string(want) {
			t.Errorf("%s: %v, got\n%s", file, err, b.String())
		}
	}
}

// The name of a user and a driver's words come to the terminal as text, also in JSON.
func TestStatusOfForeignText(t *testing.T) {
	hostile := "\x1b[2J\u009b\u202e\x7f\n\xff"
	s := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "GPU-a", TotalMiB: 100}, Unreadable: hostile}},
		Leases: []gres.Lease{{UUID: "GPU-a", Job: jobenv.JobKey{JobID: 7}}}}
	n := status.Of("n1", s, choose.Thresholds{}, 0, func(uint32) string { return hostile },
		func(string) status.MPS { return status.MPSUp })
	var b bytes.Buffer
	if err := errors.Join(n.Print(&b, texttable.Style{}), json.NewEncoder(&b).Encode(n)); err != nil {
		t.Fatal(err)
	}
	for _, r := range b.String() {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%q in\n%s", r, b.String())
		}
	}
	if !strings.Contains(b.String(), "7 ?[2J????? ") {
		t.Errorf("got\n%s", b.String())
	}
}
