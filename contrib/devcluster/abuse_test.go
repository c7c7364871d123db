// SPDX-License-Identifier: Apache-2.0

//go:build abuse

package devcluster_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// number is a bound from the environment, so that a run may be shorter.
func number(t *testing.T, name string, usual int) int {
	t.Helper()
	if os.Getenv(name) == "" {
		return usual
	}
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is not a number", name, os.Getenv(name))
	}
	return n
}

func row(t *testing.T, what, result string) { t.Logf("%-44s %s", what, result) }

// submitter builds contrib/abuse/src/submit.c.
func submitter(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "submit")
	if out, err := exec.Command("cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-o", bin,
		"../abuse/src/submit.c", "-lslurm").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return bin
}

// luaScript rewrites a request as the plugin does: it reads the directives of the
// script, adds the booking, the note for people and the variables for the node.
// (Lua cannot reach the environment of SPANK, so it takes the job's own.)
const luaScript = `
function slurm_job_submit(job_desc, part_list, submit_uid)
	local request, gpus = job_desc.tres_per_node, nil
	if not request or string.find(request, "carma") then return slurm.SUCCESS end
	for entry in string.gmatch(request, "[^,]+") do
		gpus = gpus or string.match(entry, "^gres:gpu:(%d+)$") or string.match(entry, "^gres:gpu:[^:]+:(%d+)$")
	end
	if not gpus then return slurm.SUCCESS end
	local mem, smact, policy
	for line in string.gmatch((job_desc.script or "") .. "\n", "(.-)\r?\n") do
		local words = string.match(line, "^#CARMA%s+(.*)$")
		if words then
			for key, value in string.gmatch(words, "(%w+)=(%S+)") do
				if key == "mem" then
					mem = string.match(value, "^(%d+)G$")
					if not mem then return slurm.ERROR end
				elseif key == "smact" then smact = tonumber(value)
				elseif key == "policy" then policy = value
				else return slurm.ERROR end
			end
		elseif line ~= "" and string.sub(line, 1, 1) ~= "#" then
			break
		end
	end
	if not mem then return slurm.SUCCESS end
	local mib = tonumber(mem) * 1024
	job_desc.tres_per_node = request .. string.format(",gres:carma:%d", mib * gpus)
	local env = job_desc.environment
	env["CARMA_V"], env["CARMA_MODE"], env["CARMA_METHOD"] = "1", "shared", "user"
	env["CARMA_GPUS"], env["CARMA_MEM_MIB"], env["CARMA_FULL"] = gpus, tostring(mib), "40536"
	env["CARMA_EST_MIB"], env["CARMA_SUBMIT"] = tostring(mib), tostring(os.time())
	if smact then env["CARMA_SMACT"] = tostring(smact) end
	if policy then env["CARMA_POLICY"] = policy end
	local note = string.format('carma={"v":1,"mode":"shared","method":"user","gpus":%d,"est_mib":%d,"reserve_mib":%d}', gpus, mib, mib)
	local was = job_desc.admin_comment
	job_desc.admin_comment = was and (was .. " " .. note) or note
	return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid) return slurm.SUCCESS end
return slurm.SUCCESS
`

func (c *cluster) plugins(list string) {
	c.t.Helper()
	conf := filepath.Join(c.dir, "etc", "slurm.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		c.t.Fatal(err)
	}
	text = regexp.MustCompile(`(?m)^JobSubmitPlugins=.*\n`).ReplaceAll(text, nil)
	if list != "" {
		text = append(text, "JobSubmitPlugins="+list+"\n"...)
	}
	// At once: slurmctld may read it at any moment, and dies of an empty one.
	if err := errors.Join(os.WriteFile(conf+".new", text, 0o644), os.Rename(conf+".new", conf)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) slurmctld() int {
	c.t.Helper()
	pid, err := strconv.Atoi(strings.Fields(c.sh("", "cat "+c.dir+"/pid/slurmctld"))[0])
	if err != nil {
		c.t.Fatal(err)
	}
	return pid
}

// reconfigure asks slurmctld to read its files again, now by RPC, now by SIGHUP,
// and waits until it has. Both at once kill slurmctld 22.05 also without CARMA
// (within 10 tries: "Failed to reconfigure MPI plugins", or a fault in the
// thread of signals).
func (c *cluster) reconfigure(pid, round int) {
	c.t.Helper()
	if round%4 < 2 {
		c.sh("", "scontrol reconfigure")
		return
	}
	done := func() string {
		return c.sh("", "grep -c 'mcs: MCSParameters' "+c.dir+"/log/slurmctld.log || true")
	}
	before := done()
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		c.t.Fatalf("reconfigure %d: slurmctld is gone", round)
	}
	for start := time.Now(); done() == before && time.Since(start) < 10*time.Second; {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond)
	c.sh("", "scontrol show config | grep -q SLURM_CONF")
}

// figures of a process: resident memory in KiB, threads, file descriptors.
func figures(t *testing.T, pid int) (rss, threads, fds int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("slurmctld is gone: %v", err)
	}
	fmt.Sscan(string(regexp.MustCompile(`VmRSS:\s+(\d+)`).FindSubmatch(text)[1]), &rss)
	fmt.Sscan(string(regexp.MustCompile(`Threads:\s+(\d+)`).FindSubmatch(text)[1]), &threads)
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return rss, threads, len(entries)
}

// cpuMS is the processor time of a process and all its threads, in milliseconds
// (proc(5), stat: utime and stime in ticks of 10 ms).
func cpuMS(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatalf("slurmctld is gone: %v", err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return 10 * (user + system)
}

// Submissions a second with the plugin, without one, and with job_submit/lua
// that makes the same change, side by side in PAIRS rounds, in turning order:
// by sbatch, as users submit, and by a program that does nothing else.
// Other work on the machine hits a whole round, so the rounds' own ratios are
// compared, by their median; slurmctld's processor time, which other work moves
// less, is the second figure. "booked" asks for the booking itself and has no
// plugin: what slurmctld pays for a request of three GRES instead of one.
func TestAbuseSubmissions(t *testing.T) {
	c := up(t, "--nodes", "1")
	bin := submitter(t)
	script := filepath.Join(c.dir, "jobs", "submit.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --gres=gpu:1\n#CARMA mem=8G\nsleep 1\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir, "etc", "job_submit.lua"), []byte(luaScript), 0o644); err != nil {
		t.Fatal(err)
	}
	c.sh("", "printf 'MaxJobCount=1000000\n' >>"+c.dir+"/etc/slurm.conf")
	c.submissions("sbatch", []string{"none", "carma", "lua"}, func(jobs int, _ string) float64 {
		start := time.Now()
		c.sh("", fmt.Sprintf("seq %d | xargs -P 8 -I{} sbatch --quiet --hold --partition=gpu %s", jobs, script))
		return float64(jobs) / time.Since(start).Seconds()
	})
	c.submissions("program", []string{"none", "carma", "booked", "lua"}, func(jobs int, gres string) (rate float64) {
		out := c.sh("", fmt.Sprint(bin, " 8 ", jobs, " gpu ", script, " ", gres))
		if _, err := fmt.Sscanf(out, "%f submissions/s, 0 submitters failed", &rate); err != nil {
			t.Fatal(out)
		}
		return rate
	})
}

// submissions compares what is named in order; submit returns how many a second it
// got through.
func (c *cluster) submissions(by string, order []string, submit func(jobs int, gres string) float64) {
	t := c.t
	pairs := number(t, "PAIRS", 5)
	jobs := number(t, "SUBMISSIONS", 10000) / pairs / 8 * 8
	logfile := filepath.Join(c.dir, "log", "slurmctld.log")
	inside := regexp.MustCompile(`_slurm_rpc_submit_batch_job: JobId=\d+ InitPrio=0 usec=(\d+)`)
	rates, cpu := map[string][]float64{}, map[string][]float64{}
	usec := map[string][]int{}
	plugin := map[string]string{"carma": "carma", "lua": "lua"}
	for round := range pairs {
		for i := range order {
			name := order[(i+round)%len(order)]
			gres := "gres:gpu:1"
			if name == "booked" {
				gres += ",gres:carma:8192"
			}
			// A fresh slurmctld each time: a queue that is longer is slower, and
			// the jobs of the last one are in its state. That lies in memory, for
			// a disk takes longer to make two files a job the more were deleted.
			state, err := os.MkdirTemp("/dev/shm", "carma-state")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(state)
			c.sh("", "sed -i 's#^StateSaveLocation=.*#StateSaveLocation="+state+"#' "+c.dir+"/etc/slurm.conf")
			c.plugins(plugin[name])
			c.restart("slurmctld")
			before, _ := os.ReadFile(logfile)
			used := cpuMS(t, c.slurmctld())
			rates[name] = append(rates[name], submit(jobs, gres))
			cpu[name] = append(cpu[name], (cpuMS(t, c.slurmctld())-used)*1000/float64(jobs))
			after, _ := os.ReadFile(logfile)
			for _, m := range inside.FindAllSubmatch(after[min(len(before), len(after)):], -1) {
				n, _ := strconv.Atoi(string(m[1]))
				usec[name] = append(usec[name], n)
			}
			// On a machine that is busy elsewhere an answer may come after its
			// 50 ms: then the job has a whole GPU, and the log says so.
			late := name == "carma" && regexp.MustCompile(unanswered).Match(after[min(len(before), len(after)):])
			if booked := c.sh("", "squeue -h -t pending -o %b | grep -c carma:8192 || true"); name != "none" &&
				booked != strconv.Itoa(jobs) && !late {
				t.Errorf("%s: %s of %d jobs have a booking", name, booked, jobs)
			}
		}
	}
	median := func(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/2] }
	ratio := func(a, b []float64) float64 {
		r := make([]float64, len(a))
		for i := range a {
			r[i] = a[i] / b[i]
		}
		return median(r)
	}
	quantile := func(v []int, q float64) int { slices.Sort(v); return v[min(len(v)-1, int(q*float64(len(v))))] }
	for _, name := range order {
		if len(usec[name]) == 0 {
			t.Fatalf("%s: slurmctld logged no submission", name)
		}
		row(t, fmt.Sprintf("%d submissions by 8 at once, %s: %s", len(usec[name]), by, name),
			fmt.Sprintf("%.0f/s; %.0f us of slurmctld each; whole RPC p50 %d us, p99 %d us", median(rates[name]),
				median(cpu[name]), quantile(usec[name], .5), quantile(usec[name], .99)))
	}
	for _, name := range order {
		if name != "carma" {
			row(t, fmt.Sprintf("carma against %s, %s", name, by), fmt.Sprintf("submissions %.3f, processor time %.3f",
				ratio(rates["carma"], rates[name]), ratio(cpu["carma"], cpu[name])))
		}
	}
}

// With SlurmctldParameters=enable_rpc_queue submissions of many come to the
// plugin in a row, under slurmctld's write locks; each is annotated all the same.
func TestAbuseRPCQueue(t *testing.T) {
	c := up(t, "--nodes", "1")
	bin := submitter(t)
	script := filepath.Join(c.dir, "jobs", "submit.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#CARMA mem=8G\nsleep 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.sh("", "echo SlurmctldParameters=enable_rpc_queue >>"+c.dir+"/etc/slurm.conf")
	c.restart("slurmctld")
	const jobs = 2000
	out := c.sh("", fmt.Sprint(bin, " 8 ", jobs, " gpu ", script))
	booked := c.sh("", "squeue -h -t pending -o %b | grep -c carma:8192 || true")
	late := c.sh("", "grep -cE '"+unanswered+"' "+c.dir+"/log/slurmctld.log || true")
	if booked != strconv.Itoa(jobs) && late == "0" {
		t.Errorf("%s of %d jobs have a booking, and nothing says why", booked, jobs)
	}
	row(t, fmt.Sprintf("%d submissions with enable_rpc_queue", jobs), out+"; "+booked+" booked")
}

// The plugin comes and goes 200 times while jobs are submitted and signals rain:
// slurmctld lives.
func TestAbuseReconfigure(t *testing.T) {
	c := up(t, "--nodes", "1")
	bin := submitter(t)
	script := filepath.Join(c.dir, "jobs", "submit.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n#CARMA mem=8G\nsleep 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c.sh("", "printf 'MaxJobCount=1000000\n' >>"+c.dir+"/etc/slurm.conf") // else it is full in the end
	c.restart("slurmctld")
	pid := c.slurmctld()
	c.sh("", bin+" 1 50 gpu "+script) // warm
	rss, threads, fds := figures(t, pid)
	stop, stopped := make(chan bool), make(chan bool)
	end := sync.OnceFunc(func() { close(stop); <-stopped })
	defer end()
	refused := 0
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				if _, _, err := c.run("", bin+" 2 20 gpu "+script); err != nil {
					refused++
				}
			}
		}
	}()
	rounds := number(t, "RECONFIGURES", 200)
	storm := []syscall.Signal{syscall.SIGURG, syscall.SIGPIPE, syscall.SIGUSR2, syscall.SIGCHLD, syscall.SIGURG}
	for i := range rounds {
		c.plugins([]string{"carma", ""}[i%2])
		c.reconfigure(pid, i)
		for _, s := range storm {
			if err := syscall.Kill(pid, s); err != nil {
				t.Fatalf("reconfigure %d, before %s: slurmctld is gone", i, s)
			}
		}
	}
	end()
	c.plugins("carma")
	c.sh("", "scontrol reconfigure")
	if now := c.slurmctld(); now != pid || syscall.Kill(pid, 0) != nil {
		t.Fatal("slurmctld died")
	}
	c.eventually(func() string { return c.job(c.sbatch(alice, "-H --gres=gpu:1", "#CARMA mem=1G\n"), "%b") },
		"carma:1024")
	rss2, threads2, fds2 := figures(t, pid)
	row(t, fmt.Sprintf("%d reconfigures, %d signals each", rounds, len(storm)),
		fmt.Sprintf("0 deaths; RSS %+d KiB, threads %+d, descriptors %+d; %d bursts of submissions refused", rss2-rss,
			threads2-threads, fds2-fds, refused))
	if threads2 > threads+20 || fds2 > fds+20 {
		t.Errorf("threads %d to %d, descriptors %d to %d", threads, threads2, fds, fds2)
	}
	if cores, _ := filepath.Glob(filepath.Join(c.dir, "**", "core*")); len(cores) > 0 {
		t.Errorf("cores: %v", cores)
	}
}

// Reconfiguring while CARMA jobs run and others wait drains no node. slurmctld
// 22.05 starts waiting jobs between its reconfiguration and the registration of
// slurmd, and would find a consumed count of gres/carma changed under them
// (gres.c, _node_config_validate); ours are not consumed (ADR 3).
func TestAbuseReconfigureWithBacklog(t *testing.T) {
	c := up(t, "--nodes", "1")
	for range 20 {
		c.sbatch(alice, "-o /dev/null", "#SBATCH --gres=gpu:1\n#CARMA mem=12G\nsleep 60\n")
	}
	c.eventually(func() string { return c.sh("", "squeue -h -t R | wc -l") }, "[1-9]")
	for range 5 {
		c.sh("", "scontrol reconfigure")
		time.Sleep(1500 * time.Millisecond)
	}
	c.noDrain()
	row(t, "5 reconfigures with jobs waiting", "0 drained")
}

// Every task of an array runs out of memory always: each is requeued exactly
// once, at a pace that slurmctld can take.
func TestAbuseArray(t *testing.T) {
	// 16 GPUs: a task that is requeued keeps one for the seconds that slurmctld
	// lets it wait.
	c := up(t, "--time-scale", "20", "--gpu-model", "h100")
	tasks := number(t, "TASKS", 1000)
	// Each takes its first turn shared: none asks for whole GPUs because it was
	// sent away too often.
	c.sh("", "printf '[hooks]\nwait = \"30s\"\nvetoes = 0\n' >>"+c.dir+"/etc/carma.toml")
	c.sh("", "sdiag -r")
	start := time.Now()
	id := c.sbatch(alice, fmt.Sprintf("--array=1-%d -o /dev/null -e '%s/jobs/e.%%a'", tasks, c.dir),
		"#SBATCH --gres=gpu:1\n#CARMA mem=8G\nexec simjob --mem 100G --smact 10 --ramp 0s --duration 1s\n")
	for deadline := time.Now().Add(time.Minute + time.Duration(tasks)*5*time.Second); ; time.Sleep(2 * time.Second) {
		if c.sh("", "squeue -h -j "+id+" | wc -l") == "0" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there:\n%s", c.sh("", "squeue -h -j "+id+" -o '%T %P %r' -r | sort | uniq -c"))
		}
	}
	took := time.Since(start)
	brought := map[string]int{}
	late := 0    // on a machine that is busy elsewhere the five seconds of a look may not do
	refused := 0 // no sample saw their memory, and so many of the user's jobs came back already
	var at []float64
	for _, n := range []string{"n1", "n2"} {
		text, err := os.ReadFile(filepath.Join(c.dir, "log", "hooks."+n+".log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^time=(\S+) .*msg="requeued after OOM".* job=(\S+)`).FindAllSubmatch(text,
			-1) {
			brought[string(m[2])]++
			when, _ := time.Parse(time.RFC3339, string(m[1]))
			at = append(at, float64(when.UnixMilli())/1000)
		}
		refused += bytes.Count(text, []byte("a text alone says so, and too many"))
		late += len(regexp.MustCompile(`msg="scan stderr".*context deadline exceeded`).FindAll(text, -1))
		if bytes.Contains(text, []byte("not requeued")) {
			t.Errorf("some were not:\n%s", regexp.MustCompile(`(?m)^.*not requeued.*$`).Find(text))
		}
	}
	for job, n := range brought {
		if n != 1 {
			t.Errorf("task %s was requeued %d times", job, n)
		}
	}
	if len(brought)+late+refused != tasks {
		t.Log(c.sh("", "grep -h 'WARN\\|ERROR' "+c.dir+"/log/hooks.n?.log | grep -v 'passed over\\|no GPU fits' | tail "+
			"-n 20"))
		t.Errorf("%d of %d tasks were requeued", len(brought), tasks)
	}
	slices.Sort(at)
	most := 0
	for i := range at {
		j, _ := slices.BinarySearch(at, at[i]+10)
		most = max(most, j-i)
	}
	if most > 50 {
		t.Errorf("%d requeues in 10 s", most)
	}
	row(t, fmt.Sprintf("array of %d tasks that always run out", tasks),
		fmt.Sprintf("%d back once, %d refused, %d looks too late; at most %.1f requeues/s over 10 s; %s in all",
			len(brought), refused, late, float64(most)/10, took.Round(time.Second)))
	c.noDrain()
}
