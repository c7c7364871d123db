// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"carma/gres"
	"carma/gres/mps"
	"carma/gres/nvml"
	"carma/slurmbridge/version"
)

const library = "libnvidia-ml.so.1" // by name: the dynamic linker finds the host's

// Two users of the kit's own, known in its mounts alone. No range that distributions
// assign from holds the numbers.
const (
	uidA  = 61101
	uidB  = 61102
	nameA = "carma-kit-a"
	nameB = "carma-kit-b"
)

// kit is a part at work.
type kit struct {
	ctx          context.Context
	part         part
	short        bool
	dir          string // of this part, gone after it
	bin          string // the kit's programs, where users reach them
	out          *results
	gpus         *nvml.NVML
	gpu          gres.GPU
	mps          mps.Control
	hasMPS       bool
	simulated    bool
	mounts       error // why the part has no mounts of its own
	contradicted bool
}

// findGPU opens NVML and finds the GPU of an index.
func findGPU(index int) (*nvml.NVML, error) {
	n, err := nvml.Open(library)
	if err != nil {
		return nil, err
	}
	for _, s := range n.Sample() {
		if s.Index == index && !s.MIG {
			return n, nil
		}
	}
	return nil, fmt.Errorf("NVML shows no whole GPU of index %d", index)
}

// notified cancels on a signal; the returned function tells whether a signal came.
func notified(cancel func()) func() bool {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		<-c
		close(done)
		cancel()
	}()
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

func newKit(ctx context.Context, p part, o options, dir string) (*kit, error) {
	k := &kit{ctx: ctx, part: p, short: o.short, dir: dir, simulated: os.Getenv("SIMGPU_STATE") != ""}
	var err error
	if err = os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	if k.out, err = openResults(o.results); err != nil {
		return nil, err
	}
	if k.gpus, err = findGPU(o.gpu); err != nil {
		return nil, err
	}
	for _, s := range k.gpus.Sample() {
		if s.Index == o.gpu {
			k.gpu = s.GPU
		}
	}
	k.bin = filepath.Join(o.kit, "bin")
	if k.mounts = k.mount(o.kit); k.mounts == nil {
		k.bin = filepath.Join(dir, "kit", "bin")
	}
	k.mps = mps.Control{RunDir: dir, LogDir: filepath.Join(dir, "log")}
	k.mps.Program, err = exec.LookPath("nvidia-cuda-mps-control")
	k.hasMPS = err == nil
	k.out.line(k.machine(p.name))
	return k, nil
}

// mount gives the part its own view of everything below /, then puts the kit where users
// reach it and the two users into passwd and group. Nothing of the machine is changed.
func (k *kit) mount(from string) error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	at := filepath.Join(k.dir, "kit")
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the kit: %w", err)
	}
	for file, format := range map[string]string{"passwd": "%s:x:%d:%[2]d::/tmp:/bin/bash\n", "group": "%s:x:%d:\n"} {
		text, err := os.ReadFile("/etc/" + file)
		if err != nil {
			return err
		}
		b := bytes.NewBuffer(bytes.TrimRight(text, "\n"))
		fmt.Fprintf(b, "\n"+format, nameA, uidA)
		fmt.Fprintf(b, format, nameB, uidB)
		own := filepath.Join(k.dir, file)
		if err := os.WriteFile(own, b.Bytes(), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(own, "/etc/"+file, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /etc/%s: %w", file, err)
		}
	}
	// The GPU's device node is the part's own, too: confinement changes who may open it.
	dev := filepath.Join(k.dir, "dev")
	node := fmt.Sprintf("nvidia%d", k.gpu.Minor)
	if err := os.Mkdir(dev, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("dev", dev, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", dev, err)
	}
	const nvidiaMajor = 195
	if err := unix.Mknod(filepath.Join(dev, node), unix.S_IFCHR|0o666, int(unix.Mkdev(nvidiaMajor,
		uint32(k.gpu.Minor)))); err != nil {
		return fmt.Errorf("make %s/%s: %w", dev, node, err)
	}
	if err := os.Chmod(filepath.Join(dev, node), 0o666); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/" + node); err == nil && !k.simulated {
		if err := unix.Mount(filepath.Join(dev, node), "/dev/"+node, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount /dev/%s: %w", node, err)
		}
	}
	return nil
}

// tidy removes a part's directory, unless the kit is still mounted in it.
func tidy(dir string) {
	at := filepath.Join(dir, "kit")
	unix.Unmount(at, unix.MNT_DETACH)
	unix.Unmount(filepath.Join(dir, "dev"), unix.MNT_DETACH)
	if left, err := os.ReadDir(at); err == nil && len(left) > 0 {
		return
	}
	os.RemoveAll(dir)
}

// machine names the machine of the lines that follow.
func (k *kit) machine(name string) map[string]any {
	first := func(path string) string {
		text, _ := os.ReadFile(path)
		line, _, _ := strings.Cut(string(text), "\n")
		return line
	}
	system := ""
	text, _ := os.ReadFile("/etc/os-release")
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			system = strings.Trim(v, `"`)
		}
	}
	model := k.gpu.Model
	if k.simulated {
		model += " (simulated)" // a simulated GPU: no figure of the run is a real GPU's
	}
	return map[string]any{"kind": "machine", "schema": "carma.gpu-kit/1", "part": name, "model": model,
		"uuid":      k.gpu.UUID,
		"total_mib": k.gpu.TotalMiB, "driver": first("/proc/driver/nvidia/version"), "system": system,
		"kernel": first("/proc/version"), "version": version.String(), "simulated": k.simulated,
		"command": os.Getenv("CARMA_GPU_KIT_COMMAND"), "date": time.Now().UTC().Format(time.RFC3339)}
}

// pause sleeps, or ends early with the part.
func (k *kit) pause(d time.Duration) {
	select {
	case <-k.ctx.Done():
	case <-time.After(d):
	}
}

// rounds is a number of repetitions: full, or in the short form.
func (k *kit) rounds(full, short int) int {
	if k.short {
		return short
	}
	return full
}

// environ is this process's environment without CUDA's own variables, and more.
func environ(more ...string) []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "CUDA_") && !strings.HasPrefix(v, "CARMA_GPU_KIT_") {
			env = append(env, v)
		}
	}
	return append(env, more...)
}

// answer is the result of a command.
type answer struct {
	Stdout string  `json:"stdout"`
	Stderr string  `json:"stderr"`
	Status int     `json:"status"` // -1: a signal
	Took   float64 `json:"seconds"`
}

// ask runs a command as a user.
func (k *kit) ask(uid int, limit time.Duration, stdin string, env []string, args ...string) answer {
	ctx, cancel := context.WithTimeout(k.ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env, cmd.Dir = strings.NewReader(stdin), &out, &errOut, env, "/"
	cmd.WaitDelay = time.Second
	as(cmd, uid)
	begun := time.Now()
	err := cmd.Run()
	a := answer{Stdout: out.String(), Stderr: errOut.String(), Status: -1, Took: seconds(time.Since(begun))}
	if cmd.ProcessState != nil {
		a.Status = cmd.ProcessState.ExitCode()
	} else if err != nil {
		a.Stderr += err.Error()
	}
	return a
}

func as(cmd *exec.Cmd, uid int) {
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
}

// job is a load: its memory, its SM activity when alone, and its run time alone.
type job struct {
	uid      int // 0: root
	memMiB   int
	smactPct int
	alone    time.Duration
	limit    string // CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; empty: none
	pipes    string // of the MPS daemon; empty: no client of one
	kind     string // how the job asks for memory; empty: plain
	wild     time.Duration
	leave    time.Duration // when the job exits and waits for none of its kernels; 0: never
	group    *os.File      // the cgroup v2 in which the job starts; nil: this process's
	training string        // an architecture of trainings.py to train without end in place of gpuload
}

// process is a running load.
type process struct {
	cmd    *exec.Cmd
	ready  chan struct{} // closed when the load has its memory, or has ended
	saw    seen
	isUp   bool // the load has said that it is ready
	stdout chan struct{}
	stderr bytes.Buffer
	start  time.Time
	up     time.Duration // from start to ready
	took   time.Duration
}

// seen is gpuload's output at its end.
type seen struct {
	PTX           string `json:"ptx"`
	SMs           int    `json:"sms"`
	TotalMiB      int64  `json:"total_mib"`
	FreeBeforeMiB int64  `json:"free_before_mib"`
	FreeAfterMiB  int64  `json:"free_after_mib"`
	Result        string `json:"result"`
}

func (k *kit) start(j job) (*process, error) {
	if j.kind == "" {
		j.kind = "plain"
	}
	args := []string{"--mem", fmt.Sprintf("%dM", j.memMiB), "--smact", fmt.Sprint(j.smactPct),
		"--duration", fmt.Sprintf("%dms", j.alone.Milliseconds()), "--kind", j.kind}
	if j.wild > 0 {
		args = append(args, "--wild", fmt.Sprintf("%dms", j.wild.Milliseconds()))
	}
	if j.leave > 0 {
		args = append(args, "--leave", fmt.Sprintf("%dms", j.leave.Milliseconds()))
	}
	program := filepath.Join(k.bin, "gpuload")
	if j.training != "" {
		program, args = k.python(), []string{k.trainings(), "--one", j.training, "--batch", "128", "--steps", "1000000"}
	}
	p := &process{cmd: exec.CommandContext(k.ctx, program, args...),
		ready:  make(chan struct{}),
		stdout: make(chan struct{})}
	env := environ("CUDA_VISIBLE_DEVICES="+k.gpu.UUID, "HOME="+k.dir)
	if j.pipes != "" {
		env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+j.pipes)
	} else {
		env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+filepath.Join(k.dir, "none"))
	}
	if j.limit != "" {
		env = append(env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="+j.limit)
	}
	p.cmd.Env, p.cmd.Dir, p.cmd.Stderr = env, "/", &p.stderr
	as(p.cmd, j.uid)
	if j.group != nil {
		if p.cmd.SysProcAttr == nil {
			p.cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		p.cmd.SysProcAttr.UseCgroupFD, p.cmd.SysProcAttr.CgroupFD = true, int(j.group.Fd())
	}
	from, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.start = time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	go p.read(from)
	return p, nil
}

func (p *process) read(from io.Reader) {
	defer close(p.stdout)
	lines := bufio.NewScanner(from)
	once := false
	for lines.Scan() {
		if lines.Text() == "ready" && !once {
			p.isUp, p.up, once = true, time.Since(p.start), true
			close(p.ready)
			continue
		}
		json.Unmarshal(lines.Bytes(), &p.saw)
	}
	if !once {
		close(p.ready)
	}
}

// wait returns the exit status; -1 if the load was killed.
func (p *process) wait() (int, error) {
	<-p.stdout
	err := p.cmd.Wait()
	p.took = time.Since(p.start)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// stop ends a load whose part is done.
func (p *process) stop() {
	p.cmd.Process.Kill()
	p.wait()
}

// begin starts a load and waits until the load has its memory; a load without is stopped.
func (k *kit) begin(j job) (*process, error) {
	p, err := k.start(j)
	if err != nil {
		return nil, err
	}
	if err := k.awaitReady(p); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// awaitReady waits until the load has its memory.
func (k *kit) awaitReady(p *process) error {
	select {
	case <-p.ready:
	case <-time.After(30 * time.Second):
		return errors.New("a load was not on the GPU after 30 s")
	case <-k.ctx.Done():
		return k.ctx.Err()
	}
	if !p.isUp {
		status, _ := p.wait()
		return fmt.Errorf("a load ended with status %d: %.200s", status, p.stderr.String())
	}
	return nil
}

// sample reads the one GPU.
func (k *kit) sample() (gres.Sample, error) {
	for _, s := range k.gpus.Sample() {
		if s.UUID == k.gpu.UUID {
			if s.Unreadable != "" {
				return s, fmt.Errorf("read GPU %s: %s", s.UUID, s.Unreadable)
			}
			return s, nil
		}
	}
	return gres.Sample{}, fmt.Errorf("GPU %s is gone", k.gpu.UUID)
}

// daemon is the MPS daemon of the one GPU.
func (k *kit) daemon() gres.Daemon { return gres.Daemon(k.gpu.UUID) }

func (k *kit) pipes() string { return mps.PipeDir(k.dir, k.daemon()) }

// keepDaemon starts the daemon if it does not run.
func (k *kit) keepDaemon(ctx context.Context) error {
	return k.mps.Keep(ctx, k.daemon(), func(now int64) (int64, error) { return now, nil })
}

// withMPS runs f while the daemon of the GPU is up and open to a user, as in a job's Prolog.
func (k *kit) withMPS(c *check, uid int, f func() error) error {
	if !k.hasMPS {
		c.skip("no nvidia-cuda-mps-control in PATH")
		return nil
	}
	if err := k.keepDaemon(k.ctx); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(k.ctx), 8*time.Second)
		defer cancel()
		k.mps.End(ctx, k.daemon(), func() (bool, error) { return false, nil })
	}()
	ctx, cancel := context.WithTimeout(k.ctx, 20*time.Second)
	defer cancel()
	if err := k.mps.Admit(ctx, k.daemon(), uint32(uid)); err != nil {
		return err
	}
	return f()
}

// control gives the daemon a command as a user.
func (k *kit) control(uid int, command string) answer {
	return k.ask(uid, 20*time.Second, command+"\n", environ("CUDA_MPS_PIPE_DIRECTORY="+k.pipes()), k.mps.Program)
}
