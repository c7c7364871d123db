// SPDX-License-Identifier: Apache-2.0

package run

import (
	"strings"
	"testing"
	"unicode/utf8"

	"carma/cmd/carma-sim/internal/forecast"
	"carma/cmd/carma-sim/internal/replay"
	"carma/slurmbridge/policy"
)

// Small figures keep two digits.
func TestAmount(t *testing.T) {
	for _, c := range []struct {
		v    float64
		want string
	}{
		{12345.67, "12346"}, {999.96, "1000.0"}, {10, "10.0"}, {9.96, "10.0"}, {1.04, "1.0"}, {1, "1.0"}, {0.996, "1.00"},
		{0.1, "0.10"}, {0.0999, "0.100"}, {0.0338, "0.034"}, {0.01, "0.010"}, {0.00028, "0.00028"}, {0.0000161, "0.000016"},
		{1e-12, "0.0"}, {0, "0.0"},
	} {
		if got := amount(c.v); got != c.want {
			t.Errorf("amount(%g) = %s, want %s", c.v, got, c.want)
		}
	}
}

// A mean with its distance to the farthest run, where the distance shows.
func TestAround(t *testing.T) {
	for _, c := range []struct {
		mean, least, most float64
		want              string
	}{
		{130.25, 130, 130.66, "130.2±0.4"}, {130.25, 130.23, 130.27, "130.2"}, {5.65, 5.5, 5.7, "5.7±0.2"},
		{0.034, 0.0331, 0.0362, "0.034±0.002"}, {0.0061, 0.006, 0.0062, "0.0061"}, {0.0061, 0.003, 0.007, "0.0061±0.0031"},
		{12345.6, 12000.2, 12500, "12346±345"}, {0, 0, 0, "0.0"},
	} {
		if got := around(replay.Spread{Mean: c.mean, Min: c.least, Max: c.most}, 1); got != c.want {
			t.Errorf("%g [%g-%g]: %s, want %s", c.mean, c.least, c.most, got, c.want)
		}
	}
}

// The table fits on a terminal, whatever the size of its figures.
func TestTableWidth(t *testing.T) {
	for _, scale := range []float64{1e-4, 1e-3, 0.012, 0.1, 1, 12, 123, 1234, 123456} {
		of := func(v float64) replay.Spread { return replay.Spread{Mean: v, Min: v * 0.97, Max: v * 1.04} }
		f := Forecast{Pools: make([]poolJSON, 12), Rows: make([]forecastRow, 13)}
		for i := range f.Rows {
			f.Rows[i] = forecastRow{policy.Carma, i, forecast.Figures{GPUHours: of(scale), EnergyJ: of(3.6e6 * scale),
				MakespanS: of(3600 * min(scale, 9999)), WaitS: of(60 * min(scale, 9999)), OOM: of(min(scale, 9999)),
				P50Slowdown: of(1.5), P95Slowdown: of(12.3)}}
		}
		f.Rows[0].Policy = policy.Exclusive
		for line := range strings.Lines(f.table() + f.notes()) {
			if n := utf8.RuneCountInString(line) - 1; n > 100 {
				t.Errorf("scale %g: %d columns: %s", scale, n, line)
			}
		}
	}
}
