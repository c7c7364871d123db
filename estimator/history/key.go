// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
	"strings"
)

// Key names what a job runs: jobs of one key are taken for runs of the same thing.
type Key uint64

func (k Key) String() string {
	return hex.EncodeToString(binary.BigEndian.AppendUint64(nil, uint64(k)))
}

// Ask has the parts of a key.
type Ask struct {
	UID     uint32
	Name    string // the user's name for the program (job=); stands for the script, its arguments and keys
	Script  []byte
	Args    string // of the script, as job_submit has them
	Keys    string // of sbatch --carma, with blanks between them
	Vars    string // the variables that the user names and their values, as job_submit has them
	GPUs    int    // of a node
	FullMiB int64  // memory of a GPU: slurmctld does not know its model
}

// Limits of a script that has a key: KeyOf runs inside slurmctld, and costs by the
// byte, by the line and by the word.
const (
	maxScriptBytes = 512 << 10
	maxScriptLines = 1 << 15
	maxWordBytes   = 8 << 10 // of the #CARMA lines, as directive.MaxWordBytes
)

// KeyOf returns the key; 0, of which nothing is known, for a script beyond the limits. The key leaves
// out what does not change the memory of a job: comments and #SBATCH lines, empty lines, and of
// #CARMA lines what the user says about sharing and about the end of the job's time. A #CARMA line
// behind the first command is a comment. Nothing is known of a job without a script, as of salloc,
// and without a name.
func KeyOf(a Ask) Key {
	if len(a.Script) > maxScriptBytes || bytes.Count(a.Script, newline) > maxScriptLines {
		return 0
	}
	if a.Name == "" && len(a.Script) == 0 {
		return 0
	}
	h := sha256.New()
	var numbers [64]byte
	head := numbers[:0]
	for _, n := range [...]int64{int64(a.UID), int64(a.GPUs), a.FullMiB} {
		head = append(strconv.AppendInt(head, n, 10), 0)
	}
	if a.Name != "" {
		h.Write(append(append(head, "job="...), a.Name...))
		if a.Vars != "" {
			h.Write([]byte("\x00vars=" + a.Vars))
		}
		return sumOf(h)
	}
	h.Write(append(append(head, a.Args...), 0))
	if a.Vars != "" {
		h.Write([]byte("vars=" + a.Vars + "\x00")) // a script has no NUL
	}
	body := make([]byte, 0, 4<<10) // what is hashed next: a call costs as much as many bytes
	words := directive([]byte(a.Keys))
	inBody, wordBytes := false, len(a.Keys)
	for rest := a.Script; len(rest) > 0; {
		var line []byte
		line, rest, _ = bytes.Cut(rest, newline)
		line = bytes.TrimRight(line, " \t\r")
		if len(line) == 0 {
			continue
		}
		if line[0] == '#' && !bytes.HasPrefix(line, []byte("#CARMA|")) {
			if after, ok := bytes.CutPrefix(line, []byte("#CARMA")); ok && !inBody {
				if wordBytes += len(after); wordBytes > maxWordBytes {
					return 0
				}
				words = append(words, directive(after)...)
			}
			continue
		}
		inBody = inBody || isCommand(line)
		if len(body)+len(line) >= cap(body) {
			h.Write(body)
			body = body[:0]
		}
		if len(line) >= cap(body) {
			h.Write(line)
			line = nil
		}
		body = append(append(body, line...), '\n')
	}
	h.Write(body)
	slices.Sort(words)
	list := append(numbers[:0], '[')
	for i, word := range words {
		if i > 0 {
			list = append(list, ' ')
		}
		list = strconv.AppendQuote(list, word)
	}
	h.Write(append(list, ']'))
	return sumOf(h)
}

func sumOf(h hash.Hash) Key {
	var sum [sha256.Size]byte
	return Key(binary.BigEndian.Uint64(h.Sum(sum[:0])))
}

var newline = []byte{'\n'}

// isCommand says whether a line ends the leading comment block, as directive.Classify does.
func isCommand(line []byte) bool {
	line = bytes.TrimLeft(line, " \t\v\f\r")
	return len(line) > 0 && line[0] != '#'
}

// directive returns the words of the text behind #CARMA that count.
func directive(after []byte) (kept []string) {
	for word := range strings.FieldsSeq(string(after)) {
		if word[0] == '#' {
			break
		}
		switch key, _, _ := strings.Cut(word, "="); key {
		case "on", "off", "job", "vars", "mem", "policy", "smact", "slowdown", "signal", "requeue":
		default:
			kept = append(kept, word)
		}
	}
	return kept
}
