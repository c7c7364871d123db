// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"bytes"
	"regexp"
	"sort"
	"sync"
)

// parsed is a text as programs mean it: lower case, without colours, box-drawing characters as '|',
// each redraw of a progress bar and each line of a traceback inside a JSON string a separate line.
type parsed struct {
	text  []byte
	lines []line // none is empty

	lastOwn int // the number of the last line of the program's own, from 1 on; 0: nobody has looked
}

// line is text[begin:end], and stood at offset in the output of the program.
type line struct {
	begin, end int
	offset     int64
}

func parse(raw []byte) *parsed {
	p := &parsed{text: make([]byte, 0, len(raw))}
	begin, offset := 0, 0
	cut := func(next int) {
		if end := len(p.text); end > begin {
			p.lines = append(p.lines, line{begin, end, int64(offset)})
		}
		p.text = append(p.text, '\n')
		begin, offset = len(p.text), next
	}
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case c == '\n' || c == '\r':
			cut(i + 1)
		case c == '\\' && i+1 < len(raw) && raw[i+1] == 'n' && !isLetter(raw, i+2):
			i++
			cut(i + 1)
		case c == 0x1b:
			i = escapeEnd(raw, i)
		case c == 0xe2 && i+2 < len(raw) && raw[i+1] == 0x94, c == 0xe2 && i+2 < len(raw) && raw[i+1] == 0x95:
			p.text = append(p.text, '|') // U+2500 to U+257F
			i += 2
		case c == 0xe2 && i+2 < len(raw) && raw[i+1] == 0x9d && raw[i+2] == 0xb1: // rich's mark of the line
			p.text = append(p.text, '>')
			i += 2
		case c >= 'A' && c <= 'Z':
			p.text = append(p.text, c+'a'-'A')
		default:
			p.text = append(p.text, c)
		}
	}
	cut(len(raw))
	return p
}

// isLetter: C:\new is no end of a line; in a JSON string, what follows \n is a name, a blank or a bracket. A
// lower-case letter alone begins no line of a traceback but torch., jaxlib. and the like.
func isLetter(raw []byte, i int) bool {
	if i >= len(raw) || raw[i] < 'a' || raw[i] > 'z' {
		return false
	}
	for k := i; k < min(i+24, len(raw)); k++ {
		if c := raw[k]; c == '.' || c == ' ' || c == ':' {
			return false
		} else if c == '\\' || c == '/' {
			return true
		}
	}
	return false
}

// escapeEnd is the index of the last byte of the terminal's escape sequence at raw[i] (ECMA-48).
func escapeEnd(raw []byte, i int) int {
	const longest = 64
	if i+1 >= len(raw) {
		return i
	}
	switch raw[i+1] {
	case '[':
		for k := i + 2; k < min(i+longest, len(raw)); k++ {
			if raw[k] >= 0x40 && raw[k] <= 0x7e {
				return k
			}
		}
	case ']':
		for k := i + 2; k < min(i+longest*8, len(raw)); k++ {
			if raw[k] == 0x07 || raw[k] == '\\' && raw[k-1] == 0x1b {
				return k
			}
		}
	}
	return i
}

// lineAt is the index of the line of text[at].
func (p *parsed) lineAt(at int) int {
	return max(sort.Search(len(p.lines), func(k int) bool { return p.lines[k].begin > at })-1, 0)
}

// lineOf is the index of the line at an offset.
func (p *parsed) lineOf(offset int64) int {
	return max(sort.Search(len(p.lines), func(k int) bool { return p.lines[k].offset > offset })-1, 0)
}

func (p *parsed) line(k int) []byte { return p.text[p.lines[k].begin:p.lines[k].end] }

// around returns the part of the line around text[at], and the place of text[at] there.
func (p *parsed) around(at, k int) (whole []byte, from int) {
	begin, end := max(at-before, p.lines[k].begin), min(at+after, p.lines[k].end)
	return p.text[begin:max(begin, end)], at - begin
}

// pattern compiles an expression on first use: every hook contains this package.
func pattern(s string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(s) })
}

// launched is what launchers put before each line: torchrun, PyTorch, srun -l, mpirun, Ray, vLLM, docker compose.
var launched = pattern(`^(?:\[[\w :,-]{1,32}\](?:<std(?:err|out)>)?:? ?|\([^()]{1,64}\) ?|\d{1,4}: |[\w.-]{1,32} +\| )+`)

// body is a line without what launchers and boxes put before it.
func (p *parsed) body(k int) []byte {
	l := p.line(k)
	l = l[:min(len(l), after)]
	if len(l) > 0 && (l[0] == '[' || l[0] == '(' || l[0] >= '0' && l[0] <= '9' || bytes.Contains(l, []byte(" | "))) {
		l = l[len(launched().Find(l)):]
	}
	if bytes.HasPrefix(l, []byte("|")) {
		l = bytes.TrimPrefix(bytes.TrimLeft(l, "|"), []byte(" "))
		l = bytes.TrimRight(l, "| ")
	}
	return l
}

func indent(l []byte) int { return len(l) - len(bytes.TrimLeft(l, " \t")) }

var (
	// numbered is a line of source with a number: rich, IPython, loguru, compilers.
	numbered = pattern(`^\s*(?:>\s*\d+\s|-{2,}>\s*\d+\s|\d+\s+\||\d+ {2,}\S)`)
	// code is how lines of source with words about memory begin.
	code = pattern(`^(?:except|raise|if|elif|assert|throw|catch|return|def|class|import|from|case|while|for|with|try:|else:|#|//)(?:\W|$)|` +
		`^(?:print|printf|fprintf|logger|logging|log|warnings|self|std::cerr|pytest)[.(]|^[a-z_][\w.]* = `)
	// inCode are words of source wherever they stand on a line.
	inCode = []string{" in str(e", "isinstance(", "except torch", "pytest.raises", "std::cerr", "printf(", `(f"`, ` f"`, `=f"`,
		"-> none:"}
)

// above is how many lines a statement of source takes at most below the line with the name of the file.
const above = 6

// isSource tells whether a line is one of a program's source, as in tracebacks.
func (p *parsed) isSource(k int) bool {
	l := p.body(k)
	trimmed := bytes.TrimLeft(l, " \t")
	if numbered().Match(l) || code().Match(trimmed) || anyIn(l, inCode) {
		return true
	}
	in := indent(l)
	for up := k - 1; up >= 0 && up >= k-above && in > 0; up-- {
		b := p.body(up)
		if t := bytes.TrimLeft(b, " \t>"); bytes.HasPrefix(t, []byte(`file "`)) && bytes.Contains(t, []byte("line ")) {
			return in > indent(b)
		}
		if indent(b) == 0 {
			return false
		}
	}
	return false
}

// ofPinned tells whether a traceback around line k is of a thread for pinned memory of the node.
func (p *parsed) ofPinned(k int) bool {
	for i := max(k-12, 0); i < min(k+4, len(p.lines)); i++ {
		l := p.line(i)
		if anyIn(l[:min(len(l), 512)], []string{"pin_memory.py", ".pin_memory(", "cudahostalloc", "cumemhostalloc",
			"cumemallochost", "hostallocator"}) {
			return true
		}
	}
	return false
}

// raised is the last line of a traceback, by any program: an error that ended the program.
var raised = pattern(`^\s*(?:error: (?:loaderror: )?)?(?:[a-z_]\w*\.)*[a-z]\w*(?:error|exception|interrupt|exit)(?::|\s*$)`)

// passedOn are words of errors about the end of another process.
var passedOn = []string{"childfailederror", "calledprocesserror", "raytaskerror", "processraised", "processexited",
	"distbackenderror", "connectionreset", "connection reset", "brokenpipe", "broken pipe", "eoferror",
	"keyboardinterrupt",
	"systemexit", "root cause", "enginedead", "engine process failed", "actordied", "rayactorerror", "brokenprocesspool",
	"remoteerror", "exitcode", "exit status", "exited unexpectedly", "watchdog", "illegal memory access", "timeouterror"}

// ofMemoryToo are words of errors about memory.
var ofMemoryToo = []string{"out of memory", "outofmemory", "out_of_memory", "resource_exhausted", "resource exhausted",
	"resourceexhausted", "alloc", "oom", "enough memory", "available memory", "kv cache", "memory utilization"}

// lastErrors are the lines of the last error of the text about something else than memory, of the last error passed
// on, and of the last error about memory if no other follows; -1: there is none.
func (p *parsed) lastErrors() (other, passed, memory int) {
	passed = -1
	for k := len(p.lines) - 1; k >= 0 && len(p.text)-p.lines[k].begin <= lastPart; k-- {
		l := p.body(k)
		switch {
		case !raised().Match(l) || p.isSource(k):
		case anyIn(l, ofMemoryToo) || p.tellsOf(k):
			return -1, passed, k
		case anyIn(l, passedOn):
			passed = max(passed, k)
		default:
			return k, passed, -1
		}
	}
	return -1, passed, -1
}

// tellsOf tells whether line k has a message of any signature.
func (p *parsed) tellsOf(k int) bool {
	l := p.line(k)
	for i := range Signatures {
		if bytes.Contains(l, []byte(Signatures[i].text)) {
			return true
		}
	}
	return false
}
