// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"carma/cmd/internal/cli"
)

// The completions that are shipped are those of the flags.
func TestCompletions(t *testing.T) {
	f := flags(&env{})
	for _, shell := range cli.Shells {
		var got bytes.Buffer
		cli.Completion(&got, shell, "carma-node", f, slices.Sorted(maps.Keys(commands)))
		path := filepath.Join("..", "..", "contrib", "completions", "carma-node."+shell)
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
