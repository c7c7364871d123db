// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"carma/cmd/internal/cli"
)

// The completions that are shipped are those of the flags.
func TestCompletions(t *testing.T) {
	f := (&program{}).flags(&options{}, make([]string, len(keyFlags)), new(bool))
	for _, shell := range cli.Shells {
		var got bytes.Buffer
		cli.Completion(&got, shell, "carma-estimate", f, nil)
		path := filepath.Join("..", "..", "contrib", "completions", "carma-estimate."+shell)
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
