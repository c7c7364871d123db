// SPDX-License-Identifier: Apache-2.0

package directive

import "bytes"

// Kind is what a line of a script is to CARMA.
type Kind uint8

// The kinds of lines.
const (
	Comment Kind = iota // a comment of others, or an empty line
	Keys                // #CARMA key=value ...
	Summary             // #CARMA| one line of a model summary
	Command             // ends the leading comment block
)

// Classify tells what a line is, given without its line feed, and returns the
// text behind #CARMA or "#CARMA| ". As for sbatch (src/sbatch/opt.c,
// _opt_batch_script) a comment may be indented, and only what begins the line
// counts.
func Classify(line []byte) (Kind, []byte) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	if len(line) == 0 || line[0] != '#' {
		if trimmed := bytes.TrimLeft(line, " \t\v\f\r"); len(trimmed) > 0 && trimmed[0] != '#' {
			return Command, nil
		}
		return Comment, nil
	}
	after, ok := bytes.CutPrefix(line, []byte("#CARMA"))
	switch {
	case !ok:
		return Comment, nil
	case len(after) > 0 && after[0] == '|':
		return Summary, bytes.TrimPrefix(after[1:], []byte{' '})
	case len(after) == 0 || after[0] == ' ' || after[0] == '\t':
		return Keys, after
	}
	return Comment, nil
}
