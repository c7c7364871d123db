// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// workspaceLimitMiB has room for a context and the tensors of trainings.py's convolutions, and
// none for the largest workspaces that cuDNN offers for the convolutions.
const workspaceLimitMiB = 3072

// convolution is a line of trainings.py --workspaces.
type convolution struct {
	Name      string  `json:"convolution"`
	Benchmark bool    `json:"benchmark"` // torch.backends.cudnn.benchmark
	Failed    bool    `json:"failed"`
	TensorMiB float64 `json:"tensors_mib"`
	MostMiB   float64 `json:"allocated_mib"` // with the workspace
	HeldMiB   float64 `json:"reserved_mib"`
	StepMs    float64 `json:"step_ms"`
}

func (v *convolution) String() string {
	if v.Benchmark {
		return v.Name + ", benchmark"
	}
	return v.Name
}

// workspaces asks what a convolution does whose workspace is refused: alone on the GPU the
// convolution may take its full workspace, under a limit the convolution must do with less. The
// estimator books the need and not the wish.
func (k *kit) workspaces(c *check) error {
	python := k.python()
	if python == "" {
		c.skip("no python3 in PATH that users may run")
		return nil
	}
	args := []string{python, k.trainings(), "--workspaces"}
	if k.short {
		args = append(args, "--first", "2")
	}
	var took [2][]convolution // on the empty GPU, under the limit
	ask := func(i int, env ...string) error {
		env = environ(append(env, "CUDA_VISIBLE_DEVICES="+k.gpu.UUID, "HOME="+k.dir)...)
		a := k.ask(uidA, 60*time.Second, "", env, args...)
		c.text([]string{"stderr", "stderr under the limit"}[i], a.Stderr)
		if a.Status == absent {
			c.skip("the framework is not installed, or sees no GPU")
			return nil
		}
		took[i] = convolutions(a.Stdout)
		if a.Status != 0 || len(took[i]) == 0 {
			return fmt.Errorf("trainings.py --workspaces ended with status %d: %.300s", a.Status, a.Stderr)
		}
		return nil
	}
	if err := ask(0); err != nil || c.Verdict != "" {
		return err
	}
	err := k.withMPS(c, uidA, func() error {
		return ask(1, "CUDA_MPS_PIPE_DIRECTORY="+k.pipes(),
			fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", workspaceLimitMiB))
	})
	if err == nil && c.Verdict == "" {
		c.judgeWorkspaces(took[0], took[1])
	}
	return err
}

func convolutions(text string) (all []convolution) {
	for line := range strings.Lines(text) {
		var v convolution
		if json.Unmarshal([]byte(line), &v) == nil && v.Name != "" {
			all = append(all, v)
		}
	}
	return all
}

// judgeWorkspaces notes the memory of each convolution and how long a step lasted. Where none
// took more than the limit when free to, the limit refused nothing, and nothing is shown.
func (c *check) judgeWorkspaces(free, limited []convolution) {
	refused, failures := 0, 0
	for i := range free {
		if i >= len(limited) || limited[i].Name != free[i].Name || limited[i].Benchmark != free[i].Benchmark {
			c.Saw, c.Verdict = fmt.Sprintf("no answer under the limit for %s", &free[i]), failed
			return
		}
		a, b := &free[i], &limited[i]
		if a.Failed {
			c.Saw, c.Verdict = fmt.Sprintf("%s failed on the empty GPU", a), failed
			return
		}
		c.add(a.TensorMiB, "MiB", "%s: its tensors", a)
		c.add(a.MostMiB, "MiB", "%s: taken at most on the empty GPU", a)
		c.add(a.HeldMiB, "MiB", "%s: held on the empty GPU", a)
		c.add(a.StepMs, "ms", "%s: a step on the empty GPU", a)
		if a.MostMiB > workspaceLimitMiB {
			refused++
		}
		if b.Failed {
			failures++
			continue
		}
		c.add(b.MostMiB, "MiB", "%s: taken at most under %d MiB", b, workspaceLimitMiB)
		c.add(b.StepMs, "ms", "%s: a step under %d MiB", b, workspaceLimitMiB)
	}
	saw := fmt.Sprintf("%d convolutions, %d of them took more than %d MiB on the empty GPU; under that limit %d failed",
		len(free), refused, workspaceLimitMiB, failures)
	if refused == 0 && failures == 0 {
		c.Saw = saw // measured: the limit refused nothing
		return
	}
	c.judge(failures == 0, "%s", saw)
}
