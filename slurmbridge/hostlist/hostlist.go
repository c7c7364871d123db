// SPDX-License-Identifier: Apache-2.0

// Package hostlist reads Slurm's node lists: "gpu[03-05,9],login".
package hostlist

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// most bounds how many names a list may stand for: Slurm's own limit is
// MAX_SLURM_NODES, 65533.
const most = 65533

// Expand returns the names that list stands for, in order.
func Expand(list string) ([]string, error) {
	var names []string
	for _, word := range Split(list) {
		expanded, err := expand([]string{""}, word)
		if err != nil {
			return nil, fmt.Errorf("node list %q: %w", shorten(list), err)
		}
		if names = append(names, expanded...); len(names) > most {
			return nil, fmt.Errorf("node list %q: more than %d nodes", shorten(list), most)
		}
	}
	return names, nil
}

// First returns the first name; empty for a list that cannot be read.
func First(list string) string {
	if words := Split(list); len(words) > 0 {
		if i := strings.IndexByte(words[0], '['); i < 0 {
			return words[0]
		}
		if names, err := expand([]string{""}, words[0]); err == nil && len(names) > 0 {
			return names[0]
		}
	}
	return ""
}

// Contains tells whether name is one of list.
func Contains(list, name string) bool {
	names, err := Expand(list)
	if err != nil {
		return false
	}
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

// Same tells whether two lists stand for the same nodes, in any order.
func Same(a, b string) bool {
	x, errX := Expand(a)
	y, errY := Expand(b)
	slices.Sort(x)
	slices.Sort(y)
	return errX == nil && errY == nil && slices.Equal(slices.Compact(x), slices.Compact(y))
}

// Split returns the words of a list, between commas outside of brackets: "gpu[03-05,9]" and "login".
func Split(list string) []string {
	var words []string
	depth, start := 0, 0
	for i := 0; i <= len(list); i++ {
		switch {
		case i == len(list) || list[i] == ',' && depth == 0:
			if w := strings.TrimSpace(list[start:i]); w != "" {
				words = append(words, w)
			}
			start = i + 1
		case list[i] == '[':
			depth++
		case list[i] == ']' && depth > 0:
			depth--
		}
	}
	return words
}

// expand appends what word stands for to each prefix. Slurm allows several
// brackets: "r[1-2]n[1-4]".
func expand(prefixes []string, word string) ([]string, error) {
	for {
		open := strings.IndexByte(word, '[')
		if open < 0 {
			return with(prefixes, []string{word})
		}
		end := strings.IndexByte(word[open:], ']')
		if end < 0 {
			return nil, fmt.Errorf("no ] in %q", shorten(word))
		}
		numbers, err := ranges(word[open+1 : open+end])
		if err != nil {
			return nil, err
		}
		for i := range numbers {
			numbers[i] = word[:open] + numbers[i]
		}
		if prefixes, err = with(prefixes, numbers); err != nil {
			return nil, err
		}
		if word = word[open+end+1:]; word == "" {
			return prefixes, nil
		}
	}
}

func with(prefixes, words []string) ([]string, error) {
	if len(prefixes)*len(words) > most {
		return nil, fmt.Errorf("more than %d nodes", most)
	}
	var all []string
	for _, p := range prefixes {
		for _, w := range words {
			all = append(all, p+w)
		}
	}
	return all, nil
}

// ranges reads "03-05,9"; leading zeros set the width.
func ranges(text string) ([]string, error) {
	var numbers []string
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err := strconv.ParseUint(from, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a range", shorten(part))
		}
		b, err := strconv.ParseUint(to, 10, 32)
		if err != nil || b < a || b-a >= most {
			return nil, fmt.Errorf("%q is not a range", shorten(part))
		}
		for n := a; n <= b; n++ {
			numbers = append(numbers, fmt.Sprintf("%0*d", len(from), n))
		}
		if len(numbers) > most {
			return nil, fmt.Errorf("more than %d nodes", most)
		}
	}
	return numbers, nil
}

func shorten(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}
