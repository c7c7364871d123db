// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// hurt holds the checks that may leave the driver or the GPU unwell. This part is the
// last.
func hurt(_ context.Context, k *kit) {
	for _, how := range []struct {
		name, assumes string
		signal        syscall.Signal
		ask           bool // terminate_client first
	}{
		{"terminate-client", "after terminate_client and a signal the neighbour goes on, and computes the same",
			syscall.SIGKILL, true},
		{"sigterm", "NVIDIA calls the end of a client by a signal undefined; CARMA takes the neighbour to be well",
			syscall.SIGTERM, false},
		{"sigkill", "as sigterm", syscall.SIGKILL, false},
	} {
		k.check(how.name, how.assumes, "prolog: what ends a job; docs/threat-model.md: scancel beside a neighbour",
			func(c *check) error {
				return k.withMPS(c, uidA, func() error { return k.kill(c, k.rounds(12, 2), how.signal, how.ask) })
			})
	}
	k.check("daemon-killed",
		"after kill -9 of the daemon its clients go on or end with an error, and a new daemon starts within 20 s",
		"gres/mps/tenure.go: Keep; gres/mps/alive.go: tidy", k.killDaemon)
	k.check("too-many", "", "gres/choose: jobs of one GPU", k.tooMany)
	k.check("illegal-access",
		"an illegal access ends all clients of the server, the server's log names them, and the server is new afterwards",
		"gres/mps/server_log.go; gres/lease/fault.go", k.illegal)
}

// kill ends a busy client n times beside a neighbour, whose result must be that of an
// undisturbed run.
func (k *kit) kill(c *check, n int, signal syscall.Signal, ask bool) error {
	neighbour := job{uid: uidA, memMiB: 1024, smactPct: 30, alone: 2 * time.Second, pipes: k.pipes()}
	undisturbed, status, err := k.ends(neighbour)
	if err != nil || status != 0 {
		return fmt.Errorf("a load alone ended with status %d (%w)", status, err)
	}
	well, same := 0, 0
	for range n {
		if k.ctx.Err() != nil {
			break
		}
		beside, err := k.start(neighbour)
		if err != nil {
			return err
		}
		victim, err := k.start(job{uid: uidA, memMiB: 1024, smactPct: 60, alone: time.Hour, pipes: k.pipes()})
		if err != nil {
			beside.stop()
			return err
		}
		err = errorsOf(k.awaitReady(victim), k.awaitReady(beside))
		k.pause(300 * time.Millisecond)
		if ask && err == nil {
			c.text("terminate_client", fmt.Sprint(k.mps.Terminate(k.ctx, k.daemon(), victim.cmd.Process.Pid)))
		}
		victim.cmd.Process.Signal(signal)
		victim.wait()
		if err != nil {
			beside.stop()
			return err
		}
		status, err := beside.wait()
		if err != nil {
			return err
		}
		if status == 0 {
			well++
		} else {
			c.text("neighbour", beside.stderr.String())
		}
		if status == 0 && beside.saw.Result == undisturbed.saw.Result && beside.saw.Result != "" {
			same++
		}
	}
	c.judge(well == n && same == n, "of %d neighbours %d ended well, %d with the result of an undisturbed run", n,
		well, same)
	return nil
}

func (k *kit) killDaemon(c *check) error {
	return k.withMPS(c, uidA, func() error {
		p, err := k.start(job{uid: uidA, memMiB: 1024, smactPct: 30, alone: 3 * time.Second, pipes: k.pipes()})
		if err != nil {
			return err
		}
		defer p.stop()
		if err := k.awaitReady(p); err != nil {
			return err
		}
		killed := 0
		for _, pid := range descendants(os.Getpid()) {
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.HasSuffix(exe,
				"/nvidia-cuda-mps-control") {
				syscall.Kill(pid, syscall.SIGKILL)
				killed++
			}
		}
		if killed == 0 {
			return fmt.Errorf("found no daemon to kill below process %d", os.Getpid())
		}
		status, err := p.wait()
		if err != nil {
			return err
		}
		c.text("client", p.stderr.String())
		c.text("modes", modes(k.pipes()))
		ctx, cancel := context.WithTimeout(k.ctx, 20*time.Second)
		defer cancel()
		begun := time.Now()
		for err = k.keepDaemon(ctx); err != nil && ctx.Err() == nil; err = k.keepDaemon(ctx) {
			k.pause(200 * time.Millisecond)
		}
		if err == nil {
			err = k.mps.Admit(ctx, k.daemon(), uidA)
		}
		c.add(time.Since(begun).Seconds(), "s", "until the new daemon has a server")
		c.judge(err == nil && k.listens(), "the client ended with status %d; a new daemon: %v", status, err)
		return nil
	})
}

// tooMany starts more clients than a server takes: 48 before Volta, 60 from 570 on.
func (k *kit) tooMany(c *check) error {
	n := k.rounds(61, 8)
	return k.withMPS(c, uidA, func() error {
		var all []*process
		for range n {
			p, err := k.start(job{uid: uidA, memMiB: 8, smactPct: 1, alone: time.Hour, pipes: k.pipes()})
			if err != nil {
				return err
			}
			defer p.stop()
			all = append(all, p)
		}
		up := 0
		for _, p := range all {
			if k.awaitReady(p) == nil {
				up++
			} else {
				c.text("refused", p.stderr.String())
			}
		}
		c.Saw = fmt.Sprintf("%d of %d clients at once", up, n)
		return nil
	})
}

func (k *kit) illegal(c *check) error {
	return k.withMPS(c, uidA, func() error {
		var all []*process
		for _, wild := range []time.Duration{0, time.Second} {
			p, err := k.start(job{uid: uidA, memMiB: 512, smactPct: 20, alone: 6 * time.Second, wild: wild,
				pipes: k.pipes()})
			if err != nil {
				return err
			}
			defer p.stop()
			if err := k.awaitReady(p); err != nil {
				return err
			}
			all = append(all, p)
		}
		list := strings.Fields(k.control(0, "get_server_list").Stdout)
		if len(list) == 0 {
			return fmt.Errorf("the daemon names no server")
		}
		// A look each 10 ms, and each state when it was first seen.
		begun := time.Now()
		var states strings.Builder
		last := ""
		for time.Since(begun) < 5*time.Second && k.ctx.Err() == nil {
			if s := strings.TrimSpace(k.control(0, "get_server_status "+list[0]).Stdout); s != last {
				fmt.Fprintf(&states, "%.3f s: %s\n", time.Since(begun).Seconds(), s)
				last = s
			}
			k.pause(10 * time.Millisecond)
		}
		c.text("states", states.String())
		var ended []int
		for _, p := range all {
			status, err := p.wait()
			if err != nil {
				return err
			}
			ended = append(ended, status)
			c.text(fmt.Sprintf("client %d", len(ended)), p.stderr.String())
		}
		fault, _, err := k.mps.ServerFault(k.daemon(), 0)
		if err != nil {
			return err
		}
		find := exec.Command("find", k.mps.LogDir, "-name", "server.log", "-exec", "cat", "{}", "+")
		text, _ := find.Output()
		c.text("server.log", string(text))
		after, status, err := k.ends(job{uid: uidA, memMiB: 512, smactPct: 20, alone: 300 * time.Millisecond,
			pipes: k.pipes()})
		if err != nil {
			return err
		}
		c.text("client afterwards", after.stderr.String())
		c.judge(ended[0] != 0 && ended[1] != 0 && fault && status == 0,
			"neighbour: status %d; culprit: status %d; the log tells the fault: %v; a client afterwards: status %d",
			ended[0], ended[1], fault, status)
		return nil
	})
}
