// SPDX-License-Identifier: Apache-2.0

package jobenv

import (
	"path/filepath"
	"strconv"
	"strings"
)

// Output names the values that Slurm puts into file name patterns of --output
// and --error (sbatch(1), "filename pattern").
type Output struct {
	JobID      uint32
	ArrayJobID uint32 // 0: no array
	ArrayTask  string
	Name       string
	User       string
	Node       string // what %N stands for
	WorkDir    string
	SLUID      string // from 25.11 on; empty before
	Restart    uint32
}

// Path returns the file of the batch step's stderr: the pattern of --error,
// else of --output, else Slurm's default.
func (o Output) Path(stdErr, stdOut string) string {
	pattern := stdErr
	if pattern == "" {
		pattern = stdOut
	}
	if pattern == "" {
		pattern = "slurm-%j.out"
		if o.ArrayJobID != 0 {
			pattern = "slurm-%A_%a.out"
		}
	}
	path := o.expand(pattern)
	if !filepath.IsAbs(path) {
		path = filepath.Join(o.WorkDir, path)
	}
	return path
}

// unescape drops backslashes, of a pair the first.
var unescape = strings.NewReplacer(`\\`, `\`, `\`, "")

// expand replaces the % symbols. A backslash anywhere means that the name is
// taken as it stands, without its backslashes.
func (o Output) expand(pattern string) string {
	if strings.Contains(pattern, `\`) {
		return unescape.Replace(pattern)
	}
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			b.WriteByte(pattern[i])
			continue
		}
		j := i + 1
		for j < len(pattern) && pattern[j] >= '0' && pattern[j] <= '9' {
			j++
		}
		if j == len(pattern) {
			b.WriteString(pattern[i:])
			break
		}
		value, numeric, ok := o.symbol(pattern[j])
		if !ok {
			b.WriteString(pattern[i : j+1])
		} else {
			// A width pads numbers with zeros and is ignored for words.
			if width, err := strconv.Atoi(pattern[i+1 : j]); err == nil && numeric {
				value = strings.Repeat("0", max(min(width, 10)-len(value), 0)) + value
			}
			b.WriteString(value)
		}
		i = j
	}
	return b.String()
}

func (o Output) symbol(c byte) (value string, numeric, ok bool) {
	id := strconv.FormatUint(uint64(o.JobID), 10)
	switch c {
	case '%':
		return "%", false, true
	case 'A':
		if o.ArrayJobID != 0 {
			id = strconv.FormatUint(uint64(o.ArrayJobID), 10)
		}
		return id, true, true
	case 'a':
		if o.ArrayJobID == 0 {
			return "4294967294", true, true // NO_VAL, as printed by Slurm
		}
		return o.ArrayTask, true, true
	case 'b': // array task id modulo 10
		task, _ := strconv.Atoi(o.ArrayTask)
		return strconv.Itoa(task % 10), true, true
	case 'j':
		return id, true, true
	case 'J': // job.step; the batch step has no number there
		return id, true, true
	case 'N':
		return o.Node, false, true
	case 'n', 't':
		return "0", true, true
	case 's':
		return "batch", false, true
	case 'r':
		return strconv.FormatUint(uint64(o.Restart), 10), true, o.SLUID != ""
	case 'S':
		return o.SLUID, false, o.SLUID != ""
	case 'u':
		return o.User, false, true
	case 'x':
		return o.Name, false, true
	}
	return "", false, false
}
