// SPDX-License-Identifier: Apache-2.0

package frameworks

import (
	"bytes"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// statements yields the lines of a text that are no comment, with the number of each, from 1. Lines joined by a
// backslash are one.
func statements(text []byte) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		var b strings.Builder
		n, first, joined := 0, 0, 0
		for line := range bytes.Lines(text) {
			n++
			l := strings.TrimSpace(string(line[:min(len(line), maxLine)]))
			if joined == 0 {
				if strings.HasPrefix(l, "#") {
					continue
				}
				first = n
				b.Reset()
			}
			before, more := strings.CutSuffix(l, `\`)
			b.WriteString(before)
			if joined++; more && joined < maxJoin {
				b.WriteByte('\f') // a blank
				continue
			}
			if joined = 0; !yield(first, strings.TrimSpace(b.String())) {
				return
			}
		}
		if joined > 0 {
			yield(first, strings.TrimSpace(b.String()))
		}
	}
}

// launcher is how a launcher is told the number of its processes.
type launcher struct {
	few           int  // unless told; 0: one for each GPU, or as its own configuration says
	tasks         bool // unless told one for each task of the job
	ofNode, ofAll []string
}

// unknown is a number that only the job knows.
const unknown = -1

// processes is the message for a launcher: how many processes come to a GPU.
func processes(j Job, text []byte, line string, l launcher) string {
	gpus, n := max(j.GPUs, 1), l.few
	value, all := l.told(line)
	if value == "" && !l.tasks && strings.Contains(line, "$") { // its options may be in a variable
		for _, other := range statements(text) {
			if value == "" {
				value, all = l.told(other)
			}
		}
	}
	if value != "" {
		n = count(text, value, gpus, 4)
	}
	if nodes := max(j.Nodes, 1); all && n > 0 {
		n = (n + nodes - 1) / nodes
	}
	const each = "mem= is for all processes on a GPU together, but the limit applies to each process"
	switch {
	case n == unknown:
		return fmt.Sprintf("as many processes as the script computes; with more than one on a GPU %s", each)
	case n == 0 && l.tasks:
		return "one process for each task of the job unless told otherwise; with more than one on a GPU " + each
	case n == 0:
		return "one process for each GPU unless told otherwise; with more of them " + each
	case n > gpus:
		return fmt.Sprintf("%d processes on %d %s: %s", n, gpus, plural(gpus), each)
	case n < gpus:
		return fmt.Sprintf("for %d of the %d %s of a node", n, gpus, plural(gpus))
	}
	return fmt.Sprintf("one process on each of %d %s", gpus, plural(gpus))
}

// told is the number of processes by a line, and whether the number is of all nodes together; empty: no word of any.
func (l launcher) told(line string) (value string, all bool) {
	if value = option(line, l.ofNode); value == "" {
		value = option(line, l.ofAll)
		all = value != ""
	}
	return value, all
}

// begins is what may stand before an option in a word: ARGS=( or LAUNCHER=".
var begins = regexp.MustCompile(`^\w*=?["'(]+`)

// option is the value of the last of the named options on a line, without quotes; empty: none is there.
func option(line string, names []string) (value string) {
	words := strings.Fields(line)
	for i, w := range words {
		name, v, ok := strings.Cut(w[len(begins.FindString(w)):], "=")
		if !ok && i+1 < len(words) {
			v = words[i+1]
		}
		if slices.Contains(names, name) && v != "" {
			value = strings.NewReplacer(`"`, "", `'`, "", `\`, "").Replace(v)
		}
	}
	if !strings.Contains(value, "(") {
		value = strings.TrimSuffix(value, ")")
	}
	return value
}

var variable = regexp.MustCompile(`^\$\{?([A-Za-z_]\w*)\}?$`)

// count is the number that a value stands for, by the script's own assignments.
func count(text []byte, value string, gpus, depth int) int {
	if n, err := strconv.Atoi(value); err == nil && n > 0 && n < 1<<16 {
		return n
	}
	if value == "gpu" || value == "auto" {
		return gpus
	}
	m := variable.FindStringSubmatch(value)
	switch {
	case m == nil || depth == 0:
		return unknown
	case m[1] == "SLURM_GPUS_ON_NODE" || m[1] == "SLURM_GPUS_PER_NODE":
		return gpus
	}
	set := regexp.MustCompile(`(?m)^\s*(?:export\s+|readonly\s+)?` + m[1] + `=["']?(\$?\{?\w+\}?)["']?(?:[\s;#]|$)`)
	if found := set.FindAllSubmatch(text, 2); len(found) == 1 { // of several any could be in force
		return count(text, string(found[0][1]), gpus, depth-1)
	}
	return unknown
}
