// SPDX-License-Identifier: Apache-2.0

package frameworks

import (
	"strings"
	"testing"
)

func TestSetsDevices(t *testing.T) {
	for line, want := range map[string]bool{
		"export CUDA_VISIBLE_DEVICES=0":                          true,
		"CUDA_VISIBLE_DEVICES=0,1 python train.py":               true,
		"cd x && CUDA_VISIBLE_DEVICES=$SLURM_LOCALID ./run":      true,
		"env CUDA_VISIBLE_DEVICES='1' python train.py":           true,
		"setenv CUDA_VISIBLE_DEVICES 1":                          true,
		"os.environ['CUDA_VISIBLE_DEVICES'] = '0'":               true,
		`os.environ["CUDA_VISIBLE_DEVICES"]=str(rank)`:           true,
		`os.putenv("CUDA_VISIBLE_DEVICES", "2")`:                 true,
		"# export CUDA_VISIBLE_DEVICES=0":                        false,
		"export CUDA_VISIBLE_DEVICES=":                           false,
		`CUDA_VISIBLE_DEVICES="" python plot.py`:                 false,
		"CUDA_VISIBLE_DEVICES=-1 python plot.py":                 false,
		"os.environ['CUDA_VISIBLE_DEVICES'] = ''":                false,
		"echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES":        false,
		"export CUDA_VISIBLE_DEVICES=$CARMA_GPU_UUIDS":           false,
		"export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%,*}": false,
		"echo $CUDA_VISIBLE_DEVICES":                             false,
		"if os.environ['CUDA_VISIBLE_DEVICES'] == '0':":          false,
		"NVIDIA_CUDA_VISIBLE_DEVICES=0":                          false,
		"":                                                       false,
	} {
		n := 0
		if want {
			n = 2
		}
		if got := SetsDevices([]byte("#!/bin/sh\n" + line + "\ntrue\n")); got != n {
			t.Errorf("%q: line %d, want %d", line, got, n)
		}
	}
}

func FuzzSetsDevices(f *testing.F) {
	f.Add([]byte("#!/bin/sh\nexport CUDA_VISIBLE_DEVICES=0\n"))
	f.Fuzz(func(t *testing.T, script []byte) {
		if n := SetsDevices(script); n < 0 || n > strings.Count(string(script), "\n")+1 {
			t.Fatal(n)
		}
	})
}
