// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"carma/contrib/completions"
)

func TestCompletions(t *testing.T) {
	f := (&program{}).flags(&options{}, make([]string, len(keyFlags)), new(bool))
	completions.Test(t, "carma-estimate.1", f, nil, *update)
}
