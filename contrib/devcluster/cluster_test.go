// SPDX-License-Identifier: Apache-2.0

//go:build integration || abuse

// Package devcluster_test runs CARMA on a real Slurm: slurmctld, slurmd and
// munge from the machine's packages, GPUs from contrib/simgpu. It needs root
// and what `make` has built.
package devcluster_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carma/slurmbridge/extra"
)

// cluster is a development cluster of one test.
type cluster struct {
	t   *testing.T
	dir string
	env []string

	gone  bool   // down has been called
	leave func() // gives the place back that admit gave
	peaks sync.Once
}

const alice, bob, carol = "carma-alice", "carma-bob", "carma-carol"

// unanswered finds the lines of slurmctld's log about jobs that libcarma has not answered for.
const unanswered = "job accepted as written|whole GPUs booked for a job"

// patience is how long a test waits for something that takes a moment on a machine with nothing else to do. A message
// that a daemon has not answered within MessageTimeout, as on a busy machine, is sent again after one to two minutes
// (85 s on 22.05.8, slurmd stopped for 12 s, with the default of 10 s), and again as late where the next message is
// lost, too.
var patience = 6 * time.Minute

// underUML: everything takes ten times as long.
var underUML = func() bool {
	text, _ := os.ReadFile("/proc/cpuinfo")
	return bytes.Contains(text, []byte("User Mode Linux"))
}()

func init() {
	if underUML {
		patience = 15 * time.Minute // half of what a hold lasts (steward.HoldTimeout)
	}
}

func devcluster(args ...string) *exec.Cmd { return exec.Command("./devcluster", args...) }

// up starts a cluster that ends with the test. Tests that have one run side by
// side: what they do most is to wait. The testing package wakes the tests waiting in
// Parallel from the last on, and subtests after all tests: so the longest tests are
// in files late in the alphabet (turn_test.go, text_test.go, slurmdbd_test.go).
func up(t *testing.T, args ...string) *cluster {
	t.Helper()
	if first := note(t.Name(), false); first {
		t.Parallel()
	}
	leave := admit(t)
	dir, err := os.MkdirTemp(shortDir(), "cdc")
	if err != nil {
		t.Fatal(err)
	}
	note(dir, true)
	if realMPS() && !slices.Contains(args, "--real-mps") {
		args = append(args, "--real-mps")
	}
	if out, err := devcluster(append([]string{"up", dir}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("devcluster up: %v\n%s", err, out)
	}
	c := &cluster{t: t, dir: dir, leave: leave}
	t.Cleanup(c.down)
	out, err := devcluster("env", dir).Output()
	if err != nil {
		t.Fatalf("devcluster env: %v", err)
	}
	for _, m := range regexp.MustCompile(`(?m)^export (\w+)='([^']*)'(?::"\$PATH")?$`).FindAllStringSubmatch(string(out),
		-1) {
		value := m[2]
		if m[1] == "PATH" {
			value += ":" + os.Getenv("PATH")
		}
		c.env = append(c.env, m[1]+"="+value)
	}
	return c
}

// admission is the turn of the next cluster, and how many there are.
var admission struct {
	sync.Mutex
	clusters atomic.Int32
}

// admit waits, for ten minutes at most, until the machine has room for another cluster; three always have. Where more
// than ten threads for each processor want to run, as on a slow machine or beside other runs, messages are late
// (MessageTimeout), so that slurmctld requeues jobs, and hooks do without what takes seconds. With eight clusters on
// two usual processors nine threads in all want to run on average. leave gives the place back.
func admit(t *testing.T) (leave func()) {
	begun := time.Now()
	admission.Lock()
	defer admission.Unlock()
	for admission.clusters.Load() >= 3 && runnable() > 10*runtime.NumCPU() && time.Since(begun) < 10*time.Minute {
		time.Sleep(time.Second)
	}
	if waited := time.Since(begun); waited > 10*time.Second {
		t.Logf("the cluster waited %s for room on the machine", waited.Round(time.Second))
	}
	admission.clusters.Add(1)
	leave = sync.OnceFunc(func() { admission.clusters.Add(-1) })
	t.Cleanup(leave)
	return leave
}

// runnable is how many threads want to run, on average of 0.3 s: /proc/loadavg has averages of minutes, and the count
// at the look.
func runnable() (average int) {
	const looks = 10
	for range looks {
		text, _ := os.ReadFile("/proc/loadavg")
		fields := strings.FieldsFunc(string(text), func(r rune) bool { return r == ' ' || r == '/' })
		if len(fields) > 3 {
			n, _ := strconv.Atoi(fields[3])
			average += n
		}
		time.Sleep(300 * time.Millisecond / looks)
	}
	return average / looks
}

// realMPS tells whether all clusters have NVIDIA's own MPS control daemon (make
// test-integration REAL_MPS=yes).
func realMPS() bool { return os.Getenv("REAL_MPS") != "" }

// needsServer skips a test whose jobs need an MPS server: to run out of the memory that they
// booked, or to run on a GPU at the same time. NVIDIA's daemon starts none without a GPU.
func needsServer(t *testing.T) {
	t.Helper()
	if realMPS() {
		t.Skip("NVIDIA's MPS control daemon starts no server without a GPU")
	}
}

// takesMinutes leaves a test to make test-all, for CI.
func takesMinutes(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes minutes: make test-all runs it")
	}
}

// shortDir is where clusters lie: short, for UNIX sockets lie below it, and device nodes
// can be opened there, which they cannot on Debian 13's /tmp.
func shortDir() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/tmp", &st); err == nil && st.Flags&unix.ST_NODEV != 0 {
		return "/var/tmp"
	}
	return "/tmp"
}

// down also sees to it that nothing is left running. A test that has not called down does so at its end (up).
func (c *cluster) down() {
	if c.gone {
		return
	}
	c.gone = true
	defer c.leave()
	if c.t.Failed() {
		out, _ := devcluster("logs", c.dir).Output()
		c.t.Logf("logs of %s (the end):\n%s", c.dir, tail(out, 20000))
	}
	if out, err := devcluster("down", c.dir).CombinedOutput(); err != nil {
		c.t.Errorf("devcluster down: %v\n%s", err, out)
	}
	note(c.dir, false)
	if left := processesOf(c.dir); left != "" {
		c.t.Errorf("left running:\n%s", left)
	}
	if !c.t.Failed() {
		os.RemoveAll(c.dir)
	}
}

var saidAtEnd sync.Map // *testing.T: *strings.Builder

// atEnd logs a line when a test ends: failures come first, because progress prints the beginning.
func atEnd(t *testing.T, format string, args ...any) {
	lines, known := saidAtEnd.LoadOrStore(t, &strings.Builder{})
	if !known {
		t.Cleanup(func() { t.Logf("in all:\n%s", lines) })
	}
	fmt.Fprintf(lines.(*strings.Builder), format+"\n", args...)
}

// story is what the logs and the accounting say of a job, for a test that fails.
func (c *cluster) story(id string) string {
	logs, _, _ := c.run("", `grep -hE "(JobId=|[Jj]ob[ =]|\[)`+id+`\b" `+c.dir+"/log/* | cut -c1-300")
	page, _, _ := c.run("", "carma-report -j "+id)
	return logs + page
}

// needsMySQL skips a test of slurmdbd on a Slurm that was built without its plugin for
// MySQL. Debian has it in a package, which make deps-test-integration installs.
func needsMySQL(t *testing.T) {
	t.Helper()
	if prefix := os.Getenv("SLURM_PREFIX"); prefix != "" {
		if _, err := os.Stat(filepath.Join(prefix, "lib", "slurm", "accounting_storage_mysql.so")); err != nil {
			t.Skipf("slurmdbd cannot run: %v", err)
		}
	}
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }

// processesOf lists processes whose command line names the cluster.
func processesOf(dir string) string {
	var left strings.Builder
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if bytes.Contains(text, []byte(dir)) {
			fmt.Fprintf(&left, "%s %s\n", f, bytes.ReplaceAll(text, []byte{0}, []byte{' '}))
		}
	}
	return left.String()
}

// run runs a command as a user ("" is root) in the users' directory.
func (c *cluster) run(user, command string) (stdout, stderr string, err error) {
	cmd := exec.Command("bash", "-c", command)
	if user != "" {
		cmd = exec.Command("runuser", "-u", user, "--", "bash", "-c", command)
	}
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Dir = filepath.Join(c.dir, "jobs")
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// update changes a job. From 25.11 on slurmctld refuses changes of the partition by chance
// where users have no association (ADR 5).
func (c *cluster) update(user, change string) {
	c.t.Helper()
	c.eventually(func() string {
		_, stderr, err := c.run(user, "scontrol update "+change)
		if err != nil && !strings.Contains(stderr, "temporarily unavailable") {
			c.t.Fatalf("scontrol update %s: %v: %s", change, err, stderr)
		}
		return fmt.Sprint(err)
	}, "^<nil>$")
}

// sh runs a command that must succeed and returns its stdout.
func (c *cluster) sh(user, command string) string {
	c.t.Helper()
	out, stderr, err := c.run(user, command)
	if err != nil {
		c.t.Fatalf("%s: %s: %v\n%s%s", user, command, err, out, stderr)
	}
	return strings.TrimSpace(out)
}

// sbatch submits a script and returns the job id. Where libcarma's answer came too late, on a busy machine, the job
// has whole GPUs and its user is told to submit again: so the job is submitted again, unless its script asks for
// the fault.
func (c *cluster) sbatch(user, options, script string) string {
	c.t.Helper()
	f := filepath.Join(c.dir, "jobs", fmt.Sprintf("s%d.sh", time.Now().UnixNano()))
	if err := os.WriteFile(f, []byte("#!/bin/bash\n"+script), 0o755); err != nil {
		c.t.Fatal(err)
	}
	if strings.Contains(script, "/peak-") {
		c.notePeaks()
	}
	return c.submit(user, "sbatch --parsable "+options+" "+f, strings.Contains(script, "carma-fault"))
}

// tooLate is in what a user is told whose job has whole GPUs, as libcarma's answer came too late.
const tooLate = "no answer for this job"

// submit is sbatch with a command of the test's own, sbatch --parsable. A fault is one that the script asks for.
func (c *cluster) submit(user, command string, fault bool) string {
	c.t.Helper()
	for range 5 {
		out, stderr, err := c.run(user, command)
		if err != nil {
			c.t.Fatalf("%s: %s: %v\n%s%s", user, command, err, out, stderr)
		}
		id, _, _ := strings.Cut(strings.TrimSpace(out), ";")
		if !strings.Contains(stderr, tooLate) || fault {
			return id
		}
		c.t.Logf("job %s: no answer in time: submitted again", id)
		c.run("", "scancel "+id) // the job may have ended
		c.eventually(func() string { return c.sh("", "squeue -h -j "+id+" 2>/dev/null | wc -l") }, "^0$")
	}
	c.t.Fatal("libcarma did not answer in time for five jobs in turn")
	return ""
}

// answered is run for a command that submits a job, again where libcarma's answer came too late, on a busy machine.
func (c *cluster) answered(user, command string) (stdout, stderr string, err error) {
	for range 5 {
		if stdout, stderr, err = c.run(user, command); !strings.Contains(stderr, tooLate) {
			break
		}
		if id := regexp.MustCompile(`\d+`).FindString(stdout); id != "" && err == nil {
			c.run("", "scancel "+id) // the job may have ended
		}
	}
	return stdout, stderr, err
}

// job returns fields of squeue for a job; empty when slurmctld has forgotten it.
func (c *cluster) job(id, format string) string {
	out, _, _ := c.run("", "squeue -h -t all -j "+id+" -o '"+format+"'")
	return strings.TrimSpace(out)
}

// restarts is how often slurmctld has requeued a job.
func (c *cluster) restarts(id string) string {
	return c.sh("", "squeue -h -t all -j "+id+" -O RestartCnt")
}

// eventually waits until what returns want.
func (c *cluster) eventually(what func() string, want string) {
	c.t.Helper()
	if got, ok := c.await(what, want); !ok {
		c.t.Fatalf("got %q, waited for %q", got, want)
	}
}

// await looks ever more rarely: a fifth of the processor time of all tests on a live Slurm is squeue's.
func (c *cluster) await(what func() string, want string) (got string, ok bool) {
	pause := 100 * time.Millisecond
	for start := time.Now(); time.Since(start) < patience; time.Sleep(pause) {
		if got = what(); regexp.MustCompile(want).MatchString(got) {
			return got, true
		}
		pause = min(pause+pause/8, 300*time.Millisecond)
	}
	return got, false
}

// empties waits until a list of jobs that end one after the other is empty: patience begins anew with each line less.
func (c *cluster) empties(list func() string) {
	c.t.Helper()
	got := list()
	for got != "" {
		lines := strings.Count(got, "\n")
		fewer := func() string { got = list(); return fmt.Sprint(got == "" || strings.Count(got, "\n") < lines) }
		if _, ok := c.await(fewer, "true"); !ok {
			c.t.Fatalf("of a list of jobs these stay:\n%s", got)
		}
	}
}

// ends waits until a job has ended and requires a state.
func (c *cluster) ends(id, state string) {
	c.t.Helper()
	got, ok := c.await(func() string { return c.job(id, "%T %r") }, "^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL) ")
	if !ok {
		c.t.Fatalf("job %s is %s and does not end\n%s", id, got, c.story(id))
	}
	if got := c.job(id, "%T"); got != state {
		c.t.Fatalf("job %s ended %s, want %s\n%s", id, got, state, c.job(id, "%all"))
	}
}

func (c *cluster) restart(args ...string) {
	c.t.Helper()
	if out, err := devcluster(append([]string{"restart", c.dir}, args...)...).CombinedOutput(); err != nil {
		c.t.Fatalf("devcluster restart %v: %v\n%s", args, err, out)
	}
	c.eventually(func() string { return c.sh("", "scontrol ping || true") }, "UP")
}

// output is what a job wrote, of slurm-<id>.out.
func (c *cluster) output(id string) string {
	text, err := os.ReadFile(filepath.Join(c.dir, "jobs", "slurm-"+id+".out"))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// release is that of the Slurm of the tests, 2205 for 22.05.
func release(t *testing.T) int {
	t.Helper()
	slurmctld := "/usr/sbin/slurmctld"
	if prefix := os.Getenv("SLURM_PREFIX"); prefix != "" {
		slurmctld = prefix + "/sbin/slurmctld"
	}
	out, err := exec.Command(slurmctld, "-V").Output()
	m := regexp.MustCompile(`(\d+)\.(\d+)\.\d+`).FindStringSubmatch(string(out))
	if err != nil || m == nil {
		t.Fatalf("%s -V: %q, %v", slurmctld, out, err)
	}
	n, _ := strconv.Atoi(m[1] + m[2])
	return n
}

// needsCounts skips a test of what nodes publish where they publish nothing.
func needsCounts(t *testing.T) {
	t.Helper()
	if r := release(t); r < 2411 {
		t.Skipf("nodes publish nothing below Slurm 24.11; this is %d.%02d", r/100, r%100)
	}
}

// publishes tells whether nodes say in Extra what their GPUs can give: from Slurm 24.11 on.
func (c *cluster) publishes() bool { return release(c.t) >= 2411 }

// counts is what a node says in Extra, sorted: "carma1:40536 carma1-alice:17920 ... carmaall:4".
func (c *cluster) counts(node string) string {
	c.t.Helper()
	out := c.sh("", "scontrol show node "+node)
	m := regexp.MustCompile(`(?m)^ +Extra=(.*)$`).FindStringSubmatch(out)
	if m == nil {
		return ""
	}
	counts, err := extra.Counts(m[1])
	if err != nil {
		return m[1]
	}
	var list []string
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		name := key
		for _, u := range []string{alice, bob, carol} {
			name = strings.Replace(name, "u"+c.uid(u), "-"+strings.TrimPrefix(u, "carma-"), 1)
		}
		list = append(list, fmt.Sprintf("%s:%d", name, counts[key]))
	}
	return strings.Join(list, " ")
}

// wantCounts waits until a node's counts are as a regular expression says. Where nodes publish
// nothing there is nothing to wait for.
func (c *cluster) wantCounts(node, want string) {
	c.t.Helper()
	if c.publishes() {
		c.eventually(func() string { return c.counts(node) }, want)
	}
}

// idleCounts are those of a node of four idle GPUs.
const idleCounts = "^carma1:40536 carma2:40536 carma3:40536 carma4:40536 carmaall:4$"

// uid of a user of the cluster.
func (c *cluster) uid(user string) string { return c.sh("", "id -u "+user) }

// noDrain requires every node up and of no bad state.
func (c *cluster) noDrain() {
	c.t.Helper()
	if out := c.sh("", "sinfo -N -h -p plain -o '%N %T "+
		"%E'"); regexp.MustCompile(`drain|down|fail|\*|inval`).MatchString(strings.ToLower(out)) {
		c.t.Errorf("nodes:\n%s", out)
	}
}

// nothingLeft ends the users' jobs and requires that nothing of them stays: no job, on no node
// a lease a minute later (a busy machine has the patience of all tests), no node out of service.
func (c *cluster) nothingLeft() {
	c.t.Helper()
	c.sh("", "for u in "+alice+" "+bob+" "+carol+"; do scancel -u $u; done")
	c.eventually(func() string { return c.sh("", "squeue -h -r -o '%i %T %r'") }, "^$")
	ended := time.Now()
	ledgers, err := filepath.Glob(filepath.Join(c.dir, "run", "n*", "leases.db"))
	if err != nil || len(ledgers) == 0 {
		c.t.Fatalf("no ledgers: %v", err)
	}
	for _, ledger := range ledgers {
		c.eventually(func() string { return c.leases(filepath.Base(filepath.Dir(ledger))) }, "^$")
	}
	if took := time.Since(ended); took > time.Minute {
		c.t.Logf("the last lease ended %s after the last job", took.Round(time.Second))
	}
	c.noDrain()
}

// gpuStatus is what carma-node status --json says of one GPU.
type gpuStatus struct {
	UUID       string  `json:"uuid"`
	Index      int     `json:"index"`
	SMActPct   float64 `json:"smact_pct"`
	UsedMiB    int64   `json:"used_mib"`
	Closed     string  `json:"closed"`
	Quarantine string  `json:"quarantine"`
	MPSClients int     `json:"mps_clients"`
	Leases     []struct {
		JobID uint32 `json:"job_id"`
		Idle  bool   `json:"idle"`
	} `json:"leases"`
}

func (c *cluster) status(node string) []gpuStatus {
	c.t.Helper()
	var s struct {
		GPUs []gpuStatus `json:"gpus"`
	}
	if err := json.Unmarshal([]byte(c.sh("", "carma-node --node "+node+" status --json")), &s); err != nil {
		c.t.Fatal(err)
	}
	return s.GPUs
}

// leases lists the jobs that hold leases on a node.
func (c *cluster) leases(node string) string {
	var ids []string
	for _, g := range c.status(node) {
		for _, l := range g.Leases {
			ids = append(ids, fmt.Sprint(l.JobID))
		}
	}
	return strings.Join(ids, " ")
}

// report is what carma-report --json says of one job.
type report struct {
	JobID      uint32   `json:"job_id"`
	User       string   `json:"user"`
	State      string   `json:"state"`
	EstMiB     int64    `json:"est_mib"`
	ReserveMiB int64    `json:"reserve_mib"`
	PeakMiB    int64    `json:"peak_mib"`
	GPUs       []string `json:"gpus"`
	Neighbours []uint32 `json:"neighbours"`
	OOM        bool     `json:"oom"`
	RequeuedTo string   `json:"requeued_to"`
	RunS       float64  `json:"run_s"`
	Attempts   int      `json:"attempts"`
}

func (c *cluster) report(id string) report {
	c.t.Helper()
	// Users read a copy, which comes a moment later.
	known := "carma-report -P -n -o JobID,State,Attempts,End,PeakMem,EstMem,Neighbours,OOM,Requeued -j " + id
	var copied, records string
	c.eventually(func() string {
		copied, _, _ = c.run(alice, known)
		records, _, _ = c.run("", known)
		return fmt.Sprint(copied == records && records != "")
	}, "true")
	var r struct {
		Jobs []report `json:"jobs"`
	}
	if err := json.Unmarshal([]byte(c.sh(alice, "carma-report --json -j "+id)), &r); err != nil || len(r.Jobs) != 1 {
		c.t.Fatalf("report of job %s: %v, %+v", id, err, r)
	}
	return r.Jobs[0]
}
