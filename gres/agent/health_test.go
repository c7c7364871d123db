// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/lease"
)

func (l *ledger) SetFault(_ context.Context, uuid string, cause gres.Cause, reason string,
	lasts time.Duration) ([]uint32, bool, error) {
	return nil, !l.known, cmp.Or(l.err, l.note("%s %s %s: %s", cause, uuid, lasts, reason))
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
		"well":                    {[]gres.Sample{well, well}, "end device a"},
		"a state":                 {[]gres.Sample{reset, reset, well, well}, "device a 0s: reset; end device a"},
		"unreadable says nothing": {[]gres.Sample{s(func(s *gres.Sample) { s.Unreadable = "lost" })}, ""},
		"a program's error":       {[]gres.Sample{xids(13, 31, 43, 45, 68, 94, 109)}, "end device a"},
		"broken": {[]gres.Sample{xids(31, 79), well},
			"xid a 0s: Xid 79: GPU has fallen off the bus; end device a"},
		"lost with its last word": {[]gres.Sample{s(func(s *gres.Sample) {
			s.Xids, s.Unreadable = []uint64{79},
				"lost"
		})}, "xid a 0s: Xid 79: GPU has fallen off the bus"},
		"the same again, as it may have been readmitted": {[]gres.Sample{xids(119), xids(119, 119)},
			"xid a 0s: Xid 119: GSP does not answer; end device a; xid a 0s: Xid 119: GSP does not answer"},
		"rows that wait close none": {[]gres.Sample{s(func(s *gres.Sample) { s.RowsPending = true })}, "end device a"},
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

// An error that comes again is said once a minute, unless the GPU was readmitted in between.
func TestXidsAreSaidOnce(t *testing.T) {
	l := &ledger{known: true}
	a := newAgent()
	var log bytes.Buffer
	a.Log, a.Ledger = slog.New(slog.NewTextHandler(&log, nil)), l
	s := gres.Sample{GPU: gres.GPU{UUID: "a"}, Xids: []uint64{79, 79}, Unreadable: "lost"}
	a.keepXids([]gres.Sample{s}) // the ledger could not be read
	s.Xids = nil
	a.watchHealth(t.Context(), []gres.Sample{s})
	s.Xids = []uint64{79}
	a.watchHealth(t.Context(), []gres.Sample{s})
	if n := strings.Count(log.String(), "GPU is broken"); n != 1 || len(l.calls) != 2 {
		t.Errorf("said %d times, calls %q", n, l.calls)
	}
	l.known = false
	a.watchHealth(t.Context(), []gres.Sample{s})
	if n := strings.Count(log.String(), "GPU is broken"); n != 2 {
		t.Errorf("after it was readmitted: said %d times", n)
	}
}

// Only a fault of the MPS server is the MPS loop's to end.
func TestBrokenGPUIsNotReadmitted(t *testing.T) {
	l := &ledger{}
	d := &daemons{}
	m := looksAfter(d, l, owners{})
	r := gres.Reading{GPU: gres.GPU{UUID: "a"}, Quarantined: "Xid 79", Cause: gres.CauseXid}
	v := view{samples: []gres.Sample{sample()}, snapshot: lease.Snapshot{Readings: []gres.Reading{r}}}
	m.check(t.Context(), v, true)
	m.work.Wait()
	if strings.Contains(fmt.Sprint(l.calls), "readmit") || strings.Contains(fmt.Sprint(d.calls), "ends") {
		t.Errorf("ledger %v, daemons %v", l.calls, d.calls)
	}
}

func (l *ledger) Follow(_ context.Context, d gres.Daemon, read lease.ReadLog) ([]uint32, bool, error) {
	fault, to, err := read(7)
	return l.victims, fault, cmp.Or(err, l.note("follow %s to %d", d, to))
}

// A fault that stands in the log is looked at at once; what closes a GPU is the status.
func TestFollowLogs(t *testing.T) {
	for fault, want := range map[gres.Daemon]string{
		"": "follow a,b to 8; follow a to 8; follow b to 8",
		"a,b": "follow a,b to 8; follow a to 8; follow b to 8; " +
			"quarantine a: its MPS server has faulted; quarantine b: its MPS server has faulted",
	} {
		l := &ledger{}
		var log bytes.Buffer
		m := looksAfter(&daemons{logged: "a,b", fault: fault}, l, nil)
		m.Log = slog.New(slog.NewTextHandler(&log, nil))
		for _, uuid := range []string{"a", "b"} {
			l.meanwhile.Readings = append(l.meanwhile.Readings, gres.Reading{GPU: gres.GPU{UUID: uuid}})
			l.meanwhile.Leases = append(l.meanwhile.Leases, gres.Lease{UUID: uuid, Daemon: "a,b"})
		}
		if err := m.followLogs(t.Context()); err != nil {
			t.Error(err)
		}
		m.work.Wait()
		slices.SortStableFunc(l.calls, func(a, b string) int { // the daemon is asked beside
			return cmp.Compare(strings.Index("fq", a[:1]), strings.Index("fq", b[:1]))
		})
		if got := strings.Join(l.calls, "; "); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		// A user may write such lines all day: without a new victim they are not repeated.
		const line = "an MPS server has logged a fault"
		said := strings.Count(log.String(), line)
		l.victims = []uint32{7}
		if err := m.followLogs(t.Context()); err != nil {
			t.Error(err)
		}
		if now := strings.Count(log.String(), line); said != 0 || now != 1 {
			t.Errorf("%d lines without a victim, %d with one", said, now)
		}
	}
}
