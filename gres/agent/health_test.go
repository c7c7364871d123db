// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/lease"
)

func (l *ledger) SetFault(_ context.Context, uuid string, cause gres.Cause, reason string, lasts time.Duration) ([]uint32, bool, error) {
	return nil, true, cmp.Or(l.err, l.note("%s %s %s: %s", cause, uuid, lasts, reason))
}

func (l *ledger) EndFault(_ context.Context, uuid string, cause gres.Cause) (bool, error) {
	return true, l.note("end %s %s", cause, uuid)
}

func TestWatchHealth(t *testing.T) {
	s := func(change func(*gres.Sample)) gres.Sample {
		one := gres.Sample{GPU: gres.GPU{UUID: "a"}}
		change(&one)
		return one
	}
	well := s(func(*gres.Sample) {})
	reset := s(func(s *gres.Sample) { s.Fault = "reset" })
	xids := func(list ...uint64) gres.Sample { return s(func(s *gres.Sample) { s.Xids = list }) }
	for name, c := range map[string]struct {
		looks []gres.Sample
		want  string
	}{
		"well":                        {[]gres.Sample{well, well}, "end device a"},
		"a state":                     {[]gres.Sample{reset, reset, well, well}, "device a 0s: reset; end device a"},
		"unreadable says nothing":     {[]gres.Sample{s(func(s *gres.Sample) { s.Unreadable = "lost" })}, ""},
		"a program's error":           {[]gres.Sample{xids(13, 31, 43, 45, 68, 94, 109)}, "end device a"},
		"broken":                      {[]gres.Sample{xids(31, 79), well}, "xid a 0s: Xid 79: GPU has fallen off the bus; end device a"},
		"lost with its last word":     {[]gres.Sample{s(func(s *gres.Sample) { s.Xids, s.Unreadable = []uint64{79}, "lost" })}, "xid a 0s: Xid 79: GPU has fallen off the bus"},
		"the same again is said once": {[]gres.Sample{xids(119), xids(119, 119)}, "xid a 0s: Xid 119: GSP does not answer; end device a"},
		"rows that wait close none":   {[]gres.Sample{s(func(s *gres.Sample) { s.RowsPending = true })}, "end device a"},
	} {
		l := &ledger{}
		a := newAgent()
		a.Ledger = l
		a.gpus["a"] = &gpuState{}
		for _, look := range c.looks {
			a.watchHealth(t.Context(), []gres.Sample{look})
		}
		if got := strings.Join(l.calls, "; "); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// What the ledger does not take is tried again at the next look.
func TestXidThatTheLedgerDoesNotTake(t *testing.T) {
	l := &ledger{err: errors.New("locked")}
	a := newAgent()
	a.Ledger = l
	a.gpus["a"] = &gpuState{}
	s := gres.Sample{GPU: gres.GPU{UUID: "a"}, Xids: []uint64{79}, Unreadable: "lost"}
	a.watchHealth(t.Context(), []gres.Sample{s})
	l.err, l.calls, s.Xids = nil, nil, nil
	a.watchHealth(t.Context(), []gres.Sample{s})
	if len(l.calls) != 1 {
		t.Errorf("calls %q", l.calls)
	}
}

// Only a fault of the MPS server is the MPS loop's to end.
func TestBrokenGPUIsNotReadmitted(t *testing.T) {
	l := &ledger{}
	m := &daemons{}
	a := newAgent()
	a.Ledger, a.MPS, a.Owners = l, m, owners{}
	r := gres.Reading{GPU: gres.GPU{UUID: "a"}, Quarantined: "Xid 79", Cause: gres.CauseXid}
	a.checkMPS(t.Context(), []gres.Sample{sample()}, lease.Snapshot{Readings: []gres.Reading{r}})
	if strings.Contains(fmt.Sprint(l.calls), "readmit") || strings.Contains(fmt.Sprint(m.calls), "restart") {
		t.Errorf("ledger %v, daemons %v", l.calls, m.calls)
	}
}
