// SPDX-License-Identifier: Apache-2.0

// Command gpucheck tries CARMA's paths to a GPU on a real one, without Slurm:
// readings, sampler, MPS, memory limit, OOM texts, collocation. `make gpu-check`
// builds and runs it. It prints a table, writes JSON where --json says, and ends
// with 0 if all went well, 1 if not, 3 if there is no GPU.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"carma/gres"
	"carma/gres/mps"
	"carma/gres/nvml"
	"carma/slurmbridge/version"
)

const (
	exitFailed = 1
	exitNoGPU  = 3
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errors io.Writer) int {
	f := pflag.NewFlagSet("gpucheck", pflag.ContinueOnError)
	f.SetOutput(errors)
	library := f.String("library", "libnvidia-ml.so.1", "NVML `library`, a name or a path")
	load := f.String("load", "", "`program` that keeps a GPU busy (gpuload)")
	control := f.String("mps-control", "/usr/bin/nvidia-cuda-mps-control", "MPS control `program`")
	index := f.Int("gpu", 0, "`index` of the GPU to use; nothing else may run on it")
	scale := f.Float64("time-scale", 1, "of simulated GPUs")
	rounds := f.Int("rounds", 20, "of the memory limit")
	jsonFile := f.String("json", "", "`file` for the results")
	if err := f.Parse(args); err != nil {
		return exitFailed
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b, err := newBench(*library, *index)
	if err != nil {
		fmt.Fprintf(errors, "gpucheck: no GPU to check: %v\n", err)
		return exitNoGPU
	}
	b.load, b.scale, b.rounds = *load, *scale, *rounds
	if b.runDir, err = os.MkdirTemp("/tmp", "gpucheck"); err != nil {
		fmt.Fprintln(errors, "gpucheck:", err)
		return exitFailed
	}
	defer os.RemoveAll(b.runDir)
	if _, err := os.Stat(*control); err == nil {
		b.mps = mps.Control{Program: *control, RunDir: b.runDir, LogDir: filepath.Join(b.runDir, "log")}
	}
	results := b.all(ctx, frameworks())
	if b.scale != 1 {
		b.gpu.Model += " (simulated)" // no figure of it is one of a GPU
	}
	printResults(out, b.gpu.Model, results)
	if *jsonFile != "" {
		if err := writeJSON(*jsonFile, b.gpu, results); err != nil {
			fmt.Fprintln(errors, "gpucheck:", err)
			return exitFailed
		}
	}
	for _, r := range results {
		if !r.OK {
			return exitFailed
		}
	}
	return 0
}

func newBench(library string, index int) (*bench, error) {
	n, err := nvml.Open(library)
	if err != nil {
		return nil, err
	}
	for _, s := range n.Sample() {
		if s.Index == index && !s.MIG {
			return &bench{gpus: n, gpu: s.GPU}, nil
		}
	}
	return nil, fmt.Errorf("NVML shows no whole GPU of index %d", index)
}

// frameworks asks PyTorch and JAX for 1 PiB.
func frameworks() []framework {
	const absent = 77
	script := "import sys\ntry:\n import %s\nexcept ImportError:\n sys.exit(77)\n%s\n"
	return []framework{
		{"pytorch", []string{"python3", "-c", fmt.Sprintf(script, "torch",
			"torch.cuda.is_available() or sys.exit(77)\ntorch.empty(1 << 50, dtype=torch.uint8, device='cuda')")}, absent},
		{"jax", []string{"python3", "-c", fmt.Sprintf(script, "jax",
			"any(d.platform == 'gpu' for d in jax.devices()) or sys.exit(77)\njax.numpy.zeros(1 << 40, "+
				"dtype='float32').block_until_ready()")}, absent},
	}
}

func printResults(w io.Writer, model string, results []result) {
	fmt.Fprintf(w, "# %s\n\n| check | what | value |\n|---|---|---:|\n", model)
	for _, r := range results {
		state := "ok"
		if r.Skipped != "" {
			state = "skipped: " + r.Skipped
		} else if !r.OK {
			state = "FAILED"
		}
		fmt.Fprintf(w, "| %s | %s | %s |\n", r.Name, strings.ReplaceAll(strings.TrimSpace(r.Note), "\n", " "), state)
		for _, f := range r.Figures {
			fmt.Fprintf(w, "| | %s | %.4g %s |\n", f.What, f.Value, f.Unit)
		}
	}
}

func writeJSON(path string, gpu gres.GPU, results []result) error {
	text, err := json.MarshalIndent(map[string]any{"schema": "carma.gpu-check/1", "version": version.String(), "gpu": gpu,
		"checks": results}, "", "  ")
	if err != nil {
		return fmt.Errorf("write results: %w", err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
