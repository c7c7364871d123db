// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"carma/gres/mps"
)

// start is about clients that connect while a server starts.
func start(_ context.Context, k *kit) {
	n := k.rounds(20, 5)
	k.check("first-clients", "clients that come after Admit are all served", "gres/mps/admit.go: startServer",
		func(c *check) error {
			return k.withMPS(c, uidA, func() error {
				var all []*process
				for range n {
					p, err := k.start(job{uid: uidA, memMiB: 64, smactPct: 1, alone: 500 * time.Millisecond,
						pipes: k.pipes()})
					if err != nil {
						return err
					}
					defer p.stop()
					all = append(all, p)
				}
				well := 0
				var slowest time.Duration
				var texts strings.Builder
				for _, p := range all {
					if status, err := p.wait(); err == nil && status == 0 {
						well++
					}
					slowest = max(slowest, p.up)
					texts.WriteString(p.stderr.String())
				}
				c.text("stderr", texts.String())
				c.add(slowest.Seconds(), "s", "until the last of %d was ready", n)
				c.judge(well == n, "%d of %d ended well", well, n)
				return nil
			})
		})
	k.check("change-of-user", "after the clients of one user have ended, another user's are served",
		"gres/mps/admit.go; gres/choose: one user a GPU", func(c *check) error {
			return k.withMPS(c, uidA, func() error {
				for _, uid := range []int{uidA, uidB, uidA} {
					begun := time.Now()
					ctx, cancel := context.WithTimeout(k.ctx, 20*time.Second)
					// As the agent, once no job of the earlier user holds the GPU.
					err := k.mps.Keep(ctx, k.daemon(), func(int64) (int64, error) { return int64(uid), nil })
					if err == nil {
						err = k.mps.Admit(ctx, k.daemon(), uint32(uid))
					}
					cancel()
					if err != nil {
						return err
					}
					c.add(time.Since(begun).Seconds(), "s", "until a server of user %d", uid)
					os.Chmod(k.pipes(), 0o755) // both at once: the ledger closes the GPU otherwise
					p, status, err := k.ends(job{uid: uid, memMiB: 64, smactPct: 5, alone: 300 * time.Millisecond,
						pipes: k.pipes()})
					if err != nil {
						return err
					}
					c.add(p.up.Seconds(), "s", "until a client of user %d was ready", uid)
					if status != 0 {
						c.judge(false, "user %d: status %d: %.200s", uid, status, p.stderr.String())
						return nil
					}
				}
				c.judge(true, "three changes")
				return nil
			})
		})
	k.check("multiuser-server", "", "docs/threat-model.md: -multiuser-server (driver 580), not used", k.multiuser)
}

// multiuser starts a daemon with a server for several users.
func (k *kit) multiuser(c *check) error {
	if !k.hasMPS || k.simulated {
		c.skip("needs a real MPS daemon of driver 580")
		return nil
	}
	pipes := filepath.Join(k.dir, "multi")
	if err := os.Mkdir(pipes, 0o755); err != nil {
		return err
	}
	env := environ("CUDA_MPS_PIPE_DIRECTORY="+pipes, "CUDA_MPS_LOG_DIRECTORY="+k.dir,
		"CUDA_VISIBLE_DEVICES="+k.gpu.UUID)
	a := k.ask(0, 20*time.Second, "", env, k.mps.Program, "-d", "-multiuser-server")
	c.text("start", a.Stdout+a.Stderr)
	if a.Status != 0 {
		c.skip("the daemon refused: status %d, %.200s", a.Status, a.Stdout+a.Stderr)
		return nil
	}
	defer func() {
		cmd := exec.Command(k.mps.Program)
		cmd.Env, cmd.Stdin = env, strings.NewReader("quit -t 2\n")
		cmd.Run()
	}()
	var both []*process
	for _, uid := range []int{uidA, uidB} {
		p, err := k.start(job{uid: uid, memMiB: 64, smactPct: 10, alone: 5 * time.Second, pipes: pipes})
		if err != nil {
			return err
		}
		defer p.stop()
		both = append(both, p)
	}
	err := errorsOf(k.awaitReady(both[0]), k.awaitReady(both[1]))
	list := k.ask(0, 20*time.Second, "get_server_list\n", env, k.mps.Program)
	c.text("servers", list.Stdout)
	c.Saw = fmt.Sprintf("clients of two users at once: %v; servers: %q", err, list.Stdout)
	return nil
}

// throughput runs equal loads together, by turns and under MPS. Nothing is judged here: the
// rows are for contrib/gpucheck/data.
func throughput(_ context.Context, k *kit) {
	alone := time.Duration(k.rounds(4000, 1500)) * time.Millisecond
	for _, pct := range []int{25, 60} {
		base := 0.0
		k.check(fmt.Sprintf("alone-%d", pct), "", "", func(c *check) (err error) {
			base, err = k.together(c, pct, 1, alone, "")
			return err
		})
		for _, n := range []int{2, 4} {
			row := func(c *check, how, pipes string) error {
				took, err := k.together(c, pct, n, alone, pipes)
				if err != nil || base == 0 {
					return err
				}
				c.add(float64(n)*base/took, "x", "throughput against one after the other")
				c.Saw = fmt.Sprintf("%d loads of %d %% %s: each at %.2f of its speed alone", n, pct, how, base/took)
				demands := make([]int, n)
				for i := range demands {
					demands[i] = pct
				}
				k.out.line(map[string]any{"kind": "interference", "demand_pct": demands, "mps": pipes != "",
					"rate":      base / took,
					"simulated": k.simulated})
				return nil
			}
			k.check(fmt.Sprintf("by-turns-%d-of-%d", n, pct), "", "cmd/carma-sim/internal/model/model.toml: law",
				func(c *check) error {
					return row(c, "by turns", "")
				})
			k.check(fmt.Sprintf("mps-%d-of-%d", n, pct), "", "cmd/carma-sim/internal/model/model.toml: law",
				func(c *check) error {
					return k.withMPS(c, uidA, func() error { return row(c, "under MPS", k.pipes()) })
				})
		}
	}
}

// together runs n loads at once: seconds from the last one's readiness to the end of all.
func (k *kit) together(c *check, pct, n int, alone time.Duration, pipes string) (float64, error) {
	before, err := k.sample()
	if err != nil {
		return 0, err
	}
	var all []*process
	for range n {
		p, err := k.start(job{uid: uidA, memMiB: 1024, smactPct: pct, alone: alone, pipes: pipes})
		if err != nil {
			return 0, err
		}
		defer p.stop()
		all = append(all, p)
	}
	var begun time.Time
	for _, p := range all {
		if err := k.awaitReady(p); err != nil {
			return 0, err
		}
		if at := p.start.Add(p.up); begun.IsZero() || at.Before(begun) {
			begun = at
		}
	}
	for _, p := range all {
		if status, err := p.wait(); err != nil || status != 0 {
			return 0, fmt.Errorf("a load of %d %% ended with status %d: %.200s", pct, status, p.stderr.String())
		}
	}
	took := time.Since(begun).Seconds()
	after, err := k.sample()
	c.add(took, "s", "until the last of %d had ended", n)
	c.add(float64(after.EnergyJ-before.EnergyJ), "J", "meanwhile")
	c.Saw = fmt.Sprintf("%.2f s", took)
	return took, err
}

// listens is a shorthand for the daemon of the one GPU.
func (k *kit) listens() bool { return mps.Listens(k.dir, k.daemon()) }
