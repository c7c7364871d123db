// SPDX-License-Identifier: Apache-2.0

//go:build abuse

// Package abuse attacks CARMA's parts as a hostile user, a broken disk or a
// killed process would, and prints what each attack came to. It runs what
// `make` has built, as root. The attacks that need a whole Slurm are with the
// development cluster (../devcluster, build tag abuse).
package abuse

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const root = "../.."

// node is a GPU node with simulated GPUs and a slurmctld that is two scripts.
type node struct {
	t        *testing.T
	dir      string
	run      string // carma.toml's run_dir
	env      []string
	uid, gid string
}

// squeue answers for a job that runs, by the names of the fields (SQUEUE_FORMAT2), and refuses one that it does not
// know, as Slurm's does.
const squeue = `#!/bin/sh
for a; do case $a in --jobs=*) id=${a#--jobs=} ;; esac; done
sep=${SQUEUE_FORMAT2#*:}; sep=${sep%%,*}
names=$(printf %s "$SQUEUE_FORMAT2" | tr , '\n')
for name in $names; do
	case ${name%%:*} in
	JobID | ArrayJobID) value=$id ;;
	UserID) value=UID ;;
	ArrayTaskID | HetJobID | HetJobOffset) value=N/A ;;
	State) value=RUNNING ;;
	Partition) value=gpu ;;
	NumNodes | Requeue | PriorityLong) value=1 ;;
	RestartCnt | exit_code) value=0 ;;
	EligibleTime | SubmitTime | StartTime) value=1795257600 ;;
	EndTime) value=1795261200 ;;
	TimeUsed) value=0:01 ;;
	Reason) value=None ;;
	OverSubscribe) value=OK ;;
	NodeList) value=n1 ;;
	QOS) value=normal ;;
	Reservation | Account | tres-per-job) value="(null)" ;;
	Name) value=job ;;
	tres-per-node) value=gres:gpu:1,gres:carma:10240 ;;
	admin_comment) value="carma={}" ;;
	*) echo "Invalid job format specification: $name" >&2; exit 1 ;;
	esac
	printf '%s%s' "$value" "$sep"
done
echo
`

const sinfo = `#!/bin/sh
case $* in
*Extra:*) sep=${*##*Extra:} value='{"carma1":40536}' ;;
*Partition:*) sep=${*##*Partition:} value=gpu ;;
esac
echo "$value${sep%%,*}"
`

const scontrol = `#!/bin/sh
echo "$*" >>DIR/scontrol.calls
case "$*" in
*"show partition"*) printf 'PartitionName=x\n   State=UP\n' ;;
--version) echo slurm 22.05.8 ;;
esac
`

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("needs root: hooks run as root and start children as users")
	}
	dir, err := os.MkdirTemp("/tmp", "abuse")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, run: filepath.Join(dir, "run"), uid: u.Uid, gid: u.Gid}
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"bin/squeue": strings.ReplaceAll(squeue, "UID", u.Uid), "bin/sinfo": sinfo,
		"bin/scontrol": strings.ReplaceAll(scontrol, "DIR", dir),
		"carma.toml": fmt.Sprintf(`[slurm]
bin_dir = "%[1]s/bin"
[partition.gpu]
default = true
share = true
gpus_per_node = 4
gpu_mem_mib = 40536
recovery = "gpu-ex"
[partition.gpu-ex]
gpus_per_node = 4
gpu_mem_mib = 40536
[nvml]
library = "%[2]s/lib/simgpu/libnvidia-ml.so.1"
[mps]
enabled = false
[hooks]
wait = "0s"
[paths]
run_dir = "%[1]s/run"
db = "%[1]s/var/carma.db"
log = "%[1]s/hooks.log"
`, dir, abs),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.must(os.Chmod(dir, 0o755))
	n.must(os.Mkdir(filepath.Join(dir, "var"), 0o755))
	if out, err := exec.Command(abs+"/bin/simgpu", "create", dir+"/gpus", "--model",
		"dgx-a100").CombinedOutput(); err != nil {
		t.Fatalf("simgpu: %v\n%s", err, out)
	}
	n.env = []string{"SIMGPU_STATE=" + dir + "/gpus", "SLURMD_NODENAME=n1", "SLURM_CLUSTER_NAME=c",
		"SLURM_JOB_USER=nobody", "SLURM_JOB_UID=" + u.Uid,
		"SLURM_JOB_GID=" + u.Gid, "SLURM_JOB_PARTITION=gpu", "SLURM_NODELIST=n1", "SLURM_JOB_GPUS=0",
		"SLURM_JOB_WORK_DIR=" + dir,
		"SPANK_CARMA_V=1", "SPANK_CARMA_MODE=shared", "SPANK_CARMA_METHOD=user", "SPANK_CARMA_GPUS=1",
		"SPANK_CARMA_MEM_MIB=10240", "SPANK_CARMA_FULL=40536", "SPANK_CARMA_EST_MIB=10240"}
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// hook runs Prolog or Epilog of a job as slurmd does, in front of it what
// prefix says. Like slurmd it reads the output to its end.
func (n *node) hook(name string, job int, prefix []string, vars ...string) (out string, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(n.t.Context(), 60*time.Second)
	defer cancel()
	bin, _ := filepath.Abs(root + "/bin/carma-node")
	args := append(prefix, bin, "--config", n.dir+"/carma.toml", name)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(append([]string{fmt.Sprint("SLURM_JOB_ID=", job)}, n.env...), vars...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	start := time.Now()
	err = cmd.Run()
	return b.String(), time.Since(start), err
}

type gpu struct {
	LeasedMiB int64 `json:"leased_mib"`
	TotalMiB  int64 `json:"total_mib"`
	Leases    []any `json:"leases"`
}

func (n *node) status() []gpu {
	n.t.Helper()
	out, err := exec.Command(root+"/bin/carma-node", "--config", n.dir+"/carma.toml", "--node", "n1", "status",
		"--json").Output()
	n.must(err)
	var s struct {
		GPUs []gpu `json:"gpus"`
	}
	n.must(json.Unmarshal(out, &s))
	if len(s.GPUs) != 4 {
		n.t.Fatalf("status: %s", out)
	}
	return s.GPUs
}

func (n *node) calls() string {
	text, _ := os.ReadFile(n.dir + "/scontrol.calls")
	return string(text)
}

// late tells whether a child of a hook was ended, which on a slow machine uses up its 2 or 3 s (userfile, NVML).
func (n *node) late() bool {
	log, _ := os.ReadFile(n.dir + "/hooks.log")
	return lateChild.Match(log)
}

var lateChild = regexp.MustCompile(`msg="(scan stderr|read GPUs; using the last readings)".*` +
	`(deadline exceeded|signal: killed)`)

// retried makes a test again, on a new node, where the machine was late: 10 times at most.
func retried(test func(t *testing.T, last bool) (again bool)) func(*testing.T) {
	return func(t *testing.T) {
		for try := 1; test(t, try == 10); try++ {
			t.Log("the machine left a hook's child too little time; once more")
		}
	}
}

// row prints a line of the table of results.
func row(t *testing.T, what, result string) { t.Logf("%-44s %s", what, result) }

// asUser makes a file of the job's user.
func (n *node) asUser(path, text string) string {
	n.t.Helper()
	p := filepath.Join(n.dir, "home", path)
	n.must(os.MkdirAll(filepath.Dir(p), 0o777))
	n.must(os.WriteFile(p, []byte(text), 0o644))
	uid, _ := strconv.Atoi(n.uid)
	n.must(os.Chown(p, uid, -1))
	return p
}

// Disks and directories in every bad state: hooks end with status 0, and a job
// that cannot get its GPUs here returns to the queue.
func TestAbuseBrokenNode(t *testing.T) {
	mount := func(n *node, options string) {
		n.must(os.MkdirAll(n.run, 0o755))
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", options, "none", n.run).CombinedOutput(); err != nil {
			n.t.Fatalf("mount: %v: %s", err, out)
		}
		n.t.Cleanup(func() { exec.Command("umount", "-l", n.run).Run() })
	}
	fill := func(n *node, path string) {
		f, err := os.Create(path)
		n.must(err)
		defer f.Close()
		chunk := make([]byte, 4096)
		for {
			if _, err := f.Write(chunk); err != nil {
				return
			}
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(n *node)
		back  bool // the job must return to the queue: it can be given nothing
	}{
		{"nothing is wrong", func(*node) {}, false},
		{"run directory missing", func(n *node) { os.RemoveAll(n.run) }, false},
		{"run directory is a file", func(n *node) { n.must(os.WriteFile(n.run, nil, 0o644)) }, true},
		{"run directory read-only", func(n *node) { mount(n, "ro") }, true},
		{"run directory full", func(n *node) { mount(n, "size=64k"); fill(n, n.run+"/filler") }, true},
		{"run directory full later", func(n *node) {
			mount(n, "size=1m")
			n.hook("prolog", 1, nil)
			fill(n, n.run+"/filler")
		}, true},
		{"ledger truncated", func(n *node) { n.hook("prolog", 1, nil); n.must(os.Truncate(n.run+"/leases.db", 1000)) }, true},
		{"ledger is nonsense", func(n *node) {
			n.must(os.MkdirAll(n.run, 0o755))
			n.must(os.WriteFile(n.run+"/leases.db", bytes.Repeat([]byte("nonsense"), 10000), 0o600))
		}, true},
		{"accounting database truncated", func(n *node) {
			n.must(os.WriteFile(n.dir+"/var/carma.db",
				[]byte("SQLite format 3\x00cut"), 0o644))
		}, false},
		{"accounting directory read-only", func(n *node) {
			n.must(os.Remove(n.dir + "/var"))
			n.must(os.WriteFile(n.dir+"/var", nil, 0o644))
		}, false},
		{"log not writable", func(n *node) { n.must(os.Mkdir(n.dir+"/hooks.log", 0o755)) }, false},
		{"NVML library missing", func(n *node) {
			text, _ := os.ReadFile(n.dir + "/carma.toml")
			n.must(os.WriteFile(n.dir+"/carma.toml", bytes.ReplaceAll(text, []byte("libnvidia-ml.so.1"), []byte("none.so")),
				0o644))
		}, true},
		{"Slurm's commands missing", func(n *node) { n.must(os.RemoveAll(n.dir + "/bin")) }, false},
		{"scontrol hangs", func(n *node) {
			n.must(os.WriteFile(n.dir+"/bin/scontrol", []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
		}, false},
		{"sinfo hangs", func(n *node) {
			n.must(os.WriteFile(n.dir+"/bin/sinfo", []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
		}, false},
		{"squeue hangs", func(n *node) {
			n.must(os.WriteFile(n.dir+"/bin/squeue", []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
		}, false},
	} {
		t.Run(c.name, retried(func(t *testing.T, last bool) (again bool) {
			n := newNode(t)
			c.spoil(n)
			var all time.Duration
			for _, name := range []string{"prolog", "task-prolog", "epilog", "epilog"} {
				out, took, err := n.hook(name, 7, nil, "SLURM_JOB_EXIT_CODE2=1:0", "CUDA_VISIBLE_DEVICES=0")
				all = max(all, took)
				if err != nil {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
			}
			back := strings.Contains(n.calls(), "requeue incomplete 7")
			if back && !c.back && !last && n.late() {
				return true
			}
			if back != c.back {
				log, _ := os.ReadFile(n.dir + "/hooks.log")
				t.Errorf("returned to the queue: %v, want %v\n%s", back, c.back, log)
			}
			row(t, c.name, fmt.Sprintf("status 0, slowest hook %s, returned: %v", all.Round(time.Millisecond), c.back))
			return false
		}))
	}
}

// 64 Prologs at once, some killed: nothing is promised twice, and what a killed
// one holds is released by its Epilog.
func TestAbuseKilledPrologs(t *testing.T) {
	n := newNode(t)
	const rounds, jobs = 5, 64
	var slowest time.Duration
	for round := range rounds {
		var wait sync.WaitGroup
		var mu sync.Mutex
		for i := range jobs {
			wait.Add(1)
			go func() {
				defer wait.Done()
				prefix := []string(nil)
				if i%5 == 0 {
					prefix = []string{"timeout", "-s", "KILL", fmt.Sprintf("0.%03d", 5+(i*37+round*11)%200)}
				}
				_, took, err := n.hook("prolog", round*jobs+i+1, prefix)
				var exit *exec.ExitError
				if err != nil && !(prefix != nil && errors.As(err, &exit)) {
					t.Errorf("prolog %d: %v", i, err)
				}
				mu.Lock()
				slowest = max(slowest, took)
				mu.Unlock()
			}()
		}
		wait.Wait()
		for _, g := range n.status() {
			if g.LeasedMiB > g.TotalMiB {
				t.Errorf("promised %d of %d MiB", g.LeasedMiB, g.TotalMiB)
			}
		}
		for i := range jobs {
			if out, _, err := n.hook("epilog", round*jobs+i+1, nil, "SLURM_JOB_EXIT_CODE2=0:0"); err != nil {
				t.Errorf("epilog: %v\n%s", err, out)
			}
		}
		for _, g := range n.status() {
			if len(g.Leases) > 0 {
				t.Errorf("leases are left: %v", g.Leases)
			}
		}
	}
	row(t, fmt.Sprintf("%d x %d Prologs at once, a fifth killed", rounds, jobs),
		fmt.Sprintf("nothing promised twice, slowest %s", slowest.Round(time.Millisecond)))
}
