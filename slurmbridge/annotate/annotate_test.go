// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"carma/estimator/method"
	"carma/slurmbridge/admincomment"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

const full = 40536

func site() Site {
	return Site{
		Partitions: map[string]config.Partition{
			"gpu":    {Default: true, GPUsPerNode: 4, GPUMemMiB: full, Share: true, Recovery: "gpu-ex"},
			"gpu-ex": {GPUsPerNode: 4, GPUMemMiB: full},
		},
		DefaultPartition: "gpu",
		MarginMiB:        2048,
		MinFreeMiB:       5120,
		GresPrefix:       "gres:",
		AllowPolicies:    []string{"lug"},
	}
}

// job is a request of which nothing is said but the script.
func job(script string) Job {
	return Job{Script: []byte(script), Partition: "gpu", MinNodes: NoVal, Tasks: NoVal, TasksPerNode: NoVal,
		SocketsPerNode: NoVal, MaxNodes: NoVal}
}

// An option wins over the variable, both over the script; a partition speaks for jobs that say nothing.
func TestAnnotateOption(t *testing.T) {
	s := site()
	gpu := s.Partitions["gpu"]
	gpu.Directive = "mem=9G"
	s.Partitions["gpu"] = gpu
	for name, c := range map[string]struct {
		option, variable, script string
		mode                     jobenv.Mode
		mib                      int64
	}{
		"nothing":               {"", "", "", jobenv.ModeShared, 9216},
		"a script":              {"", "", "#CARMA mem=8G\n", jobenv.ModeShared, 8192},
		"a script that is off":  {"", "", "#CARMA off\n", jobenv.ModeOff, full},
		"a script that is on":   {"", "", "#CARMA on\n", jobenv.ModeExclusive, full},
		"an option":             {"mem=7G", "mem=6G", "#CARMA mem=8G\n", jobenv.ModeShared, 7168},
		"a variable":            {"", "mem=6G", "#CARMA mem=8G\n", jobenv.ModeShared, 6144},
		"an option that is off": {"off", "mem=6G", "#CARMA mem=8G\n", jobenv.ModeOff, full},
	} {
		j := job(c.script)
		j.TRES.PerNode, j.Option, j.Variable = "gres:gpu:1", c.option, c.variable
		if a, err := s.Annotate(j); err != nil || a.Mode != c.mode || a.ReserveMiB != c.mib {
			t.Errorf("%s: %s, %d MiB, %v", name, a.Mode, a.ReserveMiB, err)
		}
	}
	// Where a job may start in one of several partitions, they have to say the same.
	other := gpu
	other.Directive = "on"
	s.Partitions["other"] = other
	j := job("")
	j.TRES.PerNode, j.Partition = "gres:gpu:1", "gpu,other"
	if a, err := s.Annotate(j); err != nil || a.Mode != jobenv.ModeExclusive {
		t.Errorf("two partitions: %s, %v", a.Mode, err)
	}
	j.Option, j.Partition = "mem=50G", "gpu"
	if _, err := s.Annotate(j); err == nil ||
		!strings.HasPrefix(err.Error(), "--carma: mem: 50.0 GiB is more than a GPU") {
		t.Errorf("more than a GPU has: %v", err)
	}
	// What has no script learns by name.
	for option, learns := range map[string]bool{"on": false, "on,job=a": true, "policy=exclusive": false} {
		j.Script, j.Option = nil, option
		if a, err := s.Annotate(j); err != nil || a.Learn != learns || (a.Note == "") != (option != "on") {
			t.Errorf("%s without a script: learns %v, %q, %v", option, a.Learn, a.Note, err)
		}
	}
	// The values of variables are asked for first; without an environment nothing is learned.
	for values, c := range map[string]struct {
		wants  int
		learns bool
	}{"": {2, false}, "A=1\x1fB=\x1f": {0, true}, noValues: {0, false}} {
		j.Option, j.Values = "on,job=a,vars=B,A", values
		a, err := s.Annotate(j)
		if err != nil || len(a.Wants) != c.wants || a.Learn != c.learns || (a.Key != 0) != c.learns ||
			strings.Contains(a.Note, "vars= is for sbatch") != (values == noValues) {
			t.Errorf("values %q: wants %q, learns %v by %v, %q, %v", values, a.Wants, a.Learn, a.Key, a.Note, err)
		}
	}
	s.IgnoreBad = true
	j.Option = "mem=banana"
	if a, err := s.Annotate(j); err != nil || a.Mode != jobenv.ModeExclusive {
		t.Errorf("a wrong one that is ignored: %s, %v", a.Mode, err)
	}
}

const mem10 = "#!/bin/sh\n#CARMA mem=10G\n"

func TestAnnotateSpellings(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Job)
		want string // tres_per_node
		gpus int
	}{
		{"--gres=gpu:1", func(j *Job) { j.TRES.PerNode = "gres:gpu:1" },
			"gres:gpu:1,gres:carma:10240", 1},
		{"--gres=gpu", func(j *Job) { j.TRES.PerNode = "gres:gpu" }, "gres:gpu,gres:carma:10240", 1},
		{"--gres=gpu:a100:2", func(j *Job) { j.TRES.PerNode = "gres:gpu:a100:2" },
			"gres:gpu:a100:2,gres:carma:20480", 2},
		{"--gres=gpu:1,x:3", func(j *Job) { j.TRES.PerNode = "gres:gpu:1,gres:x:3" },
			"gres:gpu:1,gres:x:3,gres:carma:10240", 1},
		{"--gpus-per-node=3", func(j *Job) { j.TRES.PerNode = "gres:gpu:3" },
			"gres:gpu:3,gres:carma:30720", 3},
		{"--gpus=2", func(j *Job) { j.TRES.PerJob = "gres:gpu:2" }, "gres:carma:20480", 2},
		{"--gpus=4 -N4", func(j *Job) { j.TRES.PerJob, j.MinNodes = "gres:gpu:4", 4 },
			"gres:carma:10240", 1},
		{"--gpus=5 -N3", func(j *Job) { j.TRES.PerJob, j.MinNodes = "gres:gpu:5", 3 },
			"gres:carma:30720", 3},
		{"--gpus=8 --gpus-per-node=4", func(j *Job) { j.TRES.PerJob, j.TRES.PerNode = "gres:gpu:8", "gres:gpu:4" },
			"gres:gpu:4,gres:carma:40960", 4},
		{"--gpus-per-task=1 -n2", func(j *Job) { j.TRES.PerTask, j.Tasks = "gres:gpu:1", 2 },
			"gres:carma:20480", 2},
		{"--gpus-per-task=1", func(j *Job) { j.TRES.PerTask = "gres:gpu:1" }, "gres:carma:10240", 1},
		{"--gpus-per-task=1 -n8 --ntasks-per-node=4", func(j *Job) {
			j.TRES.PerTask, j.Tasks, j.TasksPerNode = "gres:gpu:1",
				8, 4
		}, "gres:carma:40960", 4},
		{"--gpus-per-task=2 -n2 -N2", func(j *Job) { j.TRES.PerTask, j.Tasks, j.MinNodes = "gres:gpu:2", 2, 2 },
			"gres:carma:20480", 2},
		{"--gpus-per-socket=1", func(j *Job) { j.TRES.PerSocket = "gres:gpu:1" }, "gres:carma:20480",
			2},
		{"--gpus-per-socket=2 --sockets-per-node=1", func(j *Job) { j.TRES.PerSocket, j.SocketsPerNode = "gres:gpu:2", 1 },
			"gres:carma:20480", 2},
		{"default partition", func(j *Job) { j.Partition, j.TRES.PerNode = "", "gres:gpu:1" },
			"gres:gpu:1,gres:carma:10240", 1},
		{"a booking of the user's own", func(j *Job) { j.TRES.PerNode = "gres:gpu:1,gres:carma:1" },
			"gres:gpu:1,gres:carma:10240", 1},
		{"another K of the user's own", func(j *Job) { j.TRES.PerNode = "gres:carma:36,gres:gpu:1" },
			"gres:gpu:1,gres:carma:10240", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job(mem10)
			c.set(&j)
			a, err := site().Annotate(j)
			if err != nil {
				t.Fatal(err)
			}
			if !a.Managed || a.TRES.PerNode != c.want || a.GPUs != c.gpus || a.Mode != jobenv.ModeShared ||
				a.ReserveMiB != 10240 {
				t.Errorf("got %+v, want tres_per_node %s", a, c.want)
			}
			if a.TRES.PerJob != j.TRES.PerJob || a.TRES.PerTask != j.TRES.PerTask || a.TRES.PerSocket != j.TRES.PerSocket {
				t.Errorf("a list other than tres_per_node changed: %+v", a.TRES)
			}
		})
	}
}

func TestAnnotateModes(t *testing.T) {
	for _, c := range []struct {
		name, script, partition string
		mode                    jobenv.Mode
		method                  string
		est, reserve            int64
	}{
		{"no directive", "#!/bin/sh\n", "gpu", jobenv.ModeExclusive, method.None, 0, full},
		{"no script", "", "gpu", jobenv.ModeExclusive, method.None, 0, full},
		{"on", "#CARMA on\n", "gpu", jobenv.ModeExclusive, method.None, 0, full},
		{"mem", mem10, "gpu", jobenv.ModeShared, method.User, 10240, 10240},
		{"mem and off", "#CARMA off mem=10G\n", "gpu", jobenv.ModeOff, method.User, 10240, full},
		{"mem and exclusive", "#CARMA policy=exclusive mem=10G\n", "gpu", jobenv.ModeExclusive, method.User, 10240, full},
		{"mem that leaves nothing for others", "#CARMA mem=38G\n", "gpu", jobenv.ModeExclusive, method.User, 38912, full},
		{"all of it", "#CARMA mem=40536\n", "gpu", jobenv.ModeExclusive, method.User, full, full},
		{"shared at one's own risk", "#CARMA policy=shared\n", "gpu", jobenv.ModeShared, method.None, 0, 5120},
		{"partition that does not share", mem10, "gpu-ex", jobenv.ModeExclusive, method.User, 10240, full},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job(c.script)
			j.Partition, j.TRES.PerNode = c.partition, "gres:gpu:1"
			a, err := site().Annotate(j)
			if err != nil {
				t.Fatal(err)
			}
			if a.Mode != c.mode || a.Method != c.method || a.EstMiB != c.est || a.ReserveMiB != c.reserve || a.FullMiB != full {
				t.Errorf("got %+v", a)
			}
		})
	}
}

func TestAnnotateLeavesAlone(t *testing.T) {
	for name, set := range map[string]func(*Job){
		"another partition":             func(j *Job) { j.Partition = "cpu" },
		"several partitions of others":  func(j *Job) { j.Partition = "fat,cpu" },
		"another partition, wrong line": func(j *Job) { j.Partition, j.Script = "cpu", []byte("#CARMA mem=banana\n") },
		"another partition, own booking": func(j *Job) {
			j.Partition, j.TRES.PerNode = "cpu",
				"gres:gpu:1,gres:carma:5"
		},
		"no GPU":             func(j *Job) { j.TRES.PerNode = "" },
		"no GPU, wrong line": func(j *Job) { j.TRES.PerNode, j.Script = "", []byte("#CARMA mem=banana\n") },
	} {
		j := job(mem10)
		j.TRES.PerNode = "gres:gpu:1"
		set(&j)
		a, err := site().Annotate(j)
		if err != nil || a.Managed {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
	}
}

// slurmctld starts a job that names several partitions in any of them: it is booked for
// the smallest GPUs, and refused where it could get more of a node than one has.
// A job that takes all GPUs of its nodes books them so that slurmctld plans its start.
func TestAnnotateWholeNodes(t *testing.T) {
	s := site()
	s.Partitions["two"] = config.Partition{GPUsPerNode: 2, GPUMemMiB: full}
	s.Partitions["big"] = config.Partition{GPUsPerNode: 4, GPUMemMiB: 2 * full}
	s.Partitions["one"] = config.Partition{GPUsPerNode: 1, GPUMemMiB: full, Share: true}
	for _, c := range []struct {
		partitions, script string
		gpus               int
		want               string // tres_per_node and extra
	}{
		{"gpu", "", 4, "gres:carma:162144 carmaall>=4"},
		{"gpu", "#CARMA off\n", 4, "gres:carma:162144 carmaall>=4"},
		{"gpu,gpu-ex", "#CARMA on\n", 4, "gres:carma:162144 carmaall>=4"},
		{"gpu", "", 3, "gres:carma:121608 carma3>=40536|carma3u1001>=40536"},
		{"gpu", mem10, 4, "gres:carma:40960 carma4>=10240|carma4u1001>=10240"},
		{"gpu", mem10, 1, "gres:carma:10240 carma1>=10240|carma1u1001>=10240"},
		{"gpu,two", "", 2, "gres:carma:81072 carma2>=40536|carma2u1001>=40536"},
		{"gpu,big", "", 4, "gres:carma:162144 carma4>=40536|carma4u1001>=40536"},
		{"two,cpu", "", 2, "gres:carma:81072 carmaall>=2"},
		{"one", "", 1, "gres:carma:40536 carmaall>=1"},
	} {
		j := job(c.script)
		j.Partition, j.TRES.PerNode, j.UID = c.partitions, fmt.Sprintf("gres:gpu:%d", c.gpus), 1001
		plain, err := s.Annotate(j)
		if err != nil || plain.Counted || plain.All || plain.Extra != "" {
			t.Errorf("%s %d: where slurmctld compares nothing: %+v, %v", c.partitions, c.gpus, plain, err)
		}
		j.Constrains = true
		a, err := s.Annotate(j)
		if got := strings.TrimPrefix(a.TRES.PerNode, j.TRES.PerNode+",") + " " + a.Extra; err != nil || got != c.want ||
			!a.Counted || a.All != strings.Contains(c.want, "carmaall") {
			t.Errorf("%s %d: got %s, %v, want %s", c.partitions, c.gpus, got, err, c.want)
		}
	}
}

// What the user wrote stays in force, and what is no constraint is refused in words.
func TestAnnotateOwnExtra(t *testing.T) {
	j := job(mem10)
	j.TRES.PerNode, j.Extra, j.UID = "gres:gpu:1", "rack=a|rack=b", 1001
	if a, err := site().Annotate(j); err != nil || a.Extra != j.Extra {
		t.Errorf("where slurmctld compares nothing: %q, %v", a.Extra, err)
	}
	j.Constrains = true
	const want = "(rack=a|rack=b)&(carma1>=10240|carma1u1001>=10240)"
	if a, err := site().Annotate(j); err != nil || a.Extra != want {
		t.Errorf("got %q, %v", a.Extra, err)
	}
	j.Extra = "a note for my group"
	if _, err := site().Annotate(j); err == nil || !strings.HasPrefix(err.Error(), "partition gpu: --extra ") {
		t.Errorf("got %v", err)
	}
	j.Partition = "cpu"
	if a, err := site().Annotate(j); err != nil || a.Managed {
		t.Errorf("in a partition that is not CARMA's: %+v, %v", a, err)
	}
}

// slurmctld refuses --gpus=1 -n1 --cpus-per-gpu=2 with a GRES of the node beside it.
func TestAnnotateOneNode(t *testing.T) {
	for _, c := range []struct {
		name              string
		perJob, perNode   string
		nodes, tasks      uint32
		wantJob, wantNode string
	}{
		{"--gpus=1", "gres:gpu:1", "", NoVal, NoVal, "", "gres:gpu:1,gres:carma:10240"},
		{"--gpus=a100:2 -n1", "gres:gpu:a100:2,gres:x:1", "gres:y:1", NoVal, 1, "gres:x:1",
			"gres:y:1,gres:gpu:a100:2,gres:carma:20480"},
		{"--gpus=2 -N1", "gres:gpu:2", "", 1, NoVal, "", "gres:gpu:2,gres:carma:20480"},
		{"--gpus=2", "gres:gpu:2", "", NoVal, NoVal, "gres:gpu:2", "gres:carma:20480"},
		{"--gpus=2 --gpus-per-node=2 -N1", "gres:gpu:2", "gres:gpu:2", 1, NoVal, "gres:gpu:2",
			"gres:gpu:2,gres:carma:20480"},
	} {
		j := job(mem10)
		j.TRES.PerJob, j.TRES.PerNode, j.MaxNodes, j.Tasks = c.perJob, c.perNode, c.nodes, c.tasks
		a, err := site().Annotate(j)
		if err != nil || a.TRES.PerJob != c.wantJob || a.TRES.PerNode != c.wantNode {
			t.Errorf("%s: got %+v, %v", c.name, a.TRES, err)
		}
	}
}

// GPUs made of tasks by slurmctld are booked where no list has GPUs, whatever else the lists have.
func TestAnnotateTaskGPUs(t *testing.T) {
	for _, c := range []struct {
		name                       string
		perNode, perJob, perTask   string
		gpus                       uint32
		wantNode, wantJob, wantErr string
	}{
		{"-n4 --ntasks-per-gpu=2", "", "", "", 2, "gres:carma:20480", "gres:gpu:2", ""},
		{"-n2 --ntasks-per-gpu=2", "", "", "", 1, "gres:gpu:1,gres:carma:10240", "", ""},
		{"-n4 -c2 --ntasks-per-gpu=2", "", "", "cpu=2", 2, "gres:carma:20480", "gres:gpu:2", ""},
		{"--gres=gpu:0 -n4 --ntasks-per-gpu=2", "gres:gpu:0", "", "", 2, "gres:gpu:0,gres:carma:20480", "gres:gpu:2", ""},
		{"another GRES of the job", "", "gres:x:3", "", 2, "gres:carma:20480", "gres:x:3,gres:gpu:2", ""},
		{"--gpus=2 -n4 --ntasks-per-gpu=2", "", "gres:gpu:2", "", 2, "gres:carma:20480", "gres:gpu:2", ""},
		{"--gres=gpu:2 -n8 --ntasks-per-gpu=1", "gres:gpu:2", "", "", 8, "gres:gpu:2,gres:carma:20480", "", ""},
		{"-n64 --ntasks-per-gpu=1", "", "", "", 64, "", "", "the job can get 64 GPUs on one node"},
		{"none", "", "", "cpu=2", 0, "", "", ""},
	} {
		j := job(mem10)
		j.TRES, j.TaskGPUs = TRES{PerNode: c.perNode, PerJob: c.perJob, PerTask: c.perTask}, c.gpus
		a, err := site().Annotate(j)
		if a.TRES.PerNode != c.wantNode || a.TRES.PerJob != c.wantJob || a.TRES.PerTask != c.perTask && c.wantErr == "" ||
			c.wantErr == "" && err != nil || c.wantErr != "" && (err == nil || !strings.Contains(err.Error(), c.wantErr)) {
			t.Errorf("%s: %+v, %v", c.name, a.TRES, err)
		}
	}
}

func TestAnnotateSeveralPartitions(t *testing.T) {
	s := site()
	s.Partitions["big"] = config.Partition{GPUsPerNode: 8, GPUMemMiB: 81559, Share: true}
	s.Partitions["alone"] = config.Partition{GPUsPerNode: 2, GPUMemMiB: full}
	s.Partitions["slots"] = config.Partition{GPUsPerNode: 4, GPUMemMiB: full, Share: true,
		TimeSlot: config.Duration(time.Hour)}
	for _, c := range []struct {
		partitions, script string
		gpus               int
		want               string // tres_per_node, or what is refused
	}{
		{"gpu,cpu", mem10, 1, "gres:carma:10240"},
		{"cpu,gpu", mem10, 1, "gres:carma:10240"},
		{"gpu,big", mem10, 2, "gres:carma:20480"},
		{"big,gpu", "", 1, "gres:carma:40536"},
		{"big,gpu", "#CARMA mem=50G\n", 1, "line 1: mem: 50.0 GiB is more than a GPU of partition gpu has (39.6 GiB)"},
		{"gpu,alone", mem10, 1, "gres:carma:40536"},
		{"gpu,alone", mem10, 3, "partition alone: the job can get 3 GPUs on one node, but a node has 2; ask for at most 2 " +
			"per node"},
		{"big,gpu", mem10, 5, "partition gpu: the job can get 5 GPUs on one node, but a node has 4; ask for at most 4 " +
			"per node"},
		{"gpu,slots", mem10, 1, "gres:carma:10240 1 h"},
	} {
		j := job(c.script)
		j.Partition, j.TRES.PerNode = c.partitions, fmt.Sprintf("gres:gpu:%d", c.gpus)
		a, err := s.Annotate(j)
		got := strings.TrimPrefix(a.TRES.PerNode, j.TRES.PerNode+",")
		if err != nil {
			got = err.Error()
		} else if a.TimeLimitMin == 60 {
			got += " 1 h"
		}
		if got != c.want {
			t.Errorf("%s %d: got %s, want %s", c.partitions, c.gpus, got, c.want)
		}
	}
}

func TestAnnotateTakesABookingWithoutGPUAway(t *testing.T) {
	j := job("")
	j.TRES.PerNode = "gres:x:1,gres:carma:40536"
	a, err := site().Annotate(j)
	if err != nil || !a.Managed || a.TRES.PerNode != "gres:x:1" || a.GPUs != 0 || a.AppendEnv(nil, "", " ") != nil {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestAnnotateRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Job)
		want string
	}{
		{"bad value", func(j *Job) { j.Script = []byte("#!/bin/sh\n#CARMA mem=banana\n") }, "line 2: mem=banana: not a size"},
		{"unknown key", func(j *Job) { j.Script = []byte("#CARMA frobnicate=1\n") }, "line 1: frobnicate: unknown key"},
		{"more than a GPU", func(j *Job) { j.Script = []byte("#!/bin/sh\n\n#CARMA mem=60G\n") },
			"line 3: mem: 60.0 GiB is more than a GPU of partition gpu has (39.6 GiB)"},
		{"a policy that is not for jobs", func(j *Job) { j.Script = []byte("#CARMA mem=1G policy=rr\n") },
			"line 1: policy: rr is not for jobs to choose here (shared, exclusive, lug)"},
		{"gpu:5", func(j *Job) { j.TRES.PerNode = "gres:gpu:5" },
			"partition gpu: the job can get 5 GPUs on one node, but a node has 4; ask for at most 4 per node"},
		{"--gpus=8", func(j *Job) { j.TRES = TRES{PerJob: "gres:gpu:8"} },
			"the job can get 8 GPUs on one node, but a node has 4; ask for at most 4 per node with --gpus-per-node and --nodes"},
		{"--gpus-per-task=1 -n8", func(j *Job) { j.TRES, j.Tasks = TRES{PerTask: "gres:gpu:1"}, 8 },
			"add --ntasks-per-node so that a node gets at most 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := job(mem10)
			j.TRES.PerNode = "gres:gpu:1"
			c.set(&j)
			_, err := site().Annotate(j)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestAnnotateIgnoresBadDirectiveWhereAskedTo(t *testing.T) {
	s := site()
	s.IgnoreBad = true
	for _, script := range []string{"#CARMA mem=banana\n", "#CARMA mem=60G\n"} {
		j := job(script)
		j.TRES.PerNode = "gres:gpu:1"
		a, err := s.Annotate(j)
		if err != nil || a.Mode != jobenv.ModeExclusive {
			t.Errorf("%q: got %+v, %v", script, a, err)
		}
	}
}

func TestGresPrefix(t *testing.T) {
	s := site()
	s.GresPrefix = "gres/"
	j := job(mem10)
	j.TRES.PerNode = "gres/gpu:1"
	a, err := s.Annotate(j)
	if err != nil || a.TRES.PerNode != "gres/gpu:1,gres/carma:10240" {
		t.Errorf("got %+v, %v", a, err)
	}
}

func TestEnvAndComment(t *testing.T) {
	j := job("#CARMA mem=10G smact=60 policy=lug\n")
	j.TRES.PerNode = "gres:gpu:2"
	a, err := site().Annotate(j)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(a.AppendEnv(nil, "", " ")),
		"V=1 MODE=shared METHOD=user GPUS=2 MEM_MIB=10240 FULL=40536 KEY=b3855eebdffef9cc EST_MIB=10240 POLICY=lug "+
			"SMACT=60 "; got != want {
		t.Errorf("env:\ngot  %s\nwant %s", got, want)
	}
	if got, want := string(admincomment.AppendJob(nil, &a.Carma, a.Note)),
		`carma={"v":1,"mode":"shared","method":"user","gpus":2,"est_mib":10240,"reserve_mib":10240}`; got != want {
		t.Errorf("comment:\ngot  %s\nwant %s", got, want)
	}
}

func BenchmarkAnnotate(b *testing.B) {
	j := job(mem10 + strings.Repeat("echo some line of a script\n", 1000))
	j.TRES.PerNode = "gres:gpu:1"
	s := site()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Annotate(j); err != nil {
			b.Fatal(err)
		}
	}
}

// Jobs that run alone so that later runs can share are those that a figure would let share.
func TestLearn(t *testing.T) {
	for script, want := range map[string]bool{
		"#CARMA on\n": true, "#CARMA smact=30\n": true, "": false, "#CARMA off\n": false, "#CARMA mem=10G\n": false,
		"#CARMA mem=39G\n":          false,
		"#CARMA policy=exclusive\n": false, "#CARMA policy=shared\n": false,
	} {
		j := job(script)
		j.TRES.PerNode = "gres:gpu:1"
		a, err := site().Annotate(j)
		if err != nil || a.Learn != want || strings.Contains(string(a.AppendEnv(nil, "", " ")), "LEARN=1") != want {
			t.Errorf("%q: learn %v, %v", script, a.Learn, err)
		}
	}
}
