// SPDX-License-Identifier: Apache-2.0

package script

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"carma/estimator/method"
	"carma/slurmbridge/directive"
)

// Word makes a word of a #CARMA line.
func Word(key, value string) (string, error) {
	if f := strings.Fields(value); value != "" && (len(f) != 1 || f[0] != value) {
		return "", fmt.Errorf("a value has no blanks: %q", value)
	}
	return key + "=" + value, nil
}

// keyOf is the key of a word.
func keyOf(word string) string {
	key, _, _ := strings.Cut(word, "=")
	return key
}

// DirectiveOf is the directive of a #CARMA line of words, with a summary.
func DirectiveOf(words []string, summary []byte) (directive.Directive, error) {
	d, err := directive.Parse([]byte("#CARMA " + strings.Join(words, " ") + "\n"))
	var e *directive.Error
	if errors.As(err, &e) && e.Key != "" {
		err = fmt.Errorf("%s: %s", e.Key, e.Reason) // there is no line to name
	}
	d.Summary = summary
	return d, err
}

// KnownMethod tells whether a method estimates from a summary.
func KnownMethod(name string) error {
	if !slices.Contains(method.Names(), name) {
		return errors.New("not one of " + strings.Join(method.Names(), ", "))
	}
	return nil
}

// Unwrap takes a file of #CARMA lines apart, as printed by
// contrib/summary/carma_summary.py, into the words and the summary. Any other
// text is a summary.
func Unwrap(text []byte) (words []string, summary []byte) {
	if !bytes.HasPrefix(text, []byte("#CARMA")) {
		return nil, text
	}
	for line := range bytes.Lines(text) {
		kind, after := directive.Classify(bytes.TrimSuffix(line, []byte{'\n'}))
		switch kind {
		case directive.Keys:
			for w := range wordsOf(string(after)) {
				words = append(words, w.text)
			}
		case directive.Summary:
			summary = append(append(summary, after...), '\n')
		}
	}
	return words, summary
}

// Without leaves out of words those with the key of one in better.
func Without(words, better []string) []string {
	return slices.DeleteFunc(slices.Clone(words), func(w string) bool {
		return slices.ContainsFunc(better, func(b string) bool { return keyOf(b) == keyOf(w) })
	})
}
