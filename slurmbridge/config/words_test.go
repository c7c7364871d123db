// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"carma/estimator/method"
	"carma/gres/window"
	"carma/slurmbridge/config"
	"carma/slurmbridge/policy"
)

// The statistics that carma.toml takes are those that package window knows. Reading a file
// must not need that package, so the words stand twice.
func TestWords(t *testing.T) {
	if want := window.Statistics(); !slices.Equal(config.Statistics, want) {
		t.Errorf("smact.statistic takes %v, package window knows %v", config.Statistics, want)
	}
}

// Every policy and every method stands in the example, of which the manual page is made.
func TestWordsInExample(t *testing.T) {
	text, err := os.ReadFile("../../contrib/slurm/carma.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(policy.Names(), method.Names()...) {
		if !strings.Contains(string(text), `"`+name+`"`) {
			t.Errorf("%q is not in contrib/slurm/carma.toml", name)
		}
	}
}
