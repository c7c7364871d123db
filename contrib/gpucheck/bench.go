// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"carma/gres"
	"carma/gres/mps"
)

// Sampler reads the GPUs of the machine.
type Sampler interface {
	Sample() []gres.Sample
}

// Daemon is the MPS control daemon of a GPU.
type Daemon interface {
	Ensure(ctx context.Context, d gres.Daemon) error
	Quit(ctx context.Context, d gres.Daemon) error
}

// bench is a GPU with what can be done to it.
type bench struct {
	gpus   Sampler
	gpu    gres.GPU
	load   string  // program that keeps a GPU busy: gpuload, or simjob
	mps    Daemon  // nil: MPS is not looked at
	runDir string  // of the MPS daemons
	scale  float64 // of simulated time; 1 on a real GPU
	rounds int     // of what is to go well each time
}

// result is one check.
type result struct {
	Name    string   `json:"name"`
	OK      bool     `json:"ok"`
	Skipped string   `json:"skipped,omitempty"` // why it was not made
	Note    string   `json:"note,omitempty"`
	Figures []figure `json:"figures"`
}

type figure struct {
	What  string  `json:"what"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// add notes a figure, unless it was not measured.
func (r *result) add(value float64, unit, format string, args ...any) {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	r.Figures = append(r.Figures, figure{fmt.Sprintf(format, args...), value, unit})
}

// job is a load: the memory it takes, the SM activity that it has alone, and
// how long it runs alone.
type job struct {
	memMiB   int
	smactPct int
	alone    time.Duration
	limitMiB int  // MPS memory limit; 0: none
	shared   bool // a client of the MPS daemon
}

// process is a load that runs.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	start  time.Time
	took   time.Duration
}

func (b *bench) start(ctx context.Context, j job) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, b.load, "--mem", fmt.Sprintf("%dM", j.memMiB), "--smact",
		fmt.Sprint(j.smactPct),
		"--duration", fmt.Sprintf("%dms", j.alone.Milliseconds()))}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CUDA_") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Env = append(p.cmd.Env, "CUDA_VISIBLE_DEVICES="+b.gpu.UUID)
	if j.shared {
		p.cmd.Env = append(p.cmd.Env, "CUDA_MPS_PIPE_DIRECTORY="+mps.PipeDir(b.runDir, gres.Daemon(b.gpu.UUID)))
	}
	if j.limitMiB > 0 {
		p.cmd.Env = append(p.cmd.Env, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", j.limitMiB))
	}
	p.cmd.Stderr = &p.stderr
	p.start = time.Now()
	return p, p.cmd.Start()
}

// wait returns the exit status; -1 if the load was killed.
func (p *process) wait() (int, error) {
	err := p.cmd.Wait()
	p.took = time.Since(p.start)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// stop ends a load that has done its part.
func (p *process) stop() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// pause is a time of the GPU's world.
func (b *bench) pause(d time.Duration) { time.Sleep(b.real(d)) }

func (b *bench) real(d time.Duration) time.Duration { return time.Duration(float64(d) / b.scale) }

// sample reads the one GPU.
func (b *bench) sample() (gres.Sample, error) {
	for _, s := range b.gpus.Sample() {
		if s.UUID == b.gpu.UUID {
			if s.Unreadable != "" {
				return s, fmt.Errorf("read GPU %s: %s", s.UUID, s.Unreadable)
			}
			return s, nil
		}
	}
	return gres.Sample{}, fmt.Errorf("GPU %s is gone", b.gpu.UUID)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2]
}
