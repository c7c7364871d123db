// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Request is what the #SBATCH lines of a script ask for, as far as it matters
// to CARMA; empty or zero fields were not given.
type Request struct {
	partition     string
	gres          string
	gpus          string // [type:]N, ...
	gpusPerNode   string
	gpusPerSocket string
	gpusPerTask   string
	tresPerTask   string // gres/gpu:N, ... (23.11 and later)

	nodes          uint32 // the least
	tasks          uint32
	tasksPerNode   uint32
	socketsPerNode uint32
	tasksPerGPU    uint32

	args string // of the script, as annotate.Job has them

	option   string // --carma, which CARMA's SPANK plugin registers
	variable string // CARMA in the environment

	Het bool // a heterogeneous job: this is its first component
}

// sbatchOption is an option of sbatch that is looked at. least is the length
// of the shortest abbreviation that getopt_long takes for it, given all of
// sbatch's options from 22.05 to 26.11.
type sbatchOption struct {
	name  string
	short byte // 0: none
	least int
	set   func(r *Request, value string) error
}

var sbatchOptions = []sbatchOption{
	{"partition", 'p', len("part"), func(r *Request, v string) error { r.partition = v; return nil }},
	{"gres", 0, len("gres"), func(r *Request, v string) error { r.gres = v; return nil }},
	{"gpus", 'G', len("gpus"), func(r *Request, v string) error { r.gpus = v; return nil }},
	{"gpus-per-node", 0, len("gpus-per-n"), func(r *Request, v string) error { r.gpusPerNode = v; return nil }},
	{"gpus-per-socket", 0, len("gpus-per-s"), func(r *Request, v string) error { r.gpusPerSocket = v; return nil }},
	{"gpus-per-task", 0, len("gpus-per-t"), func(r *Request, v string) error { r.gpusPerTask = v; return nil }},
	{"tres-per-task", 0, len("tres-p"), func(r *Request, v string) error { r.tresPerTask = v; return nil }},
	{"nodes", 'N', len("nodes"), func(r *Request, v string) error { return leastNodes(&r.nodes, v) }},
	{"ntasks", 'n', len("ntasks"), func(r *Request, v string) error { return number(&r.tasks, v) }},
	{"ntasks-per-node", 0, len("ntasks-per-n"), func(r *Request,
		v string) error {
		return number(&r.tasksPerNode, v)
	}},
	{"tasks-per-node", 0, len("ta"), func(r *Request, v string) error { return number(&r.tasksPerNode, v) }},
	{"sockets-per-node", 0, len("so"), func(r *Request, v string) error { return number(&r.socketsPerNode, v) }},
	{"carma", 0, len("ca"), func(r *Request, v string) error { r.option = v; return nil }},
	{"ntasks-per-gpu", 0, len("ntasks-per-g"), func(r *Request, v string) error { return number(&r.tasksPerGPU, v) }},
}

// checkExclusive reads the value of --exclusive, which may follow directly. Slurm 24.11 and later know topo.
func checkExclusive(value string) error {
	if !slices.Contains([]string{"", "exclusive", "user", "mcs", "topo", "oversubscribe"}, strings.ToLower(value)) {
		return errors.New("not user, mcs or topo")
	}
	return nil
}

// sbatch's options without a value, or with one that can only follow directly;
// all others take the next word, whatever it is (22.05 to 26.11,
// src/common/slurm_opt.c).
const (
	flagLetters  = "HhOQsvVW"
	valueLetters = "k" // with a value only directly behind
)

var flagNames = []string{
	"consolidate-segments", "contiguous", "exclusive", "external", "get-user-env", "help", "hold", "ignore-pbs",
	"nice", "no-kill", "no-requeue",
	"oom-kill-step", "overcommit", "oversubscribe", "parsable", "propagate", "quiet", "reboot", "requeue",
	"resv-ports", "spread-job",
	"spread-segments", "stepmgr", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
}

// argument is one word of the #SBATCH lines.
type argument struct {
	text string
	line int // from 1
}

// refusal is why sbatch itself would not take a script.
type refusal struct {
	line   int // 0: the script as a whole
	reason string
}

func (e *refusal) Error() string {
	if e.line == 0 {
		return "sbatch: " + e.reason
	}
	return fmt.Sprintf("sbatch: line %d: %s", e.line, e.reason)
}

// readRequest reads the #SBATCH lines as sbatch does (src/sbatch/opt.c,
// _opt_batch_script and get_argument): all their words are one command line
// for getopt_long, up to the first line that is no comment. The error, if any,
// is a *refusal. #PBS and #BSUB lines are not looked at.
func readRequest(text []byte) (Request, error) {
	var r Request
	if reason := unfit(text); reason != "" {
		return r, &refusal{0, reason}
	}
	args, err := r.arguments(text)
	if err != nil {
		return r, err
	}
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a.text == "--":
			return r, stray(args)
		case strings.HasPrefix(a.text, "--"):
			args, err = r.long(a, args)
		case len(a.text) > 1 && a.text[0] == '-':
			args, err = r.shorts(a, args)
		default:
			err = stray([]argument{a})
		}
		if err != nil {
			return r, err
		}
	}
	return r, r.together()
}

// together refuses options that sbatch does not take together
// (src/common/slurm_opt.c).
func (r *Request) together() error {
	if r.tasksPerGPU == 0 {
		return nil
	}
	const with = " does not go with --ntasks-per-gpu"
	switch {
	case r.gpusPerTask != "":
		return &refusal{0, "--gpus-per-task" + with}
	case r.gpusPerSocket != "":
		return &refusal{0, "--gpus-per-socket" + with}
	case r.tasksPerNode > 0:
		return &refusal{0, "--ntasks-per-node" + with}
	}
	return nil
}

// unfit returns why sbatch takes no such script, or "" (src/sbatch/sbatch.c,
// _get_script_buffer).
func unfit(text []byte) string {
	switch {
	case len(text) == 0:
		return "the script is empty"
	case !bytes.HasPrefix(text, []byte("#!")):
		return "the first line of the script does not begin with #!"
	case bytes.IndexByte(text, 0) >= 0:
		return "the script holds a NUL character"
	case bytes.Contains(text, []byte("\r\n")):
		return "the script has DOS line ends; convert it with dos2unix"
	}
	return ""
}

func stray(args []argument) error {
	if len(args) == 0 {
		return nil
	}
	return &refusal{args[0].line, fmt.Sprintf("%q is no option", args[0].text)}
}

// arguments splits the #SBATCH lines into words, those of the first component
// if the job is heterogeneous.
func (r *Request) arguments(text []byte) ([]argument, error) {
	var args []argument
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line = bytes.TrimSuffix(line, []byte{'\n'})
		rest, ok := bytes.CutPrefix(line, []byte("#SBATCH"))
		if !ok {
			rest, ok = bytes.CutPrefix(line, []byte("#SLURM")) // still read, with a warning
		}
		if !ok {
			if t := bytes.TrimLeft(line, blanks); len(t) > 0 && t[0] != '#' {
				break
			}
			continue
		}
		if _, r.Het = cutComponent(strings.TrimLeft(string(rest), blanks)); r.Het {
			return args, nil
		}
		words, err := splitArguments(string(rest), n)
		if err != nil {
			return nil, err
		}
		args = append(args, words...)
	}
	return args, nil
}

const blanks = " \t\n\v\f\r" // isspace in the C locale

// cutComponent takes the word away that begins a further component of a
// heterogeneous job where it begins a line, and means nothing elsewhere.
func cutComponent(s string) (rest string, ok bool) {
	for _, w := range []string{"hetjob", "packjob"} {
		if n := len(w); len(s) >= n && strings.EqualFold(s[:n], w) &&
			(len(s) == n || strings.IndexByte(blanks, s[n]) >= 0) {
			return strings.TrimLeft(s[n:], blanks), true
		}
	}
	return s, false
}

// splitArguments splits a line as sbatch does: quotes group, a backslash
// takes the next character as it is, # begins a comment wherever it stands,
// and an empty word ends the line.
func splitArguments(s string, line int) ([]argument, error) {
	var args []argument
	for {
		s, _ = cutComponent(strings.TrimLeft(s, blanks))
		if s != "" && s[0] == ':' {
			return nil, &refusal{line, "a word begins with a colon"}
		}
		var b strings.Builder
		var quote byte
		escaped := false
		i := 0
	word:
		for ; i < len(s) && (quote != 0 || strings.IndexByte(blanks, s[i]) < 0); i++ {
			switch c := s[i]; {
			case escaped:
				escaped = false
				b.WriteByte(c)
			case c == '\\':
				escaped = true
			case quote != 0 && c == quote:
				quote = 0
			case quote != 0:
				b.WriteByte(c)
			case c == '"' || c == '\'':
				quote = c
			case c == '#':
				break word
			default:
				b.WriteByte(c)
			}
		}
		if quote != 0 {
			return nil, &refusal{line, fmt.Sprintf("a quote %c is not closed", quote)}
		}
		if b.Len() == 0 {
			return args, nil
		}
		args = append(args, argument{b.String(), line})
		s = s[i:]
	}
}

// long reads a long option.
func (r *Request) long(a argument, rest []argument) ([]argument, error) {
	name, value, has := strings.Cut(a.text[2:], "=")
	if len(name) >= len("exclus") && strings.HasPrefix("exclusive", name) {
		if err := checkExclusive(value); err != nil {
			return nil, &refusal{a.line, fmt.Sprintf("--exclusive %q: %v", value, err)}
		}
		return rest, nil
	}
	if slices.ContainsFunc(flagNames, func(flag string) bool { return strings.HasPrefix(flag, name) }) {
		return rest, nil
	}
	if !has {
		if len(rest) == 0 {
			return nil, &refusal{a.line, a.text + " needs a value"}
		}
		value, rest = rest[0].text, rest[1:]
	}
	for _, o := range sbatchOptions {
		if len(name) >= o.least && strings.HasPrefix(o.name, name) {
			return rest, o.give(r, value, a.line)
		}
	}
	return rest, nil
}

// shorts reads a word of short options: -p gpu, -pgpu, -Hp gpu.
func (r *Request) shorts(a argument, rest []argument) ([]argument, error) {
	letters := strings.TrimLeft(a.text[1:], flagLetters)
	if letters == "" || strings.IndexByte(valueLetters, letters[0]) >= 0 {
		return rest, nil
	}
	value := letters[1:]
	if value == "" {
		if len(rest) == 0 {
			return nil, &refusal{a.line, "-" + letters + " needs a value"}
		}
		value, rest = rest[0].text, rest[1:]
	}
	for _, o := range sbatchOptions {
		if o.short == letters[0] {
			return rest, o.give(r, value, a.line)
		}
	}
	return rest, nil
}

func (o sbatchOption) give(r *Request, value string, line int) error {
	if err := o.set(r, value); err != nil {
		return &refusal{line, fmt.Sprintf("--%s %q: %v", o.name, value, err)}
	}
	return nil
}

func number(to *uint32, s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n == 0 {
		return errors.New("not a number")
	}
	*to = uint32(n)
	return nil
}

// leastNodes reads N, MIN-MAX, lists (23.02 and later) and, with a suffix,
// thousands (1024) or millions.
func leastNodes(to *uint32, s string) error {
	if i := strings.IndexAny(s, "-,:"); i >= 0 {
		s = s[:i]
	}
	digits := strings.TrimRight(s, "kKmM")
	unit, ok := map[string]uint32{"": 1, "k": 1 << 10, "m": 1 << 20}[strings.ToLower(s[len(digits):])]
	if err := number(to, digits); err != nil || !ok || *to > 1<<31/unit {
		return errors.New("not a node count")
	}
	*to *= unit
	return nil
}
