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
	load := job{memMiB: 1024, smactPct: 60, alone: time.Hour}
	training, leaving := job{training: "vit_small"}, load
	leaving.leave = time.Second
	for _, how := range []ending{
		{"terminate-client", load, syscall.SIGKILL, true, false},
		{"leaves", leaving, 0, false, true},
		{"sigterm", load, syscall.SIGTERM, false, true},
		{"sigkill", load, syscall.SIGKILL, false, true},
		{"training-interrupted", training, syscall.SIGINT, false, false},
		{"training-sigterm", training, syscall.SIGTERM, false, true},
	} {
		assumes := "the neighbour goes on, and computes the same"
		if how.hurts {
			assumes = "the neighbour goes on, or ends and the server's log tells the fault, by which CARMA requeues a job"
		}
		n := k.rounds(6, 3)
		if how.victim.training != "" {
			n = k.rounds(4, 3) // PyTorch takes seconds to start
		}
		k.check("ends-"+how.name, assumes, "prolog: what ends a job; docs/threat-model.md: scancel beside a neighbour",
			func(c *check) error {
				if how.victim.training != "" && !k.hasTorch() {
					c.skip("PyTorch is not installed, or sees no GPU")
					return nil
				}
				return k.withMPS(c, uidA, func() error { return k.beside(c, n, how) })
			})
	}
	k.check("ends-alone", "", "prolog: ofServerFault", k.endAlone)
	k.check("daemon-killed",
		"after kill -9 of the daemon its clients go on or end with an error, and a new daemon starts within 20 s",
		"gres/mps/tenure.go: Keep; gres/mps/alive.go: tidy", k.killDaemon)
	k.check("too-many", "", "gres/choose: jobs of one GPU", k.tooMany)
	k.check("illegal-access",
		"an illegal access ends all clients of the server, the server's log names them, and the server is new afterwards",
		"gres/mps/server_log.go; gres/lease/fault.go", k.illegal)
}

// ending is a way to end a busy client.
type ending struct {
	name   string
	victim job
	signal syscall.Signal // 0: the victim ends by itself
	ask    bool           // terminate_client first
	hurts  bool           // the neighbour may end, too, where the server's log tells the fault
}

// beside ends a busy client n times beside a neighbour. A neighbour that goes on computes the same as undisturbed.
func (k *kit) beside(c *check, n int, how ending) error {
	how.victim.uid, how.victim.pipes = uidA, k.pipes()
	neighbour := job{uid: uidA, memMiB: 1024, smactPct: 30, alone: 2 * time.Second, pipes: k.pipes()}
	undisturbed, status, err := k.ends(neighbour)
	if err != nil || status != 0 {
		return fmt.Errorf("a load alone ended with status %d (%w)", status, err)
	}
	well, same, told, made := 0, 0, 0, 0
	_, from, err := k.mps.ServerFault(k.daemon(), 0)
	for ; made < n && err == nil && k.ctx.Err() == nil; made++ {
		var p *process
		var fault bool
		if p, status, err = k.endBeside(c, how, neighbour); err != nil {
			break
		}
		if fault, from, err = k.serverFault(from); status == 0 {
			well++
		} else if fault {
			told++
		}
		if status == 0 && p.saw.Result == undisturbed.saw.Result && p.saw.Result != "" {
			same++
		}
	}
	c.text("server.log", k.serverLog())
	if err == nil {
		err = k.ctx.Err() // a stopped part has killed clients, too
	}
	c.judge(same == well && (well == made || how.hurts && well+told == made),
		"of %d neighbours %d ended well, %d with the result of an undisturbed run; of %d others the log tells the fault",
		made, well, same, told)
	return err
}

// serverFault asks the daemon first, whose answer comes after all that servers have logged.
func (k *kit) serverFault(from int64) (fault bool, end int64, err error) {
	k.control(0, "get_server_list")
	return k.mps.ServerFault(k.daemon(), from)
}

// endBeside starts a neighbour and a victim, ends the victim, and returns the neighbour and its status.
func (k *kit) endBeside(c *check, how ending, neighbour job) (*process, int, error) {
	p, err := k.begin(how.victim)
	if err != nil {
		return nil, 0, err
	}
	defer p.stop()
	beside, err := k.begin(neighbour)
	if err != nil {
		return nil, 0, err
	}
	defer beside.stop()
	k.pause(300 * time.Millisecond)
	if how.ask {
		c.text("terminate_client", fmt.Sprint(k.mps.Terminate(k.ctx, k.daemon(), p.cmd.Process.Pid)))
	}
	if how.signal != 0 {
		p.cmd.Process.Signal(how.signal)
	}
	ended, err := p.wait()
	if err != nil {
		return nil, 0, err
	}
	status, err := beside.wait()
	c.text("victim", fmt.Sprintf("status %d\n%s", ended, p.stderr.String()))
	if status != 0 {
		c.text("neighbour", beside.stderr.String())
	}
	return beside, status, err
}

// endAlone ends a busy client without a neighbour, and tells how later clients fare.
func (k *kit) endAlone(c *check) error {
	return k.withMPS(c, uidA, func() error {
		victim, err := k.begin(job{uid: uidA, memMiB: 1024, smactPct: 60, alone: time.Hour, pipes: k.pipes()})
		if err != nil {
			return err
		}
		defer victim.stop()
		k.pause(time.Second)
		victim.cmd.Process.Signal(syscall.SIGTERM)
		if _, err := victim.wait(); err != nil {
			return err
		}
		begun, refused, well := time.Now(), 0, 0
		var said strings.Builder
		for time.Since(begun) < 6*time.Second && k.ctx.Err() == nil {
			at := time.Since(begun).Seconds()
			list := strings.TrimSpace(k.control(0, "get_server_list").Stdout)
			state := strings.TrimSpace(k.control(0, "get_server_status "+list).Stdout)
			p, err := k.start(job{uid: uidA, memMiB: 64, smactPct: 5, alone: 50 * time.Millisecond, pipes: k.pipes()})
			if err != nil {
				return err
			}
			status, err := p.wait()
			if err != nil {
				return err
			}
			fmt.Fprintf(&said, "%.3f s: server %s %s; a client's status %d after %.3f s %s\n", at, list, state, status,
				p.took.Seconds(), strings.TrimSpace(p.stderr.String()))
			if status != 0 {
				refused++
			} else if well++; well == 1 {
				c.add(at, "s", "until a client came that ended well")
			}
		}
		c.text("clients", said.String())
		c.text("server.log", k.serverLog())
		fault, _, err := k.mps.ServerFault(k.daemon(), 0)
		c.Saw = fmt.Sprintf("of the clients that came within 6 s %d ended well, %d did not; the log tells a fault: %v",
			well, refused, fault)
		return err
	})
}

// serverLog is the text of the servers' log.
func (k *kit) serverLog() string {
	text, _ := exec.Command("find", k.mps.LogDir, "-name", "server.log", "-exec", "cat", "{}", "+").Output()
	return string(text)
}

func (k *kit) killDaemon(c *check) error {
	return k.withMPS(c, uidA, func() error {
		p, err := k.begin(job{uid: uidA, memMiB: 1024, smactPct: 30, alone: 3 * time.Second, pipes: k.pipes()})
		if err != nil {
			return err
		}
		defer p.stop()
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
			// The fault ends both, however long the second takes to start.
			p, err := k.start(job{uid: uidA, memMiB: 512, smactPct: 20, alone: time.Minute, wild: wild,
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
		fault, _, err := k.serverFault(0)
		if err != nil {
			return err
		}
		c.text("server.log", k.serverLog())
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
