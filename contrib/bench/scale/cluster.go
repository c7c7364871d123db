// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"carma/slurmbridge/sctl"
)

// bench is a cluster of its own below dir.
type bench struct {
	dir                  string
	nodes, live, waiting int
	pairs                int
	starts               float64
	length               time.Duration

	version string
	slurm   sctl.Client
	ctld    int // its pid
	started []*exec.Cmd
	agents  []*node

	asked, updates atomic.Int64
	array          string // of the waiting jobs
}

// name is the i-th node without a slurmd.
func (b *bench) name(i int) string { return fmt.Sprintf("n%04d", i+1) }

func (b *bench) all() string { return fmt.Sprintf("n[0001-%04d]", b.nodes) }

func prefix() string {
	if p := os.Getenv("SLURM_PREFIX"); p != "" {
		return p
	}
	return "/usr"
}

func (b *bench) up(ctx context.Context) error {
	for _, d := range []string{"munge", "state", "spool", "log"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(b.dir, 0o755); err != nil {
		return err
	}
	key := make([]byte, 1024)
	rand.Read(key)
	if err := os.WriteFile(filepath.Join(b.dir, "munge/key"), key, 0o600); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	conf := filepath.Join(b.dir, "slurm.conf")
	if err := os.WriteFile(conf, []byte(b.conf(port)), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.dir, "gres.conf"), nil, 0o644); err != nil {
		return err
	}
	b.slurm = sctl.Client{BinDir: prefix() + "/bin", Conf: conf}
	if err := b.start("/usr/sbin/munged", "--foreground", "--force", "--socket="+b.dir+"/munge/s",
		"--key-file="+b.dir+"/munge/key", "--pid-file="+b.dir+"/munge/pid", "--log-file="+b.dir+"/log/munged",
		"--seed-file="+b.dir+"/munge/seed"); err != nil {
		return err
	}
	if err := b.until(ctx, func() bool { _, err := os.Stat(b.dir + "/munge/s"); return err == nil }); err != nil {
		return fmt.Errorf("wait for munged: %w", err)
	}
	if err := b.startApart(prefix()+"/sbin/slurmctld", "-D", "-c", "-f", conf); err != nil {
		return err
	}
	b.ctld = b.started[len(b.started)-1].Process.Pid
	if err := b.until(ctx, func() bool { _, err := b.sh(ctx, "sinfo"); return err == nil }); err != nil {
		return fmt.Errorf("wait for slurmctld: %w", err)
	}
	if b.version, err = b.sh(ctx, "scontrol", "--version"); err != nil {
		return err
	}
	b.version = strings.TrimSpace(b.version)
	for i := range b.live {
		if err := b.start(prefix()+"/sbin/slurmd", "-D", "-N", fmt.Sprintf("live%d", i+1), "-f", conf); err != nil {
			return err
		}
	}
	for _, state := range []string{"DOWN", "RESUME"} {
		if _, err := b.sh(ctx, "scontrol", "update", "NodeName="+b.all(), "State="+state, "Reason=scale"); err != nil {
			return err
		}
	}
	idle := func() bool {
		out, err := b.sh(ctx, "sinfo", "--noheader", "--nodes="+fmt.Sprintf("live[1-%d]", b.live), "--states=idle",
			"--responding", "--format=%D")
		return err == nil && strings.TrimSpace(out) == strconv.Itoa(b.live)
	}
	if err := b.until(ctx, idle); err != nil {
		return fmt.Errorf("wait for slurmd: %w", err)
	}
	return nil
}

// rest waits until slurmctld has nothing to do any more.
func (b *bench) rest(ctx context.Context) error {
	const span = 2 * time.Second
	for range 60 {
		before, err := b.cpu()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(span):
		}
		if after, err := b.cpu(); err != nil || after-before <= span/100 {
			return err
		}
	}
	return fmt.Errorf("slurmctld is busy without anything to do")
}

// conf is slurm.conf. SlurmdTimeout=65533: silent nodes are pinged once, at the start, and then for
// six hours neither pinged nor set down. With 0 such nodes are pinged every 100 s (ping_nodes.c).
func (b *bench) conf(port int) string {
	var c strings.Builder
	fmt.Fprintf(&c, `ClusterName=scale
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=%[2]d
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=%[1]s/munge/s
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/spool/%%n
SlurmctldPidFile=%[1]s/slurmctld.pid
SlurmdPidFile=%[1]s/slurmd.%%n.pid
SlurmctldLogFile=%[1]s/log/slurmctld
SlurmdLogFile=%[1]s/log/slurmd.%%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_continue,bf_interval=10,bf_max_job_test=1000,extra_constraints
SlurmdTimeout=65533
MaxJobCount=40000
MaxArraySize=10002
MinJobAge=30
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu,carma
`, b.dir, port)
	if os.Getenv("SLURM_PREFIX") != "" {
		fmt.Fprintf(&c, "PluginDir=%s/lib/slurm\n", prefix())
	}
	fmt.Fprintf(&c, "NodeName=%s NodeHostname=none NodeAddr=127.0.0.1 Port=1 CPUs=64 RealMemory=100000 "+
		"Gres=gpu:16,carma:%d\n", b.all(), gpus*fullMiB)
	for i := range b.live {
		fmt.Fprintf(&c, "NodeName=live%d NodeHostname=localhost NodeAddr=127.0.0.1 Port=%d CPUs=256 RealMemory=100000 "+
			"Feature=live\n", i+1, port+1+i)
	}
	fmt.Fprintf(&c, "NodeName=away NodeHostname=none NodeAddr=127.0.0.1 Port=1 CPUs=1024 RealMemory=4000000 "+
		"Feature=wait State=DOWN Reason=bench\n")
	fmt.Fprintf(&c, "PartitionName=gpu Nodes=ALL Default=YES LLN=YES MaxTime=INFINITE DefMemPerCPU=1\n"+
		"PartitionName=gpu-recovery Nodes=ALL PriorityTier=2 LLN=YES MaxTime=INFINITE DefMemPerCPU=1\n")
	return c.String()
}

// fill makes waiting jobs: tasks of an array, each with a record of its own, as an update
// gives to a task. The jobs wait for a down node, or by a constraint that no node meets.
func (b *bench) fill(ctx context.Context, constrained bool) error {
	if b.waiting == 0 {
		return nil
	}
	if b.array != "" {
		if _, err := b.sh(ctx, "scancel", b.array); err != nil {
			return err
		}
	}
	waits := "--constraint=wait"
	if constrained {
		waits = fmt.Sprintf("--extra=carma1>=%[1]d|carma1u1000>=%[1]d", 2*fullMiB)
	}
	out, err := b.sh(ctx, "sbatch", "--parsable", waits, "--output=/dev/null",
		fmt.Sprintf("--array=1-%d", b.waiting), "--wrap", "true")
	if err != nil {
		return err
	}
	id := strings.TrimSpace(out)
	b.array = id
	var lines bytes.Buffer
	for i := range b.waiting {
		fmt.Fprintf(&lines, "update JobId=%s_%d Nice=1\n", id, i+1)
	}
	cmd := b.command(ctx, "scontrol")
	cmd.Stdin = &lines
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the jobs that wait: %w: %.200s", err, text)
	}
	return nil
}

func (b *bench) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, prefix()+"/bin/"+name, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "SLURM_CONF=" + b.slurm.Conf}
	cmd.Dir = "/"
	return cmd
}

func (b *bench) sh(ctx context.Context, name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := b.command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %.200s", name, strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String(), nil
}

// start starts a daemon in the foreground.
func (b *bench) start(program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C", "SLURM_CONF=" + b.slurm.Conf}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", program, err)
	}
	b.started = append(b.started, cmd)
	return nil
}

// startApart starts slurmctld on core 0 and keeps all else off core 0: at a site agents, users' commands
// and slurmds run on other machines. On a machine with a single core all share the core.
func (b *bench) startApart(program string, args ...string) error {
	if runtime.NumCPU() < 2 {
		return b.start(program, args...)
	}
	others := fmt.Sprintf("1-%d", runtime.NumCPU()-1)
	for _, pid := range append([]int{os.Getpid()}, b.pids()...) {
		out, err := exec.Command("taskset", "--all-tasks", "--cpu-list", "--pid", others, strconv.Itoa(pid)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("keep process %d off slurmctld's core: %w: %.200s", pid, err, out)
		}
	}
	return b.start("taskset", append([]string{"--cpu-list", "0", program}, args...)...)
}

func (b *bench) pids() (pids []int) {
	for _, cmd := range b.started {
		pids = append(pids, cmd.Process.Pid)
	}
	return pids
}

// down ends the started processes, the last first.
func (b *bench) down() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	if _, err := b.sh(ctx, "scancel", "--user=root"); err == nil { // a slurmstepd outlives slurmctld and slurmd
		b.until(ctx, func() bool {
			out, err := b.sh(ctx, "squeue", "--noheader", "--states=RUNNING,COMPLETING")
			return err != nil || out == ""
		})
	}
	for _, n := range b.agents {
		n.book.Close()
	}
	for i := len(b.started) - 1; i >= 0; i-- {
		cmd := b.started[i]
		cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		late.Stop()
	}
}

func (b *bench) until(ctx context.Context, ok func() bool) error {
	for range 1200 {
		if ok() {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("not within 2 minutes")
}

// cpu is slurmctld's processor time; stat(5) of proc: utime and stime.
func (b *bench) cpu() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", b.ctld))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", b.ctld, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil // USER_HZ is 100
}

// freePort is a port that is most likely free, as are the ports after it.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	return 20000 + port%10000, nil
}
