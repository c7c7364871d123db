// SPDX-License-Identifier: Apache-2.0

// Package mps talks to the control daemons of the CUDA Multi-Process Service.
// Each GPU has a daemon of its own: a faulting client takes its server down, on
// all GPUs of the server. Jobs on several GPUs have daemons of just these
// (docs/adr/0007).
package mps

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"carma/db/file"
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

// PipeDir is where a daemon listens. Root alone writes into it, and the user of its jobs
// alone reaches it (admit.go).
func PipeDir(runDir string, d gres.Daemon) string { return filepath.Join(runDir, "mps", name(d)) }

// makePipeDir makes the pipe directory, closed, and its parents, whatever the agent's
// umask. An existing directory may be open to a user with running jobs.
func (c Control) makePipeDir(d gres.Daemon) error {
	dir := PipeDir(c.RunDir, d)
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(dir, 0o700)
}

// noteOf is the file that names the GPUs of a daemon of several.
func noteOf(runDir string, d gres.Daemon) string { return PipeDir(runDir, d) + ".gpus" }

// Control starts, asks and stops daemons.
type Control struct {
	Program string // path of nvidia-cuda-mps-control
	RunDir  string
	LogDir  string // on disk: users can fill the directory
	Groups  Groups // nil: there are none
}

// Groups are cgroups, one for each daemon and its servers: the servers run as users, and belong to no job.
type Groups interface {
	// Put puts a process into the cgroup of a name, made if need be.
	Put(name string, pid int) (dir string, err error)
	// Kill ends all processes in a cgroup, and removes the cgroup.
	Kill(ctx context.Context, dir string) error
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

// errOld: a daemon is older than 550. Any user may change its settings, and the daemon
// does not tell of a server's fault.
var errOld = errors.New("it is older than driver 550, which CARMA needs for MPS")

// start starts a daemon for the rest of a tenure, or one that no user has reached yet.
func (c Control) start(ctx context.Context, d gres.Daemon, t tenure) error {
	dir := PipeDir(c.RunDir, d)
	if err := errors.Join(c.makePipeDir(d), c.makeLogDir(d)); err != nil {
		return err
	}
	if t.User == gres.Nobody {
		if err := c.retireLogs(d); err != nil {
			return err
		}
		t.Began = beginning()
	}
	t.process = process{}
	if err := errors.Join(tidy(dir), t.write(dir)); err != nil {
		return err
	}
	if d.Many() {
		if err := file.Replace(noteOf(c.RunDir, d), []byte(d), 0o644); err != nil {
			return err
		}
	}
	err := c.launch(ctx, d)
	if err == nil {
		t.process, err = awaitFounder(ctx, dir)
	}
	if err == nil && c.Groups != nil {
		// Before any server: servers are the daemon's children.
		t.Group, err = c.Groups.Put(fmt.Sprintf("%s.%s.%d", filepath.Base(c.RunDir), name(d), t.Began), t.PID)
	}
	old := false
	if err == nil {
		// There is no command for the version; 535 does not know get_server_status.
		_, asked := c.do(ctx, d, "get_server_status 0")
		old = unknown(asked)
	}
	if err == nil && !old {
		err = openTo(dir, t.User)
	}
	if err == nil {
		// Last: from now on a Prolog may give the daemon to a user, and opens the directory then.
		err = t.write(dir)
	}
	if err != nil && t.PID != 0 { // nobody has noted the process
		err = errors.Join(err, t.kill(context.WithoutCancel(ctx)))
	}
	if err == nil && old {
		err = errors.Join(errOld, c.end(ctx, d, func() (bool, error) { return false, nil }))
	}
	return err
}

func (c Control) launch(ctx context.Context, d gres.Daemon) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, c.Program, "-d")
	cmd.Env = append(c.env(d), "CUDA_VISIBLE_DEVICES="+string(d))
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = time.Second
	// A session of its own: what ends the agent does not end the daemon, whose clients
	// are running jobs.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// A daemon that keeps its caller's pipes lets the caller wait for WaitDelay and no longer.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("%s -d: %w: %.100s", c.Program, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

func awaitFounder(ctx context.Context, dir string) (process, error) {
	for {
		if p := founder(dir); p.PID != 0 {
			return p, nil
		}
		select {
		case <-ctx.Done():
			return process{}, fmt.Errorf("it does not come up: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Sets returns the daemons of several GPUs started and not stopped, by whatever
// process, running or not.
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
		sets = append(sets, gres.Daemon(text))
	}
	return sets, nil
}

// Faulted tells whether a server of the daemon is in the state FAULT: a client
// has made an illegal access, every client of the server dies, and the server
// takes no new clients until the old have gone.
func (c Control) Faulted(ctx context.Context, d gres.Daemon) (bool, error) {
	servers, err := c.servers(ctx, d)
	if err != nil {
		return false, err
	}
	for _, server := range servers {
		status, err := c.do(ctx, d, fmt.Sprintf("get_server_status %d", server))
		if gone(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		if strings.Contains(status, "FAULT") {
			return true, nil
		}
	}
	return false, nil
}

// Terminate ends the GPU work of a client, if the client is the daemon's, in an
// orderly way. To kill a client whose kernels run may hurt its neighbours.
func (c Control) Terminate(ctx context.Context, d gres.Daemon, pid int) error {
	servers, err := c.servers(ctx, d)
	if err != nil {
		return err
	}
	for _, server := range servers {
		clients, err := c.do(ctx, d, fmt.Sprintf("get_client_list %d", server))
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		if slices.Contains(strings.Fields(clients), strconv.Itoa(pid)) {
			said, err := c.do(ctx, d, fmt.Sprintf("terminate_client %d %d", server, pid))
			if err == nil && said != "" && said != "0" { // 1 after a refusal (535 and 550)
				err = fmt.Errorf("MPS daemon of GPU %s: terminate_client: %.100s", d, said)
			}
			return err
		}
	}
	return nil
}

func (c Control) servers(ctx context.Context, d gres.Daemon) ([]int, error) {
	return c.pids(ctx, d, "get_server_list")
}

// pids runs a command whose answer is a list of processes.
func (c Control) pids(ctx context.Context, d gres.Daemon, command string) ([]int, error) {
	list, err := c.do(ctx, d, command)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, word := range strings.Fields(list) {
		if pid, err := strconv.Atoi(word); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Clients lists the client processes of the daemon's servers.
func (c Control) Clients(ctx context.Context, d gres.Daemon) ([]int, error) {
	servers, err := c.servers(ctx, d)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, server := range servers {
		list, err := c.pids(ctx, d, fmt.Sprintf("get_client_list %d", server))
		if err != nil && !gone(err) {
			return nil, err
		}
		pids = append(pids, list...)
	}
	return pids, nil
}

// A refusal is a daemon's answer to a command that it does not carry out. The
// status of nvidia-cuda-mps-control is 0 all the same (535 and 550).
type refusal string

func (r refusal) Error() string { return "refused: " + string(r) }

// How refusals begin, in the words of 535 and 550.
const (
	unknownCommand = "Unknown command"
	serverNotFound = "Server "
)

var refusals = []string{unknownCommand, serverNotFound, "Insufficient privileges", "Not enough privilege",
	"A server PID is required",
	"A user id (UID) is required"}

// refused returns the refusal in an answer; nil: there is none.
func refused(answer string) error {
	for _, words := range refusals {
		if strings.HasPrefix(answer, words) {
			return refusal(answer)
		}
	}
	return nil
}

func unknown(err error) bool {
	var r refusal
	return errors.As(err, &r) && strings.HasPrefix(string(r), unknownCommand)
}

// gone tells whether a server from the list has ended since.
func gone(err error) bool {
	var r refusal
	return errors.As(err, &r) && strings.HasPrefix(string(r), serverNotFound)
}

// do sends a command to the daemon and returns the answer.
func (c Control) do(ctx context.Context, d gres.Daemon, command string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Program)
	cmd.Env = c.env(d)
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(bytes.ToValidUTF8(out, []byte("?"))))
	if err != nil {
		return "", fmt.Errorf("MPS daemon of GPU %s: %s: %w: %.100s", d, command, err, text)
	}
	if err := refused(text); err != nil {
		return "", fmt.Errorf("MPS daemon of GPU %s: %s: %w", d, command, err)
	}
	return text, nil
}
