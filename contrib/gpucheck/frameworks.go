// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"carma/prolog/oomscan"
)

// absent is the exit status of a script whose framework is not there, or sees no GPU.
const absent = 77

const (
	needTorch = "import sys\ntry:\n import torch\nexcept ImportError:\n sys.exit(77)\n" +
		"torch.cuda.is_available() or sys.exit(77)\n"
	needJax = "import sys\ntry:\n import jax\nexcept ImportError:\n sys.exit(77)\n" +
		"any(d.platform == 'gpu' for d in jax.devices()) or sys.exit(77)\n"
)

const (
	twelve  = "x = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(12)]" // GiB
	product = "x = jax.numpy.ones((4096, 4096)); print((x @ x).sum(), jax.devices()[0].memory_stats())"
)

// frameworks asks PyTorch and JAX for too much memory, and keeps their messages.
func frameworks(_ context.Context, k *kit) {
	const limit = "0=10240M"
	for _, q := range []struct {
		name, script string
		env          []string
		limited, oom bool // under a limit of 10 GiB; the program ends with OOM
	}{
		{"pytorch-1PiB", needTorch + "torch.empty(1 << 50, dtype=torch.uint8, device='cuda')", nil, false, true},
		{"pytorch-limit",
			needTorch + twelve, nil, true, true},
		{"pytorch-expandable",
			needTorch + twelve,
			[]string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, true, true},
		{"pytorch-within",
			needTorch + "x = [torch.ones(1 << 28, device='cuda') for _ in range(6)]; print(x[0].sum())",
			nil, true, false},
		{"jax-1PiB", needJax + "jax.numpy.zeros(1 << 48, dtype='float32').block_until_ready()", nil, false, true},
		{"jax-defaults",
			needJax + product, nil, true, false},
		{"jax-fraction",
			needJax + product,
			[]string{"XLA_PYTHON_CLIENT_MEM_FRACTION=0.1"}, true, false},
		{"jax-limit", needJax + "x = [jax.numpy.ones(1 << 28).block_until_ready() for _ in range(12)]", nil, true,
			true},
	} {
		assumes := "it runs"
		if q.oom {
			assumes = "it ends with OOM, in words that CARMA knows"
		}
		k.check(q.name, assumes, "prolog/oomscan/signatures.go", func(c *check) error {
			ask := func(pipes string) error {
				env := environ(append(q.env, "CUDA_VISIBLE_DEVICES="+k.gpu.UUID, "HOME="+k.dir)...)
				if pipes != "" {
					env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+pipes, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+limit)
				}
				python := k.python()
				if python == "" {
					c.skip("no python3 in PATH that users may run")
					return nil
				}
				a := k.ask(uidA, 60*time.Second, "", env, python, "-c", q.script)
				if a.Status == absent {
					c.skip("the framework is not installed, or sees no GPU")
					return nil
				}
				c.text("stdout", a.Stdout)
				c.text("stderr", a.Stderr)
				found := oomscan.Scan([]byte(a.Stderr))
				oom := found.Grade == oomscan.Strong
				// Nobody reads the texts of a program with exit 0.
				c.judge((a.Status == 0) != q.oom && (oom || !q.oom), "status %d, OOM %v (%s)", a.Status, oom, found.ID)
				return nil
			}
			if !q.limited {
				return ask("")
			}
			return k.withMPS(c, uidA, func() error { return ask(k.pipes()) })
		})
	}
	k.check("pytorch-workspace", "a convolution whose workspace the limit refuses goes on with another algorithm",
		"estimator/README.md: need and wish", k.workspaces)
}

// hasTorch tells whether users have a PyTorch with the GPU.
func (k *kit) hasTorch() bool {
	python := k.python()
	return python != "" && k.ask(uidA, time.Minute, "", environ("CUDA_VISIBLE_DEVICES="+k.gpu.UUID), python, "-c",
		needTorch).Status == 0
}

// trainings is the path of trainings.py.
func (k *kit) trainings() string { return filepath.Join(filepath.Dir(k.bin), "share", "trainings.py") }

// python is the first python3 that users may run; empty: none.
func (k *kit) python() string {
	found, _ := exec.LookPath("python3")
	for _, path := range []string{found, "/usr/bin/python3"} {
		if path != "" && k.ask(uidA, 20*time.Second, "", environ(), path, "-c", "pass").Status == 0 {
			return path
		}
	}
	return ""
}

// truth makes the trainings of trainings.py. Each is a line of its own, kept as it comes.
func truth(_ context.Context, k *kit) {
	k.check("trainings", "", "contrib/gpucheck/data: rows for make bench-estimator", func(c *check) error {
		python := k.python()
		if python == "" {
			c.skip("no python3 in PATH that users may run")
			return nil
		}
		cmd := exec.CommandContext(k.ctx, python, k.trainings())
		if k.short {
			cmd.Args = append(cmd.Args, "--first", "4")
		}
		cmd.Env, cmd.Dir = environ("CUDA_VISIBLE_DEVICES="+k.gpu.UUID, "HOME="+k.dir, "PYTHONUNBUFFERED=1"), k.dir
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		from, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("start python3: %w", err)
		}
		rows := 0
		lines := bufio.NewScanner(from)
		lines.Buffer(nil, 4<<20) // a summary is long
		for lines.Scan() {
			var row map[string]any
			if json.Unmarshal(lines.Bytes(), &row) == nil {
				row["kind"], row["simulated"] = "training", k.simulated
				k.out.line(row)
				rows++
			}
		}
		cmd.Wait()
		c.text("stderr", stderr.String())
		c.Saw = fmt.Sprintf("%d trainings", rows)
		if status := cmd.ProcessState.ExitCode(); status == absent {
			c.skip("PyTorch is not installed, or sees no GPU")
		} else if status > 0 {
			return fmt.Errorf("trainings.py ended with status %d after %d trainings: %.300s", status, rows,
				stderr.String())
		}
		return nil
	})
}
