// SPDX-License-Identifier: Apache-2.0

// Package frameworks reads a batch script, and the Python files named there, for
// frameworks that take GPU memory at their start and for launchers of several
// processes, and tells the effect on the job's memory; and for lines that choose
// GPUs. Package frameworks is pure, and
// guesses: imports elsewhere stay unseen.
package frameworks

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"carma/slurmbridge/config"
)

// Job holds the known facts of the job's GPUs.
type Job struct {
	GPUs       int   // of a node
	Nodes      int   // the least; 0: one
	ReserveMiB int64 // per GPU
	FullMiB    int64 // a whole GPU
}

// Finding is a framework or a launcher, its place, and the consequence.
type Finding struct {
	Name  string // jax, vllm, torchrun, ...
	Where string // file and line
	Says  string
}

// Bounds of the reading beside the script.
const (
	maxFiles = 8
	MaxBytes = 1 << 20 // of a file; the rest is not read
	maxLine  = 4096    // of a line
	maxJoin  = 64      // lines that are one by a backslash at their ends
)

// rule holds a pattern and its message. A rule matches by an imported Python module, a
// command, or python's -m.
type rule struct {
	name     string
	modules  []string
	commands []string
	says     func(j Job, text []byte, line string) string
}

var rules = []rule{
	{"jax", []string{"jax", "flax", "haiku", "optax", "equinox"}, nil, func(_ Job, text []byte, _ string) string {
		return growth(text, "JAX takes 75 % of the GPU at its start", "XLA_PYTHON_CLIENT_PREALLOCATE", "false")
	}},
	{"tensorflow", []string{"tensorflow", "keras"}, nil, func(_ Job, text []byte, _ string) string {
		if bytes.Contains(text, []byte("set_memory_growth")) {
			return "the script asks TensorFlow for growth: its peak is what it needs"
		}
		return growth(text, "TensorFlow takes all of the GPU at its start", "TF_FORCE_GPU_ALLOW_GROWTH", "true")
	}},
	{"vllm", []string{"vllm"}, []string{"vllm"}, func(j Job, text []byte, _ string) string {
		return part(j, text, "vLLM", "--gpu-memory-utilization")
	}},
	{"sglang", []string{"sglang"}, nil, func(j Job, text []byte, _ string) string {
		return part(j, text, "SGLang", "--mem-fraction-static")
	}},
	{"torchrun", []string{"torch.distributed.run", "torch.distributed.launch"}, []string{"torchrun"},
		func(j Job, text []byte, line string) string {
			return processes(j, text, line, launcher{few: 1, ofNode: []string{"--nproc_per_node", "--nproc-per-node"}})
		}},
	{"accelerate", []string{"accelerate"}, []string{"accelerate"}, func(j Job, text []byte, line string) string {
		return processes(j, text, line, launcher{ofAll: []string{"--num_processes", "--num-processes"}})
	}},
	{"deepspeed", []string{"deepspeed"}, []string{"deepspeed"}, func(j Job, text []byte, line string) string {
		return processes(j, text, line, launcher{ofNode: []string{"--num_gpus"}}) +
			"; say parallel=zero1, zero2 or zero3 for the estimate"
	}},
	{"mpirun", nil, []string{"mpirun", "mpiexec"}, func(j Job, text []byte, line string) string {
		return processes(j, text, line, launcher{tasks: true, ofAll: []string{"-np", "-n", "--np", "--n"},
			ofNode: []string{"-npernode", "--npernode", "-ppn", "--ppn", "-N"}})
	}},
}

// ownDevices is the message for a script that sets CUDA_VISIBLE_DEVICES.
const ownDevices = "CUDA_VISIBLE_DEVICES is set in the script and is kept: a GPU that is not the job's is not found, " +
	"or is another job's where devices are not confined; leave the line out, for CARMA names the job's GPUs"

// growth is the message for a framework with a variable against taking everything.
func growth(text []byte, takes, variable, value string) string {
	if bytes.Contains(text, []byte(variable)) {
		return variable + " is set in the script and is kept; if it lets the framework take the whole GPU, " +
			"later runs book that"
	}
	return fmt.Sprintf("%s unless told otherwise; CARMA sets %s=%s unless you set it, so that its peak is what it needs",
		takes, variable, value)
}

// part is the message for a server taking a part of the whole GPU.
func part(j Job, all []byte, program, option string) string {
	takes := "0.9"
	name := strings.ReplaceAll(strings.TrimPrefix(option, "--"), "-", "[-_]")
	given := regexp.MustCompile(`(?m)^[^#\n]*` + name + `[\s=]+["']?([\w$.{]+)`)
	if m := given.FindSubmatch(all); m != nil {
		if strings.Trim(string(m[1]), "${") == "CARMA_MEM_FRACTION" {
			return fmt.Sprintf("%s takes $CARMA_MEM_FRACTION of the whole GPU at its start, which is within what is booked",
				program)
		}
		if takes = string(m[1]); takes[0] < '0' || takes[0] > '9' {
			takes = "a part"
		}
	}
	text := fmt.Sprintf("%s takes %s of the whole GPU at its start, and does not start with less", program, takes)
	if j.FullMiB > 0 && j.ReserveMiB > 0 && j.ReserveMiB < j.FullMiB {
		text += fmt.Sprintf("; with %d MiB booked at most %.2f", j.ReserveMiB, config.Fraction(j.ReserveMiB, j.FullMiB))
	}
	return text + fmt.Sprintf(": %s $CARMA_MEM_FRACTION", option)
}

func plural(n int) string {
	if n == 1 {
		return "GPU"
	}
	return "GPUs"
}

var (
	imports = regexp.MustCompile(`^\s*(?:from\s+([\w.]+)\s+import\b|import\s+([\w., \t]+))`)
	running = regexp.MustCompile(`(?:^|\s)-m\s+([\w.]+)`)
)

// Look reads a script and, through read, the Python files named there.
func Look(name string, script []byte, j Job, read func(path string) ([]byte, bool)) []Finding {
	type source struct {
		name string
		text []byte
	}
	sources, all := []source{{name, script}}, bytes.Clone(script)
	for _, file := range pythonFiles(script) {
		if text, ok := read(file); ok {
			sources = append(sources, source{file, text})
			all = append(append(all, '\n'), text...)
		}
	}
	var list []Finding
	for _, s := range sources {
		if at := SetsDevices(s.text); at > 0 {
			list = append(list, Finding{"devices", fmt.Sprintf("%s line %d", s.name, at), ownDevices})
		}
		for n, text := range statements(s.text) {
			for _, r := range rules {
				if r.matches(text) && !slices.ContainsFunc(list, func(f Finding) bool { return f.Name == r.name }) {
					list = append(list, Finding{r.name, fmt.Sprintf("%s line %d", s.name, n), r.says(j, all, text)})
				}
			}
		}
	}
	return list
}

func (r rule) matches(line string) bool {
	if m := imports.FindStringSubmatch(line); m != nil {
		for word := range strings.SplitSeq(m[1]+m[2], ",") {
			module, _, _ := strings.Cut(strings.TrimSpace(word), " ")
			if r.has(module) {
				return true
			}
		}
	}
	if m := running.FindStringSubmatch(line); m != nil && r.has(m[1]) {
		return true
	}
	// A command: the first word, behind starters and assignments, or behind ; & |.
	for part := range strings.FieldsFuncSeq(line, func(c rune) bool { return c == ';' || c == '&' || c == '|' }) {
		if slices.ContainsFunc(r.commands, func(c string) bool { return runs(part, c) }) {
			return true
		}
	}
	return false
}

// has tells whether a module is among the rule's, or within a module of the rule.
func (r rule) has(module string) bool {
	return slices.ContainsFunc(r.modules, func(m string) bool { return module == m || strings.HasPrefix(module, m+".") })
}

var (
	// before are words in front of a program.
	before = []string{"then", "do", "if", "export"}
	// starters are programs with options and arguments in front of the program that they start.
	starters = []string{"srun", "apptainer", "singularity", "podman", "docker", "enroot", "bash", "sh", "numactl", "nsys",
		"conda", "time", "env", "timeout", "exec", "nohup", "uv", "poetry", "ray"}
	// named are options of starters with any name behind.
	named = []string{"-J", "--job-name", "--container-name", "--comment", "-n", "--name", "--with"}
	// other are words behind which the name of a program is no command.
	other = []string{"activate", "add", "build", "cat", "command", "create", "echo", "git", "install", "ls", "pip", "pip3",
		"printf", "pull", "which"}

	assigned = regexp.MustCompile(`^[A-Za-z_]\w*=["']`)
	follows  = regexp.MustCompile(`^(?:launch$|serve$|-|\$|.*\.py)`)
)

// runs tells whether a command line runs a program, which may be in quotes: bash -c "torchrun x.py", or
// LAUNCHER="torchrun --nnodes 2"; or begins a line behind a program that is not known.
func runs(line, program string) bool {
	for one := range strings.SplitSeq(line, "\f") {
		words := strings.Fields(one)
		if len(words) > 1 && path.Base(words[0]) == program && follows.MatchString(words[1]) {
			return true
		}
	}
	started := false
	words := strings.Fields(line)
	for i, word := range words {
		in := assigned.FindString(word)
		if in != "" && word[len(in):] == program && (i+1 == len(words) || follows.MatchString(words[i+1])) {
			return true
		}
		if strings.Contains(word, "=") || strings.HasPrefix(word, "-") || !started && slices.Contains(before, word) ||
			started && slices.Contains(named, words[i-1]) {
			continue
		}
		switch word = path.Base(strings.Trim(word, "\"'`")); {
		case word == program:
			return true
		case slices.Contains(starters, word):
			started = true
		case !started, slices.Contains(other, word), strings.HasPrefix(word, "python"), strings.HasSuffix(word, ".py"),
			strings.HasSuffix(word, ".sh"):
			return false
		}
	}
	return false
}

var pythonFile = regexp.MustCompile(`[^\s"'=;|&<>$]+\.py\b`)

// pythonFiles lists the Python files named in a script.
func pythonFiles(script []byte) (files []string) {
	for line := range bytes.Lines(script) {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			continue
		}
		for _, m := range pythonFile.FindAll(line, -1) {
			if f := string(m); len(files) < maxFiles && !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	return files
}
