// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"

	"carma/contrib/completions"
)

func TestCompletions(t *testing.T) {
	f := (&options{}).flags(io.Discard)
	completions.Test(t, "carma-report.1", f, []string{"summary", "gpus", "history"}, *update)
}
