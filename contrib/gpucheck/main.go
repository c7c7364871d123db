// SPDX-License-Identifier: Apache-2.0

// Command gpucheck asks a real GPU what CARMA assumes of it. The archive of `make
// gpu-kit` holds it as `run`, with a Slurm; `make test-gpu` is its short form without
// one. Each check is a line of JSON in --results, written when it is made. It ends with
// 0 if nothing contradicts CARMA, with 1 if something does, with 3 if there is no GPU.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

const (
	exitFailed = 1
	exitUsage  = 2
	exitNoGPU  = 3
)

// part is a group of checks with a time of its own.
type part struct {
	name    string
	seconds int // at most
	run     func(context.Context, *kit)
	about   string
	clone   uintptr // namespaces of its own, beside the mount namespace
}

// The parts, in the order in which `all` makes them: the part that may hurt the GPU's driver
// is last. Together the parts take less than 29 minutes.
func parts() []part {
	return []part{
		{"facts", 60, facts,
			"driver, device nodes, MPS daemon: files and modes, each command as root and as a user", 0},
		{"limits", 240, limits, "memory limits of MPS: each way to ask for memory, keys, what a client is told", 0},
		{"frameworks", 180, frameworks, "PyTorch and JAX under a limit, and their texts", 0},
		{"readings", 200, readings, "SM activity by GPM, processes, energy, how often may be read", 0},
		{"start", 120, start, "20 first clients at once, change of user, one server for several users", 0},
		{"throughput", 180, throughput, "loads together, time-sliced and under MPS, compared with one after the other", 0},
		{"slurm", 240, way, "a Slurm of one node with the agent: sharing, confinement, OOM, requeue",
			syscall.CLONE_NEWNET},
		{"truth", 240, truth, "short PyTorch trainings: what each takes", 0},
		{"hurt", 240, hurt, "clients and daemon killed beside a neighbour, an illegal access", 0},
	}
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func usage(f *pflag.FlagSet, w io.Writer) {
	fmt.Fprintln(w, "usage: run PART... [--seconds N] [--short] [--results FILE]")
	for _, p := range parts() {
		fmt.Fprintf(w, "  %-11s %4d s  %s\n", p.name, p.seconds, p.about)
	}
	fmt.Fprint(w, "  all                 all of them, in this order\n\n", f.FlagUsages())
}

func run(args []string, out, stderr io.Writer) int {
	f := pflag.NewFlagSet("gpucheck", pflag.ContinueOnError)
	f.SetOutput(stderr)
	var o options
	f.IntVar(&o.seconds, "seconds", 0, "end after `N` seconds, all parts together (each part has its own limit)")
	f.BoolVar(&o.short, "short", false, "fewer rounds, shorter loads")
	f.StringVar(&o.results, "results", "gpu-kit-results.jsonl", "append the results to `FILE`")
	f.IntVar(&o.gpu, "gpu", 0, "`index` of the GPU; nothing else may run on it")
	f.StringVar(&o.kit, "kit", "", "`directory` of the kit; without Slurm there, its part is left out")
	inner := f.String("part-of", "", "")
	f.MarkHidden("part-of")
	f.Usage = func() { usage(f, stderr) }
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		fmt.Fprintln(stderr, "gpucheck:", err)
		usage(f, stderr)
		return exitUsage
	}
	var chosen []part
	for _, name := range f.Args() {
		if name == "all" {
			chosen = append(chosen, parts()...)
			continue
		}
		i := slices.IndexFunc(parts(), func(p part) bool { return p.name == name })
		if i < 0 {
			fmt.Fprintf(stderr, "gpucheck: no part %q\n", name)
			usage(f, stderr)
			return exitUsage
		}
		chosen = append(chosen, parts()[i])
	}
	if len(chosen) == 0 || o.seconds < 0 {
		usage(f, stderr)
		return exitUsage
	}
	var err error
	if o.results, err = filepath.Abs(o.results); err == nil && o.kit == "" {
		o.kit, err = os.Executable()
		o.kit = filepath.Dir(filepath.Dir(o.kit))
	}
	if err != nil {
		fmt.Fprintln(stderr, "gpucheck:", err)
		return exitFailed
	}
	if *inner != "" {
		return runPart(chosen[0], o, *inner)
	}
	return runAll(chosen, o, args, out, stderr)
}

// options are the command line's.
type options struct {
	seconds, gpu int
	short        bool
	results, kit string
}

// runAll makes each part in a process of its own, and sees to it that nothing of the part is
// left.
func runAll(chosen []part, o options, args []string, out, stderr io.Writer) int {
	if _, err := findGPU(o.gpu); err != nil {
		fmt.Fprintf(stderr, "gpucheck: no GPU to check: %v\n", err)
		return exitNoGPU
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(stderr, "gpucheck: needs root: it starts daemons, and clients as other users")
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if o.seconds > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, time.Duration(o.seconds)*time.Second)
		defer cancel()
	}
	w, err := openResults(o.results)
	if err != nil {
		fmt.Fprintln(stderr, "gpucheck:", err)
		return exitFailed
	}
	defer w.close()
	status := 0
	for _, p := range chosen {
		if ctx.Err() != nil {
			w.line(map[string]any{"kind": "end", "part": p.name, "state": "not begun"})
			fmt.Fprintf(out, "%s: not begun\n", p.name)
			status = exitFailed
			continue
		}
		state, ok := supervise(ctx, p, o, "gpucheck "+strings.Join(args, " "), out)
		fmt.Fprintf(out, "%s: %s\n", p.name, state)
		if state == "killed" {
			w.line(map[string]any{"kind": "end", "part": p.name, "state": state})
		}
		if !ok {
			status = exitFailed
		}
	}
	return status
}
