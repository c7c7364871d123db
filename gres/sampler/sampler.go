// SPDX-License-Identifier: Apache-2.0

// Package sampler says how a process gets its samples of the GPUs: the agent from NVML,
// with DCGM's SM activity where that is wanted; hooks and the doctor from a child.
package sampler

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"carma/db/figure"
	"carma/gres"
	"carma/gres/dcgm"
	"carma/slurmbridge/config"
)

// Of takes NVML's samples and, where it is to and can, DCGM's SM activity.
func Of(ctx context.Context, c config.Config, nvml func() []gres.Sample, log *slog.Logger) func() []gres.Sample {
	want := figure.Source(c.SMAct.Source)
	if want == "auto" {
		if _, err := os.Stat(c.SMAct.DCGMI); err == nil {
			want = figure.SourceDCGM
		}
	}
	if want != figure.SourceDCGM {
		return nvml
	}
	m := &dcgm.Monitor{Program: c.SMAct.DCGMI, Interval: c.NVML.Interval.D(), Log: log}
	go m.Run(ctx)
	return func() []gres.Sample {
		samples := nvml()
		m.Overlay(samples)
		return samples
	}
}

// InChild reads the GPUs by "carma-node sample" in a process of its own: a call into a
// wedged driver never returns, and neither a hook nor the doctor may wait for it.
func InChild(ctx context.Context, config string) ([]gres.Sample, error) {
	config, err := filepath.Abs(config)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe", "--config", config, "sample")
	cmd.Dir = "/"
	out, err := outputWithin(ctx, cmd)
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return nil, errors.New(strings.TrimPrefix(strings.TrimSpace(string(exit.Stderr)), "carma-node: "))
	} else if err != nil {
		return nil, err
	}
	var samples []gres.Sample
	return samples, json.Unmarshal(out, &samples)
}

// outputWithin is cmd.Output with a way out for a process that cannot be killed.
func outputWithin(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := cmd.Output()
		done <- result{out, err}
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
		if cmd.Process != nil {
			cmd.Process.Kill()
		}
		return nil, ctx.Err()
	}
}
