// SPDX-License-Identifier: Apache-2.0

//go:build mps

package simgpu_test

import (
	"os"
	"path/filepath"
	"testing"
)

// The real daemons, which fetch-mps.sh has fetched. Their names in MPS_REAL are 535 and 550.
func TestMPSContractReal(t *testing.T) {
	dir := os.Getenv("MPS_REAL")
	if dir == "" {
		t.Skip("no real MPS daemons: contrib/simgpu/fetch-mps.sh could not fetch them")
	}
	for version, name := range map[int]string{535: "535", 550: "550"} {
		t.Run(name, func(t *testing.T) {
			contract(t, mpsDaemon{version, filepath.Join(dir, name, "usr/bin/nvidia-cuda-mps-control"), nil})
		})
	}
}
