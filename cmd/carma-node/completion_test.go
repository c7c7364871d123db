// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"testing"

	"carma/contrib/completions"
)

func TestCompletions(t *testing.T) {
	completions.Test(t, "carma-node.8", flags(&env{}), slices.Sorted(maps.Keys(commands)), *update)
}
