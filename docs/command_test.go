// SPDX-License-Identifier: Apache-2.0

package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// hooks are links to carma-node, with no arguments.
var hooks = []string{"carma-prolog", "carma-task-prolog", "carma-epilog"}

// scripts are commands in Python, with a help of their own.
var scripts = []string{"carma-trace", "carma-summary"}

// program is a command as its --help tells it.
type program struct {
	path  string
	flags map[string]bool // "--name" or "-n"; true: a value may follow as a word of its own
	words []string        // its commands, if it has such
	sub   map[string]map[string]bool
}

var (
	flagLine    = regexp.MustCompile(`(?m)^\s+(?:(-\w), )?(--[a-z0-9-]+)(?: (\S+))?`)
	commandLine = regexp.MustCompile(`(?m)^  ([a-z-]+)  +\S`)
)

func flagsOf(help string) map[string]bool {
	flags := map[string]bool{"--help": false, "-h": false}
	for _, m := range flagLine.FindAllStringSubmatch(help, -1) {
		takes := m[3] != "" && !strings.Contains(m[3], "[=")
		flags[m[2]] = takes
		if m[1] != "" {
			flags[m[1]] = takes
		}
	}
	return flags
}

// programs builds the commands and asks each what it knows.
func programs(t *testing.T) map[string]*program {
	t.Helper()
	dir := t.TempDir()
	dirs, err := filepath.Glob(filepath.Join(root, "cmd", "carma-*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no commands: %v", err)
	}
	args := []string{"build", "-o", dir + "/"}
	all := map[string]*program{}
	for _, d := range dirs {
		name := filepath.Base(d)
		args = append(args, "./"+filepath.Join(root, "cmd", name))
		all[name] = &program{path: filepath.Join(dir, name), sub: map[string]map[string]bool{}}
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		t.Fatalf("build the commands: %v\n%s", err, out)
	}
	for name, p := range all {
		help, err := exec.Command(p.path, "--help").Output()
		if err != nil {
			t.Fatalf("%s --help: %v", name, err)
		}
		p.flags = flagsOf(string(help))
		_, after, has := strings.Cut(string(help), "\nCommands:\n")
		if list, _, _ := strings.Cut(after, "\n\n"); has {
			for _, m := range commandLine.FindAllStringSubmatch(list+"\n", -1) {
				p.words = append(p.words, m[1])
			}
		}
	}
	return all
}

// subFlags asks a command of a program for its flags, once.
func (p *program) subFlags(word string) map[string]bool {
	if p.sub[word] == nil {
		help, _ := exec.Command(p.path, word, "--help").Output()
		p.sub[word] = flagsOf(string(help))
	}
	return p.sub[word]
}

// check returns what is wrong with the words behind the program's name.
func (p *program) check(words []string) (wrong string) {
	flags, command := p.flags, ""
	for i := 0; i < len(words); i++ {
		name, _, hasValue := strings.Cut(strings.Trim(words[i], "[].,"), "=")
		switch {
		case strings.HasPrefix(name, "-") && len(name) > 1:
			takes, ok := flags[name]
			if !ok {
				return strings.TrimSpace(command+" "+name) + " is no option"
			}
			if takes && !hasValue {
				i++
			}
		case len(p.words) > 0 && command == "":
			if strings.ToUpper(name) == name { // COMMAND, in a usage
				return ""
			}
			if !slices.Contains(p.words, name) {
				return name + " is no command"
			}
			command, flags = name, p.subFlags(name)
		}
	}
	return ""
}

var (
	invoked  = regexp.MustCompile(`(?:^|[\s(/=])(carma-(?:node|report|estimate|sim))(?:\s+([^|;&#)>]*))?`)
	starting = regexp.MustCompile(`(?m)^\s*(?:\$ )?(?:sudo )?(carma-[a-z-]+)(?:\s|$)`)
)

// TestCommands: each command with its options, in a fenced block or in a piece
// of inline code, exists.
func TestCommands(t *testing.T) {
	all := programs(t)
	found := 0
	for _, p := range pages(t) {
		spans := slices.Clone(p.inline)
		for _, f := range p.fences {
			for i, line := range strings.Split(f.text, "\n") {
				spans = append(spans, span{line, f.line + 1 + i})
			}
			for _, m := range starting.FindAllStringSubmatch(f.text, -1) {
				other := slices.Contains(slices.Concat(hooks, scripts), m[1])
				if f.lang == "" && all[m[1]] == nil && !other {
					t.Errorf("%s:%d: there is no command %s", p.path, f.line, m[1])
				}
			}
		}
		for _, s := range spans {
			text := strings.ReplaceAll(s.text, "cmd/carma-", "cmd/") // a package, not a command
			for _, m := range invoked.FindAllStringSubmatch(text, -1) {
				prog := all[m[1]]
				if prog == nil {
					t.Errorf("%s:%d: there is no command %s", p.path, s.line, m[1])
					continue
				}
				words := strings.Fields(m[2])
				// In a table or a picture the name stands alone, with text behind it.
				if len(words) > 0 && (strings.HasPrefix(words[0], "-") && words[0] != "->" ||
					slices.Contains(prog.words, words[0]) && !strings.Contains(s.text, "  ")) {
					found++
					if wrong := prog.check(words); wrong != "" {
						t.Errorf("%s:%d: %s: %s", p.path, s.line, m[1], wrong)
					}
				}
			}
		}
	}
	if found < 10 {
		t.Errorf("%d commands found in all pages", found)
	}
}

var (
	makeTarget = regexp.MustCompile(`(?:^|\$ |^\s+)make ([a-z0-9-]+)(?:\s|$)`)
	devcluster = regexp.MustCompile(`devcluster (up|down|env|logs|restart) `)
	option     = regexp.MustCompile(`--[a-z-]+`)
)

// targets are those of the Makefile, and of contrib/long.sh, which the Makefile's pattern rules call.
func targets(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for file, line := range map[string]string{"Makefile": `(?m)^([a-z-]+):`, "contrib/long.sh": `(?m)^([a-z0-9-]+)\)`} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(line).FindAllStringSubmatch(string(text), -1)
		if len(found) < 10 {
			t.Fatalf("%s has %d targets", file, len(found))
		}
		for _, m := range found {
			all[m[1]] = true
		}
	}
	return all
}

// TestMakeAndDevcluster: targets and options that the pages name exist.
func TestMakeAndDevcluster(t *testing.T) {
	known := targets(t)
	known["deps-list"] = true // of the pattern for deps-TARGET
	usage, err := exec.Command(filepath.Join(root, "contrib/devcluster/devcluster"), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pages(t) {
		spans := slices.Clone(p.inline)
		for _, f := range p.fences {
			for i, line := range strings.Split(f.text, "\n") {
				spans = append(spans, span{line, f.line + 1 + i})
			}
		}
		for _, s := range spans {
			m := makeTarget.FindStringSubmatch(s.text)
			if m != nil && !known[m[1]] && !known[strings.TrimPrefix(m[1], "deps-")] {
				t.Errorf("%s:%d: there is no target %s", p.path, s.line, m[1])
			}
			if devcluster.MatchString(s.text) {
				command, _, _ := strings.Cut(s.text, " #")
				for _, o := range option.FindAllString(command, -1) {
					if !strings.Contains(string(usage), o) {
						t.Errorf("%s:%d: devcluster has no %s", p.path, s.line, o)
					}
				}
			}
		}
	}
}

// TestTraceExample: what user.md shows of an estimate from a trace is what the program prints.
func TestTraceExample(t *testing.T) {
	const trace = "estimator/trace/testdata/resnet18.txt"
	cmd := exec.Command("go", "run", "./cmd/carma-estimate", "--summary", trace)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "LC_ALL=C.UTF-8") // else its bars are of #
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	shown, _, found := strings.Cut(string(out), "\n  - the trace's own")
	page, err := os.ReadFile(filepath.Join(root, "docs/user.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !found || !strings.Contains(string(page), "```\n"+shown+"\n```\n") {
		t.Errorf("docs/user.md does not show this:\n%s", out)
	}
}
