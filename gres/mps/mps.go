// SPDX-License-Identifier: Apache-2.0

// Package mps talks to the control daemons of the CUDA Multi-Process Service.
// Each GPU has a daemon of its own: a client that faults takes the server of
// its GPU with it, and a server that serves several GPUs would take them all.
package mps

import (
	"bytes"
	"context"
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
)

// PipeDir is where the daemon of a GPU listens. Clients of every user must be
// able to go there, so only root can write into it.
func PipeDir(runDir, uuid string) string { return filepath.Join(runDir, "mps", uuid) }

// Control starts, asks and stops daemons.
type Control struct {
	Program string // nvidia-cuda-mps-control
	RunDir  string
}

func (c Control) env(uuid string) []string {
	env := []string{"CUDA_MPS_PIPE_DIRECTORY=" + PipeDir(c.RunDir, uuid), "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(c.RunDir, "mps", uuid+".log")}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CUDA_") && !strings.HasPrefix(v, "NOTIFY_SOCKET=") {
			env = append(env, v)
		}
	}
	return env
}

// Ensure starts the daemon of the GPU unless it answers already.
func (c Control) Ensure(ctx context.Context, uuid string) error {
	if c.Answers(ctx, uuid) {
		return nil
	}
	for _, dir := range []string{PipeDir(c.RunDir, uuid), filepath.Join(c.RunDir, "mps", uuid+".log")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start MPS daemon of GPU %s: %w", uuid, err)
		}
	}
	cmd := exec.CommandContext(ctx, c.Program, "-d")
	cmd.Env = append(c.env(uuid), "CUDA_VISIBLE_DEVICES="+uuid)
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	// A session of its own: what ends the agent does not end the daemon,
	// whose clients are running jobs. No pipe either: a daemon that holds
	// one keeps whoever reads it waiting.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("start MPS daemon of GPU %s: %s -d: %w", uuid, c.Program, err)
	}
	for !c.Answers(ctx, uuid) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("start MPS daemon of GPU %s: it does not answer: %w", uuid, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// Listens tells whether the daemon of the GPU has been started and not stopped.
func Listens(runDir, uuid string) bool {
	_, err := os.Stat(filepath.Join(PipeDir(runDir, uuid), "control"))
	return err == nil
}

// Answers tells whether the daemon of the GPU runs.
func (c Control) Answers(ctx context.Context, uuid string) bool {
	if !Listens(c.RunDir, uuid) {
		return false
	}
	_, err := c.Do(ctx, uuid, "get_server_list")
	return err == nil
}

// Quit stops the daemon of the GPU.
func (c Control) Quit(ctx context.Context, uuid string) error {
	_, err := c.Do(ctx, uuid, "quit")
	return err
}

// Faulted tells whether a server of the GPU's daemon is in the state FAULT: a
// client has made an illegal access, every client of the server dies, and it
// takes no new ones until they have gone.
func (c Control) Faulted(ctx context.Context, uuid string) (bool, error) {
	servers, err := c.servers(ctx, uuid)
	if err != nil {
		return false, err
	}
	for _, server := range servers {
		status, err := c.Do(ctx, uuid, "get_server_status "+server)
		if err != nil {
			return false, err
		}
		if strings.Contains(status, "FAULT") {
			return true, nil
		}
	}
	return false, nil
}

// Terminate ends a client's GPU work in an orderly way. To kill a client whose
// kernels run may hurt its neighbours.
func (c Control) Terminate(ctx context.Context, uuid string, pid int) error {
	servers, err := c.servers(ctx, uuid)
	if err != nil {
		return err
	}
	for _, server := range servers {
		clients, err := c.Do(ctx, uuid, "get_client_list "+server)
		if err != nil {
			return err
		}
		if slices.Contains(strings.Fields(clients), strconv.Itoa(pid)) {
			_, err := c.Do(ctx, uuid, fmt.Sprintf("terminate_client %s %d", server, pid))
			return err
		}
	}
	return nil
}

func (c Control) servers(ctx context.Context, uuid string) ([]string, error) {
	list, err := c.Do(ctx, uuid, "get_server_list")
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

// Restart stops the daemon of the GPU, which nobody may be using, and starts it
// anew.
func (c Control) Restart(ctx context.Context, uuid string) error {
	if err := c.Quit(ctx, uuid); err != nil {
		return err
	}
	for c.Answers(ctx, uuid) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("restart MPS daemon of GPU %s: it does not end: %w", uuid, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return c.Ensure(ctx, uuid)
}

// Do sends one command to the daemon of the GPU and returns what it answers.
func (c Control) Do(ctx context.Context, uuid, command string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Program)
	cmd.Env = c.env(uuid)
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(bytes.ToValidUTF8(out, []byte("?"))))
	if err == nil && strings.HasPrefix(text, "Cannot find MPS control daemon process") {
		err = errors.New("no daemon")
	}
	if err != nil {
		return "", fmt.Errorf("MPS daemon of GPU %s: %s: %w: %.100s", uuid, command, err, text)
	}
	return text, nil
}
