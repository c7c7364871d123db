// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os/exec"
	"time"

	"carma/gres"
	"carma/prolog/oomscan"
)

// all makes the checks in order. One that could not be made says why.
func (b *bench) all(ctx context.Context, frameworks []framework) []result {
	var results []result
	for _, c := range []struct {
		name string
		f    func(context.Context, *result) error
	}{
		{"readings", b.readings}, {"overhead", b.overhead}, {"memory-limit", b.memoryLimit}, {"attribution", b.attribution},
		{"throughput", b.throughput},
	} {
		r := result{Name: c.name, Figures: []figure{}}
		if err := c.f(ctx, &r); err != nil {
			r.OK, r.Note = false, err.Error()
		}
		results = append(results, r)
	}
	for _, f := range frameworks {
		results = append(results, f.check(ctx))
	}
	return results
}

// tolerancePct is how far SM activity may be off the load's.
const tolerancePct = 5

// readings compares SM activity with loads that are known.
func (b *bench) readings(ctx context.Context, r *result) error {
	r.OK = true
	for _, want := range []int{0, 25, 50, 100} {
		if want > 0 {
			p, err := b.start(ctx, job{memMiB: 1024, smactPct: want, alone: time.Hour})
			if err != nil {
				return err
			}
			defer p.stop()
			b.pause(5 * time.Second)
			got, source, err := b.activity(5)
			p.stop()
			if err != nil {
				return err
			}
			r.add(got, "%", "SM activity at a load of %d %%", want)
			r.Note = "source " + source
			// Utilisation over-states: it is only held to be no less.
			off := got - float64(want)
			r.OK = r.OK && off >= -tolerancePct && (off <= tolerancePct || source == "nvml-utilisation")
			b.pause(2 * time.Second)
			continue
		}
		got, _, err := b.activity(3)
		if err != nil {
			return err
		}
		r.add(got, "%", "SM activity without a load")
		r.OK = r.OK && got <= tolerancePct
	}
	return nil
}

// activity is the median of n samples, a second apart.
func (b *bench) activity(n int) (pct float64, source string, err error) {
	var values []float64
	if _, err := b.sample(); err != nil { // a first look to measure from
		return 0, "", err
	}
	for range n {
		b.pause(time.Second)
		s, err := b.sample()
		if err != nil {
			return 0, "", err
		}
		if math.IsNaN(float64(s.SMActPct)) {
			return 0, "", fmt.Errorf("SM activity is not measured; source %s", s.Source)
		}
		values, source = append(values, float64(s.SMActPct)), string(s.Source)
	}
	return median(values), source, nil
}

// overhead compares a load with the sampler off and on, in turns.
func (b *bench) overhead(ctx context.Context, r *result) error {
	took := map[bool][]float64{}
	for i := range 6 {
		on := i%2 == 1
		stop := make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for on {
				b.gpus.Sample()
				select {
				case <-stop:
					return
				case <-time.After(b.real(time.Second)):
				}
			}
		}()
		p, err := b.start(ctx, job{memMiB: 2048, smactPct: 60, alone: 20 * time.Second})
		if err == nil {
			_, err = p.wait()
		}
		close(stop)
		<-done
		if err != nil {
			return err
		}
		took[on] = append(took[on], p.took.Seconds())
	}
	pct := (median(took[true])/median(took[false]) - 1) * 100
	r.add(median(took[false]), "s", "a load alone")
	r.add(median(took[true]), "s", "with a look at the GPU each second")
	r.add(pct, "%", "overhead")
	r.OK = pct <= 1
	return nil
}

// withMPS runs f while the daemon of the GPU is up.
func (b *bench) withMPS(ctx context.Context, r *result, f func() error) error {
	if b.mps == nil {
		r.OK, r.Skipped = true, "no nvidia-cuda-mps-control"
		return nil
	}
	if err := b.mps.Ensure(ctx, gres.Daemon(b.gpu.UUID)); err != nil {
		return err
	}
	defer b.mps.Quit(ctx, gres.Daemon(b.gpu.UUID))
	return f()
}

// memoryLimit lets a client of MPS ask for more than its limit beside one that
// keeps to its own.
func (b *bench) memoryLimit(ctx context.Context, r *result) error {
	return b.withMPS(ctx, r, func() error {
		failed, well := 0, 0
		for range b.rounds {
			neighbour, err := b.start(ctx, job{memMiB: 2048, smactPct: 30, alone: 5 * time.Second, limitMiB: 4096, shared: true})
			if err != nil {
				return err
			}
			over, err := b.start(ctx, job{memMiB: 6144, smactPct: 30, alone: 5 * time.Second, limitMiB: 4096, shared: true})
			if err != nil {
				neighbour.stop()
				return err
			}
			status, err := over.wait()
			if err != nil {
				neighbour.stop()
				return err
			}
			if _, oom, _ := oomscan.Scan(&over.stderr); status != 0 && oom {
				failed++
			}
			if status, err = neighbour.wait(); err != nil {
				return err
			}
			if status == 0 {
				well++
			}
		}
		r.add(float64(failed), "", "of %d that overshot ended with OOM", b.rounds)
		r.add(float64(well), "", "of %d neighbours ended well", b.rounds)
		r.OK = failed == b.rounds && well == b.rounds
		return nil
	})
}

// contextMiB is what a CUDA context may take beside what was asked for.
const contextMiB = 1024

// attribution reads the memory of two clients of MPS by their pids, and the energy.
func (b *bench) attribution(ctx context.Context, r *result) error {
	return b.withMPS(ctx, r, func() error {
		asked := map[int]int{}
		for _, mib := range []int{2048, 5120} {
			p, err := b.start(ctx, job{memMiB: mib, smactPct: 30, alone: time.Hour, shared: true})
			if err != nil {
				return err
			}
			defer p.stop()
			asked[p.cmd.Process.Pid] = mib
		}
		b.pause(5 * time.Second)
		first, err := b.sample()
		if err != nil {
			return err
		}
		begin := time.Now()
		b.pause(10 * time.Second)
		s, err := b.sample()
		if err != nil {
			return err
		}
		seconds := time.Since(begin).Seconds() // the counter's
		seen := 0
		for _, p := range s.Processes {
			if mib, ours := asked[p.PID]; ours {
				r.add(float64(p.UsedMiB), "MiB", "of a client that holds %d MiB", mib)
				if p.UsedMiB >= int64(mib) && p.UsedMiB <= int64(mib+contextMiB) && p.MPS {
					seen++
				}
			}
		}
		r.OK = seen == len(asked)
		joules := float64(s.EnergyJ - first.EnergyJ)
		if !math.IsNaN(joules) {
			r.add(joules/seconds, "W", "by the energy counter")
			r.add(float64(s.PowerWatts), "W", "by the power reading")
			r.OK = r.OK && math.Abs(joules/seconds-float64(s.PowerWatts)) <= 0.15*float64(s.PowerWatts)
		}
		return nil
	})
}

// throughput runs k equal loads together, without MPS and with it. It judges
// nothing: the figures are for docs/bench.
func (b *bench) throughput(ctx context.Context, r *result) error {
	r.OK = true
	for _, size := range []struct {
		name     string
		smactPct int
	}{{"small", 15}, {"medium", 40}, {"large", 85}} {
		j := job{memMiB: 3072, smactPct: size.smactPct, alone: 20 * time.Second}
		alone, joules, err := b.together(ctx, j, 1)
		if err != nil {
			return err
		}
		r.add(alone, "s", "%s alone", size.name)
		r.add(joules, "J", "%s alone", size.name)
		for k := 2; k <= 4; k++ {
			took, energy, err := b.together(ctx, j, k)
			if err != nil {
				return err
			}
			r.add(float64(k)*alone/took, "x", "%s, %d by turns: throughput against one after the other", size.name, k)
			r.add(energy/(float64(k)*joules), "x", "%s, %d by turns: energy against one after the other", size.name, k)
		}
		if b.mps == nil {
			continue
		}
		j.shared = true
		err = b.withMPS(ctx, r, func() error {
			for k := 2; k <= 4; k++ {
				took, energy, err := b.together(ctx, j, k)
				if err != nil {
					return err
				}
				r.add(float64(k)*alone/took, "x", "%s, %d under MPS: throughput against one after the other", size.name, k)
				r.add(energy/(float64(k)*joules), "x", "%s, %d under MPS: energy against one after the other", size.name, k)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// together runs k loads at once; seconds of the GPU's world until the last has
// ended, and the energy meanwhile.
func (b *bench) together(ctx context.Context, j job, k int) (seconds, joules float64, err error) {
	before, err := b.sample()
	if err != nil {
		return 0, 0, err
	}
	var running []*process
	begin := time.Now()
	for range k {
		p, err := b.start(ctx, j)
		if err != nil {
			return 0, 0, err
		}
		running = append(running, p)
	}
	for _, p := range running {
		status, waitErr := p.wait()
		if waitErr == nil && status != 0 {
			waitErr = fmt.Errorf("a load of %d %% ended with status %d: %.200s", j.smactPct, status, p.stderr.String())
		}
		if err == nil {
			err = waitErr
		}
	}
	if err != nil {
		return 0, 0, err
	}
	seconds = time.Since(begin).Seconds() * b.scale
	after, err := b.sample()
	return seconds, float64(after.EnergyJ-before.EnergyJ) * b.scale, err
}

// framework is a program that asks its framework for more memory than any GPU
// has.
type framework struct {
	name    string
	command []string
	absent  int // exit status that means that it is not installed
}

// check asks whether the verdict knows the framework's own words.
func (f framework) check(ctx context.Context) result {
	r := result{Name: "oom-" + f.name, Figures: []figure{}}
	cmd := exec.CommandContext(ctx, f.command[0], f.command[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() == f.absent {
		r.OK, r.Skipped = true, f.name+" is not installed"
		return r
	}
	text := stderr.String()
	found, ok, _ := oomscan.Scan(&stderr)
	if r.OK = err != nil && ok; r.OK {
		r.Note = fmt.Sprintf("recognised: %s", found.ID)
	} else {
		r.Note = fmt.Sprintf("not recognised (%v): %.300s", err, text)
	}
	return r
}
