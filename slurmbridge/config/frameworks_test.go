// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"
	"strconv"
	"testing"
)

func TestExpand(t *testing.T) {
	for _, c := range []struct {
		value          string
		reserve, total int64
		want           string
	}{
		{"{reserve_mib}/{total_mib}", 10240, 40536, "10240/40536"},
		{"{part}", 10240, 40536, "0.2526"}, // 0.25261...: never up
		{"{fraction}", 10240, 40536, "0.2273"},
		{"{part},{fraction}", 40536, 40536, "1,0.9"},
		{"{part}", 10240, 0, "1"},
		{"x{part}y", 20268, 40536, "x0.5y"},
		{"true", 1, 2, "true"},
	} {
		if got := Expand(c.value, c.reserve, c.total); got != c.want {
			t.Errorf("%s of %d of %d: %s, want %s", c.value, c.reserve, c.total, got, c.want)
		}
	}
}

// What JAX may grow to under the default is never less than the peak that a job's booking
// was learned from, 5 % below it, less the CUDA context that JAX does not count. With
// nine tenths of the booking it would be.
func TestLearnedJobsFit(t *testing.T) {
	const total, contextMiB = 81559, 300
	for peak := int64(1024); peak < 70000; peak += 512 {
		reserve := peak + peak*5/100
		part, err := strconv.ParseFloat(Expand(Default().Frameworks["XLA_PYTHON_CLIENT_MEM_FRACTION"].Of(Sharing), reserve,
			total), 64)
		if pool := int64(math.Floor(part * total)); err != nil || pool < peak-contextMiB || pool > reserve {
			t.Fatalf("peak %d, booked %d: a pool of %d, %v", peak, reserve, pool, err)
		}
	}
}

// A table without values sets nothing, and leaves the other defaults.
func TestFrameworksAreSwitchedOff(t *testing.T) {
	c, err := Parse("[frameworks.XLA_PYTHON_CLIENT_MEM_FRACTION]\n[frameworks.XLA_CLIENT_MEM_FRACTION]\nsharing = " +
		"\"{fraction}\"\n")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"XLA_PYTHON_CLIENT_MEM_FRACTION": "",
		"XLA_CLIENT_MEM_FRACTION": "{fraction}", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "CARMA_MEM_FRACTION": "{fraction}"} {
		if got := c.Frameworks[name].Of(Sharing); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
