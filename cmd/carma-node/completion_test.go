// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
)

// The completions and the manual page that are shipped are of these flags.
func TestCompletions(t *testing.T) {
	f := flags(&env{})
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "man", "carma-node.8"))
	if err != nil {
		t.Fatal(err)
	}
	f.VisitAll(func(o *pflag.Flag) {
		if !strings.Contains(strings.ReplaceAll(string(page), `\-`, "-"), "--"+o.Name) {
			t.Errorf("--%s is not in the manual page; run make man", o.Name)
		}
	})
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
