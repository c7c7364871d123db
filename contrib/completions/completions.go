// SPDX-License-Identifier: Apache-2.0

// Package completions makes the shells' completions beside it from the programs' flags,
// and is for the programs' tests.
package completions

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// shells write the completion of a program from its table of flags. words are its
// subcommands.
var shells = map[string]func(b *strings.Builder, program string, f *pflag.FlagSet, words []string){
	"bash": bash, "zsh": zsh, "fish": fish,
}

// Test holds the completions and the manual page that are shipped to a program's flags,
// from the program's folder in cmd. update rewrites the completions.
func Test(t *testing.T, page string, f *pflag.FlagSet, words []string, update bool) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "man", page))
	if err != nil {
		t.Fatal(err)
	}
	f.VisitAll(func(o *pflag.Flag) {
		if !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), "--"+o.Name) {
			t.Errorf("--%s is not in the manual page; run make man", o.Name)
		}
	})
	program := strings.TrimSuffix(page, filepath.Ext(page))
	for shell, write := range shells {
		var b strings.Builder
		write(&b, program, f, words)
		path := filepath.Join("..", "..", "contrib", "completions", program+"."+shell)
		if update {
			if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || b.String() != string(want) {
			t.Errorf("%s is not of these flags (%v); run the test with -update", path, err)
		}
	}
}

// help is a flag's usage on one line without the quotes of its argument's name.
func help(f *pflag.Flag) (argument, text string) {
	argument, text = pflag.UnquoteUsage(f)
	return argument, strings.Join(strings.Fields(text), " ")
}

func isFile(argument string) bool { return argument == "FILE" }

func bash(b *strings.Builder, program string, f *pflag.FlagSet, words []string) {
	var options, files, others []string
	f.VisitAll(func(o *pflag.Flag) {
		names := []string{"--" + o.Name}
		if o.Shorthand != "" {
			names = append(names, "-"+o.Shorthand)
		}
		options = append(options, names...)
		switch argument, _ := help(o); {
		case argument == "" || o.NoOptDefVal != "":
		case isFile(argument):
			files = append(files, names...)
		default:
			others = append(others, names...)
		}
	})
	name := "_" + strings.ReplaceAll(program, "-", "_")
	fmt.Fprintf(b, "# bash completion of %s; made of its flags by go test -update\n%s() {\n", program, name)
	fmt.Fprint(b, "\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - "+
		"1]}\n\tCOMPREPLY=()\n\tcase $before in\n")
	if len(files) > 0 {
		fmt.Fprintf(b, "\t%s) mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return ;;\n", strings.Join(files, " | "))
	}
	if len(others) > 0 {
		fmt.Fprintf(b, "\t%s) return ;;\n", strings.Join(others, " | "))
	}
	fmt.Fprint(b, "\tesac\n")
	fmt.Fprintf(b, "\tif [[ $word == -* ]]; then\n\t\tmapfile -t COMPREPLY < <(compgen -W %q -- "+
		"\"$word\")\n\telse\n\t\tmapfile -t COMPREPLY < <(compgen -W %q -f -- \"$word\")\n\tfi\n}\n",
		strings.Join(options, " "), strings.Join(words, " "))
	fmt.Fprintf(b, "complete -o filenames -F %s %s\n", name, program)
}

func zsh(b *strings.Builder, program string, f *pflag.FlagSet, words []string) {
	fmt.Fprintf(b, "#compdef %s\n# Made of its flags by go test -update.\n_arguments -s \\\n", program)
	quote := strings.NewReplacer("'", "'\\''", "[", "\\[", "]", "\\]", ":", "\\:")
	f.VisitAll(func(o *pflag.Flag) {
		argument, text := help(o)
		action := ""
		switch {
		case argument == "" || o.NoOptDefVal != "":
		case isFile(argument):
			action = ":" + argument + ":_files"
		default:
			action = ":" + quote.Replace(argument) + ": "
		}
		names := []string{"--" + o.Name}
		if o.Shorthand != "" {
			names = append(names, "-"+o.Shorthand)
		}
		for _, n := range names {
			fmt.Fprintf(b, "\t'*%s[%s]%s' \\\n", n, quote.Replace(text), action)
		}
	})
	if len(words) > 0 {
		fmt.Fprintf(b, "\t'1:command:(%s)' \\\n", strings.Join(words, " "))
	}
	fmt.Fprint(b, "\t'*:file:_files'\n")
}

func fish(b *strings.Builder, program string, f *pflag.FlagSet, words []string) {
	fmt.Fprintf(b, "# fish completion of %s; made of its flags by go test -update\n", program)
	quote := strings.NewReplacer(`\`, `\\`, "'", `\'`)
	f.VisitAll(func(o *pflag.Flag) {
		argument, text := help(o)
		fmt.Fprintf(b, "complete -c %s -l %s", program, o.Name)
		if o.Shorthand != "" {
			fmt.Fprintf(b, " -s %s", o.Shorthand)
		}
		switch {
		case argument == "" || o.NoOptDefVal != "":
		case isFile(argument):
			fmt.Fprint(b, " -r -F")
		default:
			fmt.Fprint(b, " -x")
		}
		fmt.Fprintf(b, " -d '%s'\n", quote.Replace(text))
	})
	for _, w := range words {
		fmt.Fprintf(b, "complete -c %s -n __fish_use_subcommand -a %s\n", program, w)
	}
}
