// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"carma/cmd/internal/cli"
)

// The completions and the manual page that are shipped are of these flags.
func TestCompletions(t *testing.T) {
	f := (&options{}).flags(io.Discard)
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "man", "carma-report.1"))
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
