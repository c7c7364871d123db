// SPDX-License-Identifier: Apache-2.0

// Package mps talks to the control daemons of the CUDA Multi-Process Service.
// Each GPU has a daemon of its own: a client that faults takes its server with
// it, on all GPUs that the server serves. Jobs on several GPUs have daemons of
// just these (docs/adr/0007).
package mps

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"carma/gres"
)

// name is short enough for the path of a socket, and no daemon's but d's.
func name(d gres.Daemon) string {
	if !d.Many() {
		return string(d)
	}
	sum := sha256.Sum256([]byte(d))
	return fmt.Sprintf("set-%x", sum[:8])
}

// PipeDir is where a daemon listens. Clients of every user must be able to go
// there, so only root can write into it.
func PipeDir(runDir string, d gres.Daemon) string { return filepath.Join(runDir, "mps", name(d)) }

// makePipeDir makes it, and what is above it, whatever the agent's umask.
func (c Control) makePipeDir(d gres.Daemon) error {
	dir := PipeDir(c.RunDir, d)
	return errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755))
}

// noteOf is the file that says which GPUs a daemon of several serves.
func noteOf(runDir string, d gres.Daemon) string { return PipeDir(runDir, d) + ".gpus" }

// Control starts, asks and stops daemons.
type Control struct {
	Program string // nvidia-cuda-mps-control
	RunDir  string
	LogDir  string // on disk: what users do fills it
}

// logDir is where a daemon writes control.log and server.log. Only root can go there:
// a server, which runs as its user, logs through the FIFO "log" of the pipe directory
// (580.126.09: strace in bottlerocket-os/bottlerocket#4673).
func (c Control) logDir(d gres.Daemon) string { return filepath.Join(c.LogDir, name(d)) }

func (c Control) env(d gres.Daemon) []string {
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + PipeDir(c.RunDir, d), "CUDA_MPS_LOG_DIRECTORY=" + c.logDir(d)}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CUDA_") && !strings.HasPrefix(v, "NOTIFY_SOCKET=") {
			env = append(env, v)
		}
	}
	return env
}

// Ensure starts the daemon unless it answers already.
func (c Control) Ensure(ctx context.Context, d gres.Daemon) error {
	if c.Answers(ctx, d) {
		return nil
	}
	if err := errors.Join(c.makePipeDir(d), c.makeLogDir(d)); err != nil {
		return fmt.Errorf("start MPS daemon of GPU %s: %w", d, err)
	}
	if d.Many() {
		if err := os.WriteFile(noteOf(c.RunDir, d), []byte(d), 0o644); err != nil {
			return fmt.Errorf("start MPS daemon of GPU %s: %w", d, err)
		}
	}
	cmd := exec.CommandContext(ctx, c.Program, "-d")
	cmd.Env = append(c.env(d), "CUDA_VISIBLE_DEVICES="+string(d))
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	// A session of its own: what ends the agent does not end the daemon,
	// whose clients are running jobs. No pipe either: a daemon that holds
	// one keeps whoever reads it waiting.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start MPS daemon of GPU %s: %s -d: %w", d, c.Program, err)
	}
	for !c.Answers(ctx, d) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("start MPS daemon of GPU %s: it does not answer: %w", d, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Listens tells whether the daemon has been started and not stopped.
func Listens(runDir string, d gres.Daemon) bool {
	_, err := os.Stat(filepath.Join(PipeDir(runDir, d), "control"))
	return err == nil
}

// Answers tells whether the daemon runs.
func (c Control) Answers(ctx context.Context, d gres.Daemon) bool {
	if !Listens(c.RunDir, d) {
		return false
	}
	_, err := c.Do(ctx, d, "get_server_list")
	return err == nil
}

// Quit stops the daemon.
func (c Control) Quit(ctx context.Context, d gres.Daemon) error {
	_, err := c.Do(ctx, d, "quit")
	if err == nil && d.Many() {
		err = os.Remove(noteOf(c.RunDir, d))
	}
	return err
}

// Sets returns the daemons of several GPUs that have been started and not
// stopped, by whatever process.
func (c Control) Sets() ([]gres.Daemon, error) {
	notes, err := filepath.Glob(filepath.Join(c.RunDir, "mps", "set-*.gpus"))
	if err != nil {
		return nil, fmt.Errorf("list MPS daemons: %w", err)
	}
	var sets []gres.Daemon
	for _, path := range notes {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("list MPS daemons: %w", err)
		}
		if d := gres.Daemon(text); Listens(c.RunDir, d) {
			sets = append(sets, d)
		}
	}
	return sets, nil
}

// Faulted tells whether a server of the daemon is in the state FAULT: a
// client has made an illegal access, every client of the server dies, and it
// takes no new ones until they have gone.
func (c Control) Faulted(ctx context.Context, d gres.Daemon) (bool, error) {
	servers, err := c.servers(ctx, d)
	if err != nil {
		return false, err
	}
	for _, server := range servers {
		status, err := c.Do(ctx, d, "get_server_status "+server)
		if err != nil {
			return false, err
		}
		if strings.Contains(status, "FAULT") {
			return true, nil
		}
	}
	return false, nil
}

// Terminate ends the GPU work of a client, if it is one of the daemon's, in an
// orderly way. To kill a client whose kernels run may hurt its neighbours.
func (c Control) Terminate(ctx context.Context, d gres.Daemon, pid int) error {
	servers, err := c.servers(ctx, d)
	if err != nil {
		return err
	}
	for _, server := range servers {
		clients, err := c.Do(ctx, d, "get_client_list "+server)
		if err != nil {
			return err
		}
		if slices.Contains(strings.Fields(clients), strconv.Itoa(pid)) {
			_, err := c.Do(ctx, d, fmt.Sprintf("terminate_client %s %d", server, pid))
			return err
		}
	}
	return nil
}

func (c Control) servers(ctx context.Context, d gres.Daemon) ([]string, error) {
	list, err := c.Do(ctx, d, "get_server_list")
	if err != nil {
		return nil, err
	}
	var pids []string
	for _, word := range strings.Fields(list) {
		if _, err := strconv.Atoi(word); err == nil {
			pids = append(pids, word)
		}
	}
	return pids, nil
}

// Restart stops the daemon, which nobody may be using, and starts it
// anew.
func (c Control) Restart(ctx context.Context, d gres.Daemon) error {
	if err := c.Quit(ctx, d); err != nil {
		return err
	}
	for c.Answers(ctx, d) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("restart MPS daemon of GPU %s: it does not end: %w", d, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return c.Ensure(ctx, d)
}

// Do sends one command to the daemon and returns what it answers.
func (c Control) Do(ctx context.Context, d gres.Daemon, command string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Program)
	cmd.Env = c.env(d)
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(bytes.ToValidUTF8(out, []byte("?"))))
	if err == nil && strings.HasPrefix(text, "Cannot find MPS control daemon process") {
		err = errors.New("no daemon")
	}
	if err != nil {
		return "", fmt.Errorf("MPS daemon of GPU %s: %s: %w: %.100s", d, command, err, text)
	}
	return text, nil
}
