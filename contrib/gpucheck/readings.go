// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"carma/gres/nvml"
)

// tolerancePct is how far SM activity may be off the load's.
const tolerancePct = 5

// readings compares what the agent reads with known loads.
func readings(_ context.Context, k *kit) {
	const follows = "gres/nvml/device.go: GPM; docs/admin.md: SM activity"
	for _, want := range []int{0, 25, 50, 100} {
		k.check(fmt.Sprintf("smact-%d", want),
			fmt.Sprintf("SM activity is the share of SMs with work, within %d points", tolerancePct),
			follows, func(c *check) error {
				stop, err := k.loads(want)
				if err != nil {
					return err
				}
				defer stop()
				got, source, err := k.activity(k.gpus, k.rounds(5, 3), time.Second)
				if err != nil {
					return err
				}
				c.add(got, "%", "SM activity at a load of %d %%", want)
				// Utilisation overstates: it is only held to be no less.
				off := got - float64(want)
				c.judge(off >= -tolerancePct && (off <= tolerancePct || source == "nvml-utilisation" && want > 0),
					"%.1f %% by %s", got, source)
				return nil
			})
	}
	for _, every := range []time.Duration{100, 150, 1000} {
		k.check(fmt.Sprintf("every-%d-ms", every), "GPM can be read this often",
			follows+"; 100 ms is the least interval on Hopper", func(c *check) error {
				stop, err := k.loads(50)
				if err != nil {
					return err
				}
				defer stop()
				got, source, err := k.activity(k.gpus, k.rounds(20, 5), every*time.Millisecond)
				if err != nil {
					return err
				}
				c.judge(math.Abs(got-50) <= 2*tolerancePct || source == "nvml-utilisation", "%.1f %% of 50 by %s", got,
					source)
				return nil
			})
	}
	k.check("two-readers", "two readers get the same", follows, func(c *check) error {
		other, err := nvml.Open(library)
		if err != nil {
			return err
		}
		defer other.Close()
		stop, err := k.loads(50)
		if err != nil {
			return err
		}
		defer stop()
		var second float64
		var secondErr error
		var both sync.WaitGroup
		both.Add(1)
		go func() {
			defer both.Done()
			second, _, secondErr = k.activity(other, 5, time.Second)
		}()
		first, _, err := k.activity(k.gpus, 5, time.Second)
		both.Wait()
		if err := errorsOf(err, secondErr); err != nil {
			return err
		}
		c.judge(math.Abs(first-second) <= tolerancePct, "%.1f %% and %.1f %%", first, second)
		return nil
	})
	k.check("processes", "under MPS NVML tells each client's memory by its pid",
		"gres/agent/account.go; gres/nvml/device.go: processes", k.attribution)
	k.check("energy", "the energy counter, the power reading and nvidia-smi's agree within 15 %",
		"gres/energy; docs/admin.md: energy", k.energy)
}

// loads keeps a share of the SMs busy; 0 is none.
func (k *kit) loads(pct int) (stop func(), err error) {
	if pct == 0 {
		k.pause(time.Second)
		return func() {}, nil
	}
	p, err := k.start(job{uid: uidA, memMiB: 1024, smactPct: pct, alone: time.Hour})
	if err != nil {
		return nil, err
	}
	if err := k.awaitReady(p); err != nil {
		p.stop()
		return nil, err
	}
	k.pause(time.Second)
	return p.stop, nil
}

// activity is the median of n samples.
func (k *kit) activity(from *nvml.NVML, n int, every time.Duration) (pct float64, source string, err error) {
	var values []float64
	from.Sample() // a first look to measure from
	for range n {
		k.pause(every)
		for _, s := range from.Sample() {
			if s.UUID != k.gpu.UUID {
				continue
			}
			if s.Unreadable != "" {
				return 0, "", fmt.Errorf("read GPU %s: %s", s.UUID, s.Unreadable)
			}
			source = string(s.Source)
			if !math.IsNaN(float64(s.SMActPct)) {
				values = append(values, float64(s.SMActPct))
			}
		}
	}
	if len(values) == 0 {
		return 0, "", fmt.Errorf("SM activity is not measured; source %q", source)
	}
	return median(values), source, nil
}

// attribution reads the memory of two clients of MPS by their pids.
func (k *kit) attribution(c *check) error {
	return k.withMPS(c, uidA, func() error {
		asked := map[int]int{}
		for _, mib := range []int{2048, 5120} {
			p, err := k.start(job{uid: uidA, memMiB: mib, smactPct: 30, alone: time.Hour, pipes: k.pipes()})
			if err != nil {
				return err
			}
			defer p.stop()
			if err := k.awaitReady(p); err != nil {
				return err
			}
			asked[p.cmd.Process.Pid] = mib
		}
		k.pause(2 * time.Second)
		s, err := k.sample()
		if err != nil {
			return err
		}
		c.text("nvidia-smi", k.tool("nvidia-smi"))
		c.text("processes", fmt.Sprintf("%+v\n%v", s.Processes, s.ProcessSMPct))
		found := 0
		for _, p := range s.Processes {
			if mib, ours := asked[p.PID]; ours {
				c.add(float64(p.UsedMiB), "MiB", "of a client that holds %d MiB", mib)
				if p.UsedMiB >= int64(mib) && p.UsedMiB <= int64(mib+contextMiB) && p.MPS {
					found++
				}
			}
		}
		c.judge(found == len(asked), "%d of %d clients with their memory, as MPS clients", found, len(asked))
		return nil
	})
}

// energy compares three ways to the same watts.
func (k *kit) energy(c *check) error {
	stop, err := k.loads(60)
	if err != nil {
		return err
	}
	defer stop()
	first, err := k.sample()
	if err != nil {
		return err
	}
	var power, smi []float64
	begin := time.Now()
	for range k.rounds(10, 4) {
		k.pause(time.Second)
		s, err := k.sample()
		if err != nil {
			return err
		}
		power = append(power, float64(s.PowerWatts))
		text := strings.TrimSpace(k.tool("nvidia-smi", "--id="+k.gpu.UUID, "--query-gpu=power.draw",
			"--format=csv,noheader,nounits"))
		if w, err := strconv.ParseFloat(text, 64); err == nil {
			smi = append(smi, w)
		}
	}
	s, err := k.sample()
	if err != nil {
		return err
	}
	watts := float64(s.EnergyJ-first.EnergyJ) / time.Since(begin).Seconds()
	c.add(watts, "W", "by the energy counter")
	c.add(median(power), "W", "by the power reading")
	c.add(median(smi), "W", "by nvidia-smi")
	if math.IsNaN(watts) || math.IsNaN(median(power)) {
		c.skip("the driver tells no energy or no power")
		return nil
	}
	near := func(a float64) bool { return math.Abs(a-watts) <= 0.15*watts }
	c.judge(near(median(power)) && (len(smi) == 0 || near(median(smi))),
		"%.0f W, %.0f W, nvidia-smi %.0f W of %d readings",
		watts, median(power), median(smi), len(smi))
	return nil
}
