// SPDX-License-Identifier: Apache-2.0

package dcgm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/db/figure"
	"carma/gres"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestParseDiscovery(t *testing.T) {
	got := parseDiscovery(read(t, "discovery.txt"))
	if len(got) != 4 || got["0"] == "" || got["3"] == "" || !strings.HasPrefix(got["1"], "GPU-") {
		t.Errorf("got %v", got)
	}
	for _, text := range []string{"", "0 GPUs found.", "| GPU ID | Device UUID: x |", "|"} {
		if got := parseDiscovery(text); len(got) != 0 {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func coarse(uuid string) gres.Sample {
	return gres.Sample{GPU: gres.GPU{UUID: uuid}, SMActPct: 99, SMOccPct: figure.Unknown, DRAMPct: figure.Unknown,
		Source: figure.SourceUtilisation}
}

func TestOverlay(t *testing.T) {
	m := &Monitor{}
	m.read(strings.NewReader(read(t, "dmon.txt")), map[string]string{"0": "a", "1": "b"})
	gpm := coarse("a")
	gpm.Source = figure.SourceGPM
	lost := coarse("a")
	lost.Unreadable = "GPU is lost"
	samples := []gres.Sample{coarse("a"), coarse("b"), coarse("c"), gpm, lost}
	m.Overlay(samples)
	if s := samples[0]; fmt.Sprintf("%.1f %.1f %.1f %s", s.SMActPct, s.SMOccPct, s.DRAMPct,
		s.Source) != "81.2 40.1 35.0 dcgm" {
		t.Errorf("got %+v", s)
	}
	for i, s := range samples[1:] { // nonsense, unknown GPU, better source, lost
		if s.SMActPct != 99 || s.Source == figure.SourceDCGM {
			t.Errorf("sample %d: %+v", i+1, s)
		}
	}
	m.figures["c"] = figures{time.Now(), 0, 0, 0}
	quiet := coarse("c")
	quiet.SMActPct = 9
	busy := []gres.Sample{coarse("c"), quiet} // 0 % beside 99 % and 9 % of utilisation
	if m.Overlay(busy); busy[0].Source == figure.SourceDCGM || busy[1].Source != figure.SourceDCGM {
		t.Errorf("zeros: %+v", busy)
	}
	f := m.figures["a"]
	f.at = time.Now().Add(-fresh - time.Second)
	m.figures["a"] = f
	old := []gres.Sample{coarse("a")}
	if m.Overlay(old); old[0].Source == figure.SourceDCGM {
		t.Error("old figures were used")
	}
	m.Interval = 10 * time.Second
	f.at = time.Now().Add(-15 * time.Second)
	m.figures["a"] = f
	if m.Overlay(old); old[0].Source != figure.SourceDCGM {
		t.Error("figures of the last line but one were not used")
	}
}

// The program that dies is started again, and the one that runs ends with the
// context.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "dcgmi")
	script := `#!/bin/sh
if [ "$1" = discovery ]; then cat ` + filepath.Join(mustAbs(t), "testdata/discovery.txt") + `; exit; fi
echo "$@" >>` + dir + `/calls
if [ ! -e ` + dir + `/second ]; then : >` + dir + `/second; exit 3; fi
echo "GPU 2 0.5 0.25 0.125"
exec sleep 1000
`
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	uuid := parseDiscovery(read(t, "discovery.txt"))["2"]
	m := &Monitor{Program: program, Interval: 250 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { m.Run(ctx); close(ended) }()
	got := func() gres.Sample {
		s := []gres.Sample{coarse(uuid)}
		m.Overlay(s)
		return s[0]
	}
	for range 600 {
		if got().Source == figure.SourceDCGM {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if s := got(); s.SMActPct != 50 || s.SMOccPct != 25 || s.DRAMPct != 12.5 {
		t.Errorf("got %+v", s)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("does not end")
	}
	calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
	if want := strings.Repeat("dmon -e 1002,1003,1005 -d 250\n", 2); string(calls) != want {
		t.Errorf("calls:\n%s", calls)
	}
}

func mustAbs(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"GPU 0     0.612        0.301        0.250", "| 0 | Device UUID: GPU-1 |",
		"GPU 0 NaN inf 1e999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parseDiscovery(text)
		if _, fig, ok := parseLine(text); ok {
			for _, v := range []figure.Measured{fig.smact, fig.smocc, fig.dram} {
				if v.Known() && (v < 0 || v > 100) {
					t.Errorf("%q: %v", text, v)
				}
			}
		}
	})
}
