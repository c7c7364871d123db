// SPDX-License-Identifier: Apache-2.0

// Command bench prints how far the estimator and the published ones are from
// measured training runs. The data are not part of the repository: they are
// read from $CARMA_DATA/memory, by default data/memory, or from the folder given as argument.
// Traces of timm's models are read from its timm_traces, or from the second argument.
//
// It exits 3 where the data are absent.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func main() {
	measured := flag.String("measured", "",
		"write the classes that were measured, and the margins, to `FILE` (estimator/measured.go)")
	flag.Parse()
	dir := filepath.Join(cmp.Or(os.Getenv("CARMA_DATA"), "data"), "memory")
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "bench: no data at %s: give the folder that holds real_measured.csv\n", dir)
		os.Exit(3)
	}
	traces := filepath.Join(dir, "timm_traces")
	if flag.NArg() > 1 {
		traces = flag.Arg(1)
	}
	if err := report(os.Stdout, dir, traces, *measured); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}
