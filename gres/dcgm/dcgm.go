// SPDX-License-Identifier: Apache-2.0

// Package dcgm reads SM activity from DCGM, which has it on Volta and Ampere
// too, where NVML does not. The package keeps a dcgmi dmon running and reads its
// stream.
package dcgm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"carma/db/figure"
	"carma/gres"
)

// fields are DCGM's profiling fields SM activity, SM occupancy and DRAM active
// (dcgm_fields.h: 1002, 1003, 1005). dmon prints them as fractions.
const fields = "1002,1003,1005"

// fresh is how old figures may be, beside two lines of dmon.
const fresh = 5 * time.Second

// Monitor reads a dmon after the other.
type Monitor struct {
	Program  string        // dcgmi
	Interval time.Duration // between two lines of a GPU
	Log      *slog.Logger

	mu      sync.Mutex
	figures map[string]figures // by UUID
}

type figures struct {
	at                 time.Time
	smact, smocc, dram figure.Measured
}

// Run keeps a dmon running until ctx ends, and starts another when dmon stops,
// after a pause that grows while it keeps stopping.
func (m *Monitor) Run(ctx context.Context) {
	pause := time.Second
	for ctx.Err() == nil {
		start := time.Now()
		err := m.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(start) > time.Minute {
			pause = time.Second
		}
		m.Log.Warn("dcgmi dmon ended; SM activity comes from NVML until it runs again", "error", err, "again_in", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, time.Minute)
	}
}

func (m *Monitor) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	uuids, err := m.discover(ctx)
	if err != nil {
		return err
	}
	cmd := m.command(ctx, "dmon", "-e", fields, "-d", strconv.FormatInt(m.Interval.Milliseconds(), 10))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("start dcgmi dmon: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start dcgmi dmon: %w", err)
	}
	m.read(out, uuids)
	cancel()
	return cmd.Wait()
}

func (m *Monitor) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, m.Program, args...)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// discover maps DCGM's numbers of GPUs, which need not be NVML's, to UUIDs.
func (m *Monitor) discover(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := m.command(ctx, "discovery", "-l").Output()
	if err != nil {
		return nil, fmt.Errorf("list GPUs with dcgmi discovery: %w", err)
	}
	uuids := parseDiscovery(string(out))
	if len(uuids) == 0 {
		return nil, errors.New("dcgmi discovery lists no GPU")
	}
	return uuids, nil
}

// parseDiscovery reads the table of discovery -l. A GPU has several lines: the
// first begins with its number, one holds "Device UUID: GPU-...".
func parseDiscovery(text string) map[string]string {
	uuids := map[string]string{}
	id := ""
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		if first := strings.TrimSpace(cells[1]); first != "" {
			id = ""
			if _, err := strconv.Atoi(first); err == nil {
				id = first
			}
		}
		if _, uuid, ok := strings.Cut(cells[2], "Device UUID:"); ok && id != "" {
			uuids[id] = strings.TrimSpace(uuid)
		}
	}
	return uuids
}

// read takes what dmon prints until it ends.
func (m *Monitor) read(r io.Reader, uuids map[string]string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		id, f, ok := parseLine(lines.Text())
		uuid := uuids[id]
		if !ok || uuid == "" {
			continue
		}
		f.at = time.Now()
		m.mu.Lock()
		if m.figures == nil {
			m.figures = map[string]figures{}
		}
		m.figures[uuid] = f
		m.mu.Unlock()
	}
}

// parseLine reads "GPU 0    0.612    0.301    0.250". Headers and whatever else
// stands between are passed over; N/A and nonsense are not measured.
func parseLine(line string) (id string, f figures, ok bool) {
	words := strings.Fields(line)
	if len(words) != 5 || words[0] != "GPU" {
		return "", f, false
	}
	if _, err := strconv.Atoi(words[1]); err != nil {
		return "", f, false
	}
	for i, to := range []*figure.Measured{&f.smact, &f.smocc, &f.dram} {
		*to = figure.Unknown
		if v, err := strconv.ParseFloat(words[2+i], 64); err == nil && v >= 0 && v <= 1 {
			*to = figure.Measured(100 * v)
		}
	}
	return words[1], f, true
}

// Overlay puts DCGM's figures into samples that have none or coarse ones.
func (m *Monitor) Overlay(samples []gres.Sample) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range samples {
		s := &samples[i]
		f, ok := m.figures[s.UUID]
		if !ok || time.Since(f.at) > max(fresh, 2*m.Interval) || !f.smact.Known() || s.Source == figure.SourceGPM ||
			s.Unreadable != "" {
			continue
		}
		if s.Source == figure.SourceUtilisation && gres.FalseZero(f.smact, s.SMActPct) {
			continue
		}
		s.SMActPct, s.SMOccPct, s.DRAMPct, s.Source = f.smact, f.smocc, f.dram, figure.SourceDCGM
	}
}
