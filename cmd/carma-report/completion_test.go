// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"carma/cmd/internal/cli"
)

// The completions that are shipped are those of the flags.
func TestCompletions(t *testing.T) {
	f := (&options{}).flags(io.Discard)
	for _, shell := range cli.Shells {
		var got bytes.Buffer
		cli.Completion(&got, shell, "carma-report", f, []string{"summary", "gpus", "history"})
		path := filepath.Join("..", "..", "contrib", "completions", "carma-report."+shell)
		if *update {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(path); err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("%s is not of these flags (%v); run the test with -update", path, err)
		}
	}
}
