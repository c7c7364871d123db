// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"carma/gres/nvml"
	"carma/prolog/oomscan"
)

const (
	limitMiB = 4096
	overMiB  = 6144
	wellMiB  = 2048
)

// limits is about CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, which keeps a job to its booking.
func limits(_ context.Context, k *kit) {
	limit := fmt.Sprintf("0=%dM", limitMiB)
	load := func(mem int, kind, limit string) job {
		return job{uid: uidA, memMiB: mem, smactPct: 20, alone: 600 * time.Millisecond, kind: kind, limit: limit,
			pipes: k.pipes()}
	}
	for _, kind := range []string{"plain", "async", "vmm"} {
		k.check("limit-"+kind,
			"a client that asks for more than its limit gets CUDA's error 2, in words that CARMA knows, "+
				"and one that keeps to it gets its memory", "docs/user.md: GPU memory; prolog/oomscan", func(c *check) error {
				return k.withMPS(c, uidA, func() error {
					over, status, err := k.ends(load(overMiB, kind, limit))
					if err != nil {
						return err
					}
					c.text("stderr", over.stderr.String())
					oom := oomscan.Scan(over.stderr.Bytes()).Grade == oomscan.Strong
					well, wellStatus, err := k.ends(load(wellMiB, kind, limit))
					if err != nil {
						return err
					}
					c.text("stderr within the limit", well.stderr.String())
					c.judge(status == 1 && oom && wellStatus == 0, "beyond: status %d, OOM %v; within: status %d",
						status, oom, wellStatus)
					return nil
				})
			})
	}
	k.check("limit-managed", "", "docs/user.md: managed memory", func(c *check) error {
		return k.withMPS(c, uidA, func() error {
			p, status, err := k.ends(load(overMiB, "managed", limit))
			if err == nil {
				c.text("stderr", p.stderr.String())
				c.Saw = fmt.Sprintf("beyond the limit: status %d (0: managed memory escapes it)", status)
			}
			return err
		})
	})
	k.check("limit-cgroup", "the driver holds the processes of a cgroup to its limit, without MPS, and tells it as the "+
		"card's total", "docs/adr/0020; gres/nvml/limits.go; prolog/frameworks.go", k.limitOfCgroup)
	k.check("meminfo", "under a limit cudaMemGetInfo tells free memory as of the limit, and the card's total",
		"docs/user.md: what a program sees; prolog: CARMA_MEM_FRACTION", func(c *check) error {
			return k.withMPS(c, uidA, func() error {
				p, status, err := k.ends(load(wellMiB, "plain", limit))
				if err != nil || status != 0 {
					return fmt.Errorf("a load within its limit ended with status %d: %.200s (%w)", status,
						p.stderr.String(), err)
				}
				c.add(float64(p.saw.TotalMiB), "MiB", "total")
				c.add(float64(p.saw.FreeBeforeMiB), "MiB", "free before")
				c.add(float64(p.saw.FreeAfterMiB), "MiB", "free after %d MiB", wellMiB)
				c.judge(p.saw.FreeBeforeMiB <= limitMiB && p.saw.TotalMiB > limitMiB, "total %d, free %d",
					p.saw.TotalMiB, p.saw.FreeBeforeMiB)
				return nil
			})
		})
	k.check("limit-pair", "the limit is of each process, not of a job", "docs/user.md: several processes of a job",
		func(c *check) error {
			return k.withMPS(c, uidA, func() error {
				j := load(limitMiB*3/4, "plain", limit)
				j.alone = 2 * time.Second
				var both []*process
				for range 2 {
					p, err := k.start(j)
					if err != nil {
						return err
					}
					defer p.stop()
					both = append(both, p)
				}
				err := errorsOf(k.awaitReady(both[0]), k.awaitReady(both[1]))
				c.judge(err == nil, "two processes with %d MiB each: %v", limitMiB*3/4, err)
				return nil
			})
		})
	for _, key := range []string{"0", k.gpu.UUID} {
		name := "ordinal"
		if key != "0" {
			name = "uuid"
		}
		k.check("key-"+name, "a limit can be given for an ordinal and for a UUID", "prolog: the job's MPS limit",
			func(c *check) error {
				return k.withMPS(c, uidA, func() error {
					p, status, err := k.ends(load(overMiB, "plain", fmt.Sprintf("%s=%dM", key, limitMiB)))
					if err == nil {
						c.text("stderr", p.stderr.String())
						c.judge(status == 1, "beyond the limit: status %d", status)
					}
					return err
				})
			})
	}
	k.check("context", "a context and the idle server take less than estimator's base", "estimator: DefaultBase",
		k.contextSize)
	k.check("pipe-stale",
		"with a pipe directory whose daemon is gone a program runs, without MPS and without its limit",
		"gres/mps/admit.go; docs/threat-model.md: a daemon that is gone", func(c *check) error {
			if !k.hasMPS {
				c.skip("no nvidia-cuda-mps-control in PATH")
				return nil
			}
			if err := k.withMPS(c, uidA, func() error { return nil }); err != nil {
				return err
			}
			os.Chmod(k.pipes(), 0o755)
			p, status, err := k.ends(load(overMiB, "plain", limit))
			if err == nil {
				c.text("modes", modes(k.pipes()))
				c.text("stderr", p.stderr.String())
				c.judge(status == 0, "status %d", status)
			}
			return err
		})
	k.check("pipe-empty", "with an empty pipe directory a program runs without MPS", "as pipe-stale",
		func(c *check) error {
			j := load(wellMiB, "plain", limit)
			j.pipes = filepath.Join(k.dir, "empty")
			os.Mkdir(j.pipes, 0o755)
			p, status, err := k.ends(j)
			if err == nil {
				c.text("stderr", p.stderr.String())
				c.judge(status == 0, "status %d", status)
			}
			return err
		})
}

// ends runs a load to its end.
func (k *kit) ends(j job) (*process, int, error) {
	p, err := k.start(j)
	if err != nil {
		return nil, 0, err
	}
	status, err := p.wait()
	if err == nil && status == 2 {
		err = fmt.Errorf("a load failed: %.300s", p.stderr.String())
	}
	return p, status, err
}

func errorsOf(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

// contextMiB is the most that a CUDA context may take beside the requested
// memory.
const contextMiB = 1024

func (k *kit) contextSize(c *check) error {
	return k.withMPS(c, uidA, func() error {
		empty, err := k.sample()
		if err != nil {
			return err
		}
		p, err := k.start(job{uid: uidA, memMiB: 64, smactPct: 5, alone: 20 * time.Second, pipes: k.pipes()})
		if err != nil {
			return err
		}
		defer p.stop()
		if err := k.awaitReady(p); err != nil {
			return err
		}
		k.pause(time.Second)
		s, err := k.sample()
		if err != nil {
			return err
		}
		c.add(float64(empty.UsedMiB), "MiB", "used with an idle server")
		c.add(float64(s.UsedMiB-empty.UsedMiB-64), "MiB", "of the GPU for a client's context")
		for _, q := range s.Processes {
			if q.PID == p.cmd.Process.Pid {
				c.add(float64(q.UsedMiB), "MiB", "of the client that holds 64 MiB, by NVML")
			}
		}
		c.judge(s.UsedMiB-empty.UsedMiB-64 <= contextMiB, "%d MiB for a context", s.UsedMiB-empty.UsedMiB-64)
		return nil
	})
}

// limitOfCgroup tries the limit of a cgroup, which drivers from R615 on have.
// The check needs a cgroup v2.
func (k *kit) limitOfCgroup(c *check) error {
	limits, err := nvml.FindMemoryLimits(library)
	if err != nil {
		c.skip("%v", err)
		return nil
	}
	dir := ""
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(mount, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			dir, err = os.MkdirTemp(mount, "carma-kit")
			break
		}
	}
	if dir == "" {
		c.skip("no cgroup v2 that can be written to (%v)", err)
		return nil
	}
	defer os.Remove(dir)
	group, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer group.Close()
	if err := limits.Set(dir, k.gpu.UUID, limitMiB); err != nil {
		c.judge(false, "%v", err)
		return nil
	}
	load := job{uid: uidA, memMiB: overMiB, smactPct: 20, alone: 600 * time.Millisecond, group: group}
	over, status, err := k.ends(load)
	if err != nil {
		return err
	}
	c.text("stderr", over.stderr.String())
	oom := oomscan.Scan(over.stderr.Bytes()).Grade == oomscan.Strong
	load.memMiB = wellMiB
	well, wellStatus, err := k.ends(load)
	if err != nil {
		return err
	}
	c.text("stderr within the limit", well.stderr.String())
	c.add(float64(well.saw.TotalMiB), "MiB", "total within the cgroup")
	c.judge(status == 1 && oom && wellStatus == 0 && well.saw.TotalMiB == limitMiB,
		"beyond: status %d, OOM %v; within: status %d, total %d MiB", status, oom, wellStatus, well.saw.TotalMiB)
	return nil
}
