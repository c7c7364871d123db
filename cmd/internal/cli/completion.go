// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// Shells are those that Completion knows.
var Shells = []string{"bash", "zsh", "fish"}

// Completion writes the completion of a program for a shell, from its table of
// flags. words are its subcommands.
func Completion(w io.Writer, shell, program string, f *pflag.FlagSet, words []string) {
	var b strings.Builder
	switch shell {
	case "bash":
		bash(&b, program, f, words)
	case "zsh":
		zsh(&b, program, f, words)
	case "fish":
		fish(&b, program, f, words)
	}
	io.WriteString(w, b.String())
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
