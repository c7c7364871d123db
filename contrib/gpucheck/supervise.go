// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// marker is in the environment of every process of a part. Nothing here depends on the
// marker, which helps people to find processes that were left.
const marker = "CARMA_GPU_KIT"

// grace is the time that a part has to clean up after its own time.
const grace = 10 * time.Second

// supervise runs a part in a process, with mounts of its own, and ends all its descendants.
// Daemons leave their parents, so both processes are reapers (PR_SET_CHILD_SUBREAPER): the
// part's process gets its orphans, and when the part's process dies, the supervisor gets
// them. When the supervisor dies, the part's process reads the end of the pipe, and ends
// them.
func supervise(ctx context.Context, p part, o options, command string, out io.Writer) (state string, ok bool) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Sprintf("failed: become reaper: %v", err), false
	}
	lifeline, held, err := os.Pipe()
	if err != nil {
		return fmt.Sprintf("failed: %v", err), false
	}
	defer held.Close()
	defer lifeline.Close()
	dir, err := os.MkdirTemp("/tmp", "ck") // short: UNIX sockets lie below
	if err != nil {
		return fmt.Sprintf("failed: %v", err), false
	}
	defer os.RemoveAll(dir)
	self, err := os.Executable()
	if err != nil {
		return fmt.Sprintf("failed: %v", err), false
	}
	args := []string{"--part-of", dir, "--kit", o.kit, "--results", o.results, "--gpu", strconv.Itoa(o.gpu)}
	if o.short {
		args = append(args, "--short")
	}
	cmd := exec.Command(self, append(args, p.name)...)
	cmd.Env = append(os.Environ(), marker+"="+filepath.Base(dir), "CARMA_GPU_KIT_COMMAND="+command)
	cmd.ExtraFiles = []*os.File{lifeline}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNS | p.clone}
	cmd.WaitDelay = time.Second // a daemon may hold its stdout
	if err = cmd.Start(); errors.Is(err, syscall.EPERM) {
		again := exec.Command(self, cmd.Args[1:]...)
		again.Env, again.ExtraFiles, again.Stdout, again.Stderr = cmd.Env, cmd.ExtraFiles, out, out
		again.WaitDelay = time.Second
		again.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd = again
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Sprintf("failed: start: %v", err), false
	}
	limit := time.NewTimer(time.Duration(p.seconds) * time.Second)
	defer limit.Stop()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	state = "made"
	select {
	case <-ctx.Done():
		state = "stopped"
	case <-limit.C:
		state = "out of time"
	case <-ended:
		endTree()
		return outcome(cmd, state)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-ended:
	case <-time.After(grace + 5*time.Second):
		cmd.Process.Kill()
		<-ended
	}
	endTree()
	return state, false
}

func outcome(cmd *exec.Cmd, state string) (string, bool) {
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return "killed", false
	}
	if cmd.ProcessState.ExitCode() != 0 {
		return state + "; see the results", false
	}
	return state, true
}

// endTree kills all descendants of this process, and reaps them.
func endTree() {
	for until := time.Now().Add(grace); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		left := descendants(os.Getpid())
		if len(left) == 0 {
			return
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
}

// descendants are the processes below a process, by the parents in /proc.
func descendants(of int) []int {
	parent := map[int]int{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name stands in brackets and may hold anything.
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) > 1 {
			parent[pid], _ = strconv.Atoi(fields[1])
		}
	}
	var found []int
	for pid := range parent {
		for up := parent[pid]; up > 1; up = parent[up] {
			if up == of {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

// runPart is a part's own process.
func runPart(p part, o options, dir string) int {
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	syscall.CloseOnExec(3)
	lifeline := os.NewFile(3, "lifeline")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		lifeline.Read(make([]byte, 1)) // ends with the process that started us
		cancel()
		endTree()
		tidy(dir)
		os.Exit(exitFailed)
	}()
	stopped := notified(cancel)
	k, err := newKit(ctx, p, o, dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpucheck:", err)
		return exitFailed
	}
	begun := time.Now()
	p.run(ctx, k)
	state := "made"
	if stopped() {
		state = "stopped"
	}
	k.out.line(map[string]any{"kind": "end", "part": p.name, "state": state, "seconds": seconds(time.Since(begun))})
	k.out.close()
	endTree()
	tidy(dir)
	if k.contradicted || state != "made" {
		return exitFailed
	}
	return 0
}
