// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"carma/slurmbridge/annotate"
)

// requests are scripts with what sbatch 22.05.8 reads out of them; TestSbatch
// compares with the real one where it is installed.
var requests = []struct {
	name, lines string // behind "#!/bin/sh\n"
	want        Request
	refused     bool
	newer       bool   // not of all releases: 22.05.8 does not know it
	later       string // with these words a later release refuses it
}{
	{name: "nothing"},
	{name: "short options", lines: "#SBATCH -p gpu -G 2 -n 4 -N 2\n",
		want: Request{partition: "gpu", gpus: "2", tasks: 4, nodes: 2}},
	{name: "values directly behind", lines: "#SBATCH -pgpu -G2 -n4 -N2-4\n",
		want: Request{partition: "gpu", gpus: "2", tasks: 4, nodes: 2}},
	{name: "long options",
		lines: "#SBATCH --partition=gpu --gres=gpu:a100:2\n#SBATCH --gpus-per-node=2 --gpus-per-task=1 " +
			"--ntasks=8\n#SBATCH --ntasks-per-node=4 --nodes=2\n",
		want: Request{partition: "gpu", gres: "gpu:a100:2", gpusPerNode: "2", gpusPerTask: "1", tasks: 8,
			tasksPerNode: 4, nodes: 2},
		later: "--gpus-per-node and --gres=gpu are mutually exclusive"}, // 26.05
	{name: "another word for it", lines: "#SBATCH --tasks-per-node=4\n", want: Request{tasksPerNode: 4}},
	{name: "TRES per task", lines: "#SBATCH --tres-per-task=gres/gpu:1 -n 2\n",
		want: Request{tresPerTask: "gres/gpu:1", tasks: 2}, newer: true},
	{name: "a list of node counts", lines: "#SBATCH -N 2,4-8:2\n", want: Request{nodes: 2}, newer: true},
	{name: "no component", lines: "#SBATCH -n 3 hetjob -J my_hetjob hetjob\n#SBATCH -p gpu\n",
		want: Request{tasks: 3, partition: "gpu"}},
	{name: "sockets", lines: "#SBATCH --gpus-per-socket=1 --sockets-per-node=2\n",
		want: Request{gpusPerSocket: "1", socketsPerNode: 2}},
	{name: "separate values", lines: "#SBATCH --partition gpu --gres gpu:1\n",
		want: Request{partition: "gpu", gres: "gpu:1"}},
	{name: "a value on the next line", lines: "#SBATCH -n\n# note\n#SBATCH 4 -p gpu\n",
		want: Request{tasks: 4, partition: "gpu"}},
	{name: "abbreviations", lines: "#SBATCH --part=gpu --gpus-per-n=2 --ntasks-per-no=3\n",
		want: Request{partition: "gpu", gpusPerNode: "2", tasksPerNode: 3}},
	{name: "the last one wins", lines: "#SBATCH -p a -G1\n#SBATCH -p b --gpus=2\n",
		want: Request{partition: "b", gpus: "2"}},
	{name: "typed GPUs", lines: "#SBATCH -G a100:1,v100:2\n", want: Request{gpus: "a100:1,v100:2"}},
	{name: "a comment", lines: "#SBATCH -p gpu # --gres=gpu:1\n", want: Request{partition: "gpu"}},
	{name: "a comment in a word", lines: "#SBATCH -p gpu#x -n 3\n", want: Request{partition: "gpu"}},
	{name: "quotes", lines: "#SBATCH -p \"gpu\" --comment '-p cpu -n 9' -n '4'\n",
		want: Request{partition: "gpu", tasks: 4}},
	{name: "a backslash", lines: "#SBATCH -p g\\pu --comment \"a \\\" -n 3\" -N 2\n",
		want: Request{partition: "gpu", nodes: 2}},
	{name: "an empty word ends the line", lines: "#SBATCH -p gpu \"\" -n 3\n#SBATCH -N 1\n",
		want: Request{partition: "gpu", nodes: 1}},
	{name: "no blank behind the word", lines: "#SBATCH-p gpu\n", want: Request{partition: "gpu"}},
	{name: "tabs", lines: "#SBATCH\t-p\tgpu\n", want: Request{partition: "gpu"}},
	{name: "other options",
		lines: "#SBATCH -J -n3x --mem=9G --time 1:00 -o out -c 4 --exclusive --requeue --comment --gres=gpu:2\n#SBATCH " +
			"--nice=5 --exclude node1 --no-k -H -p gpu\n", want: Request{partition: "gpu"}},
	{name: "letters in one word", lines: "#SBATCH -HQsp gpu -On4\n", want: Request{partition: "gpu", tasks: 4}},
	{name: "indented comments go on", lines: "  # note\n\t\n#SBATCH -p gpu\n", want: Request{partition: "gpu"}},
	{name: "indented directives do not count", lines: " #SBATCH -p cpu\n#SBATCH -n 2\n", want: Request{tasks: 2}},
	{name: "up to the first command", lines: "#SBATCH -p gpu\ncd /tmp\n#SBATCH -n 3\n",
		want: Request{partition: "gpu"}},
	{name: "the old word", lines: "#SLURM -p gpu\n", want: Request{partition: "gpu"}},
	{name: "CARMA lines are comments", lines: "#CARMA mem=3G\n#SBATCH -p gpu\n", want: Request{partition: "gpu"}},
	{name: "the first component", lines: "#SBATCH -p gpu\n#SBATCH hetjob\n#SBATCH -p cpu -n 4\n",
		want: Request{partition: "gpu", Het: true}},
	{name: "the first component, old word", lines: "#SBATCH -p gpu\n#SBATCH packjob\n#SBATCH -p cpu\n",
		want: Request{partition: "gpu", Het: true}},
	{name: "no newline at the end", lines: "#SBATCH -p gpu", want: Request{partition: "gpu"}},
	{name: "thousands of nodes", lines: "#SBATCH -N 2k\n", want: Request{nodes: 2048}},
	{name: "none", lines: "#SBATCH --gres=none -G 0\n", want: Request{gres: "none", gpus: "0"}},
	{name: "an equals sign behind a letter is the value's", lines: "#SBATCH -p=gpu\n",
		want: Request{partition: "=gpu"}},
	{name: "no more options", lines: "#SBATCH -p gpu --\n", want: Request{partition: "gpu"}},

	{name: "nodes by name", lines: "#SBATCH -w n[1-3]\n#SBATCH -p a,b\n",
		want: Request{partition: "a,b"}},
	{name: "nodes by name, long", lines: "#SBATCH --nodelist n1,n2 -n 4\n", want: Request{tasks: 4}},
	{name: "a reservation", lines: "#SBATCH --reserv=r1 -p gpu\n", want: Request{partition: "gpu"}},
	{name: "whole nodes", lines: "#SBATCH --exclusive -p gpu\n", want: Request{partition: "gpu"}},
	{name: "whole nodes, abbreviated", lines: "#SBATCH --exclus\n", want: Request{}},
	{name: "whole nodes, no other user", lines: "#SBATCH --exclusive=user -n 2\n", want: Request{tasks: 2}},
	{name: "whole nodes, and not", lines: "#SBATCH --exclusive -s\n", newer: true}, // 24.11 refuses both
	{name: "tasks of a GPU", lines: "#SBATCH --ntasks-per-gpu=2 -n 4\n", want: Request{tasks: 4, tasksPerGPU: 2}},

	{name: "no way to be exclusive", lines: "#SBATCH --exclusive=bad\n", refused: true},
	{name: "no tasks of a GPU", lines: "#SBATCH --ntasks-per-gpu=0\n", refused: true},
	{name: "tasks of a GPU and a node", lines: "#SBATCH --ntasks-per-gpu=2 --ntasks-per-node=2\n", refused: true},
	{name: "tasks of a GPU, GPUs of a task", lines: "#SBATCH --ntasks-per-gpu=2 --gpus-per-task=1\n", refused: true},
	{name: "an open quote", lines: "#SBATCH --comment \"a -n 3\n", refused: true},
	{name: "a colon", lines: "#SBATCH : -n 3\n", refused: true},
	{name: "a stray word", lines: "#SBATCH -p gpu stray -n 3\n", refused: true},
	{name: "a stray word of a letter more", lines: "#SBATCHx -n 3\n", refused: true},
	{name: "a word behind a flag", lines: "#SBATCH -p gpu --exclusive user\n", refused: true},
	{name: "words behind the end of options", lines: "#SBATCH -p gpu -- -n 3\n", refused: true},
	{name: "no number of tasks", lines: "#SBATCH -n 0x3\n", refused: true},
	{name: "a negative number of tasks", lines: "#SBATCH -n -4\n", refused: true},
	{name: "no number of nodes", lines: "#SBATCH -N many\n", refused: true},
	{name: "no value", lines: "#SBATCH -p gpu --gres\n", refused: true},
	{name: "DOS line ends", lines: "#SBATCH -p gpu\r\n", refused: true},
	{name: "a NUL", lines: "#SBATCH -p gpu\n\x00\n", refused: true},
}

func TestReadRequest(t *testing.T) {
	for _, c := range requests {
		t.Run(c.name, func(t *testing.T) {
			got, err := readRequest([]byte("#!/bin/sh\n" + c.lines))
			if c.refused {
				var r *refusal
				if !errors.As(err, &r) || !strings.HasPrefix(err.Error(), "sbatch: ") {
					t.Fatalf("got %+v, %v; want a refusal", got, err)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got  %+v, %v\nwant %+v", got, err, c.want)
			}
		})
	}
}

func TestReadRequestRefusals(t *testing.T) {
	for script, want := range map[string]string{
		"":                               "sbatch: the script is empty",
		"echo\n":                         "sbatch: the first line of the script does not begin with #!",
		"#!/bin/sh\n\n#SBATCH -n lots\n": `sbatch: line 3: --ntasks "lots": not a number`,
		"#!/bin/sh\n#SBATCH -p a b\n":    `sbatch: line 2: "b" is no option`,
	} {
		if _, err := readRequest([]byte(script)); message(err) != want {
			t.Errorf("%q: got %v, want %s", script, err, want)
		}
	}
}

// The real sbatch reads the same out of the same lines. It prints them before
// it looks for a controller, of which there is none.
func TestSbatch(t *testing.T) {
	sbatch, err := exec.LookPath("sbatch")
	if err != nil {
		t.Skip("sbatch is not installed; make deps-test-unit installs it")
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "slurm.conf")
	if err := os.WriteFile(conf,
		[]byte("ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nAuthType=auth/none\nGresTypes=gpu\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range requests {
		if c.newer {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(dir, "job.sh")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.lines), 0o644); err != nil {
				t.Fatal(err)
			}
			options, text := definedOptions(t, sbatch, conf, path)
			if c.later != "" && strings.Contains(text, c.later) {
				t.Skip(text)
			}
			if options == nil != c.refused {
				t.Fatalf("refused is %v, want %v; sbatch said\n%s", options == nil, c.refused, text)
			}
			w := c.want
			if w.tasks > 0 && w.nodes > w.tasks {
				w.nodes = w.tasks
			}
			for name, want := range map[string]string{
				"partition": w.partition, "gpus": w.gpus, "gpus-per-node": w.gpusPerNode,
				"gpus-per-task": w.gpusPerTask, "gpus-per-socket": w.gpusPerSocket,
				"ntasks": decimal(w.tasks), "ntasks-per-node": decimal(w.tasksPerNode),
				"sockets-per-node": decimal(w.socketsPerNode),
				"nodes":            decimal(w.nodes), "gres": w.gres,
			} {
				got := strings.ReplaceAll(options[name], "gres:", "") // 22.05
				got = strings.ReplaceAll(got, "gres/", "")            // 24.11
				if name == "nodes" {
					got, _, _ = strings.Cut(got, "-")
				}
				if !c.refused && got != want {
					t.Errorf("--%s: sbatch says %q, we %q", name, got, want)
				}
			}
		})
	}
}

func decimal(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(int(n))
}

// definedOptions returns the options that sbatch -v prints, nil if it printed
// none, and its first words.
func definedOptions(t *testing.T, sbatch, conf, script string) (map[string]string, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, sbatch, "-v", script)
	cmd.Env = []string{"SLURM_CONF=" + conf, "PATH=/usr/bin:/bin"}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var options map[string]string
	var said bytes.Buffer
	for lines := bufio.NewScanner(io.TeeReader(out, &said)); lines.Scan(); {
		line := strings.TrimPrefix(lines.Text(), "sbatch: ")
		if line == "defined options" {
			options = map[string]string{}
		}
		if line == "end of defined options" {
			break
		}
		if name, value, ok := strings.Cut(line, ":"); ok && options != nil {
			options[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	_ = cmd.Process.Kill() // it would try to reach the controller
	_ = cmd.Wait()
	return options, said.String()
}

func TestJob(t *testing.T) {
	const none = annotate.NoVal
	for _, c := range []struct {
		r    Request
		want annotate.Job
	}{
		{Request{}, annotate.Job{MinNodes: none, Tasks: none, TasksPerNode: none, SocketsPerNode: none}},
		{Request{partition: "p", gres: "gpu:2", gpusPerNode: "a100:1", nodes: 2, tasks: 4, tasksPerNode: 2,
			socketsPerNode: 1},
			annotate.Job{Partition: "p", TRES: annotate.TRES{PerNode: "gpu:2,gpu:a100:1"}, MinNodes: 2, Tasks: 4,
				TasksPerNode: 2, SocketsPerNode: 1}},
		{Request{gres: "none", gpus: "0"}, annotate.Job{MinNodes: none, Tasks: none, TasksPerNode: none,
			SocketsPerNode: none}},
		{Request{gpus: "a100:1,v100:2", gpusPerTask: "1", gpusPerSocket: "3"},
			annotate.Job{TRES: annotate.TRES{PerJob: "gpu:a100:1,gpu:v100:2", PerTask: "gpu:1", PerSocket: "gpu:3"},
				MinNodes: none, Tasks: none, TasksPerNode: none, SocketsPerNode: none}},
		{Request{gpus: "4", gpusPerTask: "2"}, annotate.Job{TRES: annotate.TRES{PerJob: "gpu:4", PerTask: "gpu:2"},
			MinNodes: none, Tasks: 2, TasksPerNode: none, SocketsPerNode: none}},
		{Request{gpus: "a100:4", gpusPerTask: "a100:1"},
			annotate.Job{TRES: annotate.TRES{PerJob: "gpu:a100:4", PerTask: "gpu:a100:1"}, MinNodes: none, Tasks: 4,
				TasksPerNode: none, SocketsPerNode: none}},
		{Request{gpus: "a100:4", gpusPerTask: "1"}, annotate.Job{TRES: annotate.TRES{PerJob: "gpu:a100:4", PerTask: "gpu:1"},
			MinNodes: none, Tasks: none, TasksPerNode: none, SocketsPerNode: none}},
		{Request{tresPerTask: "cpu=4,gres/gpu=1", tasks: 2},
			annotate.Job{TRES: annotate.TRES{PerTask: "cpu:4,gres/gpu:1"}, MinNodes: none, Tasks: 2, TasksPerNode: none,
				SocketsPerNode: none}},
		{Request{tresPerTask: "gres/gpu:1", gpusPerTask: "2"},
			annotate.Job{TRES: annotate.TRES{PerTask: "gpu:2,gres/gpu:1"}, MinNodes: none, Tasks: none,
				TasksPerNode: none, SocketsPerNode: none}},
		{Request{tasks: 8, tasksPerGPU: 4}, annotate.Job{TaskGPUs: 2, MinNodes: none, Tasks: 8,
			TasksPerNode: none, SocketsPerNode: none}},
		{Request{nodes: 2, tasksPerGPU: 4}, annotate.Job{TaskGPUs: 2, MinNodes: 2, Tasks: none,
			TasksPerNode: none, SocketsPerNode: none}},
		{Request{tasks: 8, tasksPerGPU: 4, gres: "gpu:1"},
			annotate.Job{TRES: annotate.TRES{PerNode: "gpu:1"}, TaskGPUs: 2, MinNodes: none, Tasks: 8, TasksPerNode: none,
				SocketsPerNode: none}},
		{Request{gpus: "8", nodes: 4, tasks: 2}, annotate.Job{TRES: annotate.TRES{PerJob: "gpu:8"}, MinNodes: 2,
			Tasks: 2, TasksPerNode: none, SocketsPerNode: none}},
	} {
		got := c.r.job(nil)
		if got.Partition != c.want.Partition || got.TRES != c.want.TRES || got.MinNodes != c.want.MinNodes ||
			got.Tasks != c.want.Tasks || got.TaskGPUs != c.want.TaskGPUs ||
			got.TasksPerNode != c.want.TasksPerNode || got.SocketsPerNode != c.want.SocketsPerNode {
			t.Errorf("%+v:\ngot  %+v\nwant %+v", c.r, got, c.want)
		}
	}
}

func FuzzReadRequest(f *testing.F) {
	for _, c := range requests {
		f.Add([]byte("#!/bin/sh\n" + c.lines))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		r, err := readRequest(script)
		var refused *refusal
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("error %v is no refusal", err)
		}
		j := r.job(script)
		if j.MinNodes == 0 || j.Tasks == 0 || j.TasksPerNode == 0 || j.SocketsPerNode == 0 {
			t.Errorf("a count of 0 in %+v", j)
		}
	})
}
