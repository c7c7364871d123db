// SPDX-License-Identifier: Apache-2.0

// Command bench prints how far the estimator and the published ones are from
// measured training runs. The data are not part of the repository: they are
// read from ../shared/data/memory, or from the folder given as argument. Traces of
// timm's models are read from its timm_traces, or from the second argument.
//
// It exits 3 where the data are absent.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	dir := "../shared/data/memory"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "bench: no data at %s: give the folder that holds real_measured.csv\n", dir)
		os.Exit(3)
	}
	traces := filepath.Join(dir, "timm_traces")
	if len(os.Args) > 2 {
		traces = os.Args[2]
	}
	if err := report(os.Stdout, dir, traces); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}
