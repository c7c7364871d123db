// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"slices"
	"testing"

	"carma/gres/choose"
	"carma/gres/window"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
)

// The words that carma.toml and #CARMA lines take are those that the packages
// behind them know. Reading a file must not need those packages, so the words
// stand twice.
func TestWords(t *testing.T) {
	if want := choose.Policies(); !slices.Equal(config.Policies, want) {
		t.Errorf("placement.policy takes %v, package choose knows %v", config.Policies, want)
	}
	if want := window.Statistics(); !slices.Equal(config.Statistics, want) {
		t.Errorf("smact.statistic takes %v, package window knows %v", config.Statistics, want)
	}
	// policy=exclusive is a word of its own: it books a whole GPU.
	want := slices.DeleteFunc(choose.Policies(), func(p string) bool { return p == string(choose.Exclusive) })
	if !slices.Equal(directive.Placements, want) {
		t.Errorf("#CARMA policy= takes %v, package choose knows %v", directive.Placements, want)
	}
}
