// SPDX-License-Identifier: Apache-2.0

// Package extra reads and writes Slurm's Extra fields: the offer of a node's GPUs to a job stands
// in the node's Extra, a flat JSON object, and a job's demand on a node in the job's --extra, a
// constraint on the keys of that object. slurmctld compares both with
// SchedulerParameters=extra_constraints (src/common/extra_constraints.c). From 24.11 on srun and
// salloc wait for a constraint, too; below that CARMA publishes nothing.
package extra

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// prefix begins each of CARMA's keys.
const prefix = "carma"

// Words of CARMA's in a node's Extra; the steward says in package steward what they mean.
const (
	Hold  = prefix + "hold"
	Vain  = prefix + "vain"
	Waits = prefix + "waits"
	Vains = prefix + "vains"
)

// All is how many GPUs a node has, where all of them are there and well, else 0: a job for whole
// nodes asks for so many, and is planned by the GRES that it consumes.
const All = prefix + "all"

// Key is the count of MiB that each of k GPUs of a node can give a job of anybody at once.
func Key(k int) string { return prefix + strconv.Itoa(k) }

// UserKey is Key for the jobs of one user, who has a tag (Tags).
func UserKey(k int, tag string) string { return Key(k) + "u" + tag }

// ErrForeign means that a node's Extra is no JSON object.
var ErrForeign = errors.New("the node's Extra is no JSON object, and CARMA does not overwrite it; " +
	"empty the field or make it an object (scontrol update NodeName=... Extra=)")

// mostObject is longer than any Extra that CARMA and a site write together.
const mostObject = 256 << 10

func object(text string) (map[string]json.RawMessage, error) {
	text = strings.TrimSpace(text)
	if text == "" || text == "(null)" || text == "N/A" {
		return map[string]json.RawMessage{}, nil
	}
	var o map[string]json.RawMessage
	if len(text) > mostObject || json.Unmarshal([]byte(text), &o) != nil || o == nil {
		return nil, fmt.Errorf("read %.40q: %w", text, ErrForeign)
	}
	return o, nil
}

func write(o map[string]json.RawMessage) (string, error) {
	if len(o) == 0 {
		return "", nil
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // what others wrote stays as they wrote it
	if err := e.Encode(o); err != nil {
		return "", fmt.Errorf("write a node's Extra: %w", err)
	}
	return strings.TrimSpace(b.String()), nil
}

// isCount tells whether a key is of a count: All, or carma and a number.
func isCount(key string) bool {
	rest, ours := strings.CutPrefix(key, prefix)
	return key == All || ours && rest != "" && rest[0] >= '0' && rest[0] <= '9'
}

// Counts are CARMA's numbers in a node's Extra, by key. A number that cannot be read is absent.
func Counts(text string) (map[string]int64, error) {
	o, err := object(text)
	if err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	for key, value := range o {
		if n, err := strconv.ParseInt(string(value), 10, 64); err == nil && isCount(key) {
			counts[key] = n
		}
	}
	return counts, nil
}

// SetCounts puts CARMA's numbers into a node's Extra in place of those that are there, and keeps
// everything else.
func SetCounts(text string, counts map[string]int64) (string, error) {
	o, err := object(text)
	if err != nil {
		return "", err
	}
	maps.DeleteFunc(o, func(key string, _ json.RawMessage) bool { return isCount(key) })
	for key, n := range counts {
		o[key] = json.RawMessage(strconv.FormatInt(n, 10))
	}
	return write(o)
}

// Word is a text of CARMA's in a node's Extra; empty: it is not there.
func Word(text, key string) string {
	if !strings.Contains(text, key) { // as of most nodes, of thousands
		return ""
	}
	o, err := object(text)
	if err != nil {
		return ""
	}
	var word string
	if json.Unmarshal(o[key], &word) != nil {
		return ""
	}
	return word
}

// SetWord puts a text into a node's Extra, or takes it out (empty), and keeps everything else.
func SetWord(text, key, word string) (string, error) {
	o, err := object(text)
	if err != nil {
		return "", err
	}
	delete(o, key)
	if word != "" {
		value, err := json.Marshal(word)
		if err != nil {
			return "", fmt.Errorf("write %s into a node's Extra: %w", key, err)
		}
		o[key] = value
	}
	return write(o)
}
