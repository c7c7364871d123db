// SPDX-License-Identifier: Apache-2.0

package frameworks

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
)

// Ways to set CUDA_VISIBLE_DEVICES: in a shell, in csh, and in Python. The last group is the value.
var setsDevices = []*regexp.Regexp{
	regexp.MustCompile(`(?:^|[\s;&|(])CUDA_VISIBLE_DEVICES=([^\s;&|)]*)`),
	regexp.MustCompile(`(?:^|[\s;&|(])setenv\s+CUDA_VISIBLE_DEVICES\s+([^\s;&|)]+)`),
	regexp.MustCompile(`environ\[['"]CUDA_VISIBLE_DEVICES['"]\]\s*=\s*([^=\s].*)`),
	regexp.MustCompile(`putenv\(\s*['"]CUDA_VISIBLE_DEVICES['"]\s*,\s*(.*)\)`),
}

// noDevice are values by which a program gets no GPU, which is right in any job.
var noDevice = []string{"", "-1", "none", "void", "NoDevFiles"}

// SetsDevices returns the first line, from 1, by which a script sets CUDA_VISIBLE_DEVICES to GPUs of its own choice;
// 0: none. A value that keeps what CARMA has set, or that is no GPU, is no choice.
func SetsDevices(script []byte) int {
	n := 0
	for line := range bytes.Lines(script) {
		n++
		if choosesDevices(strings.TrimSpace(string(line[:min(len(line), maxLine)]))) {
			return n
		}
	}
	return 0
}

func choosesDevices(line string) bool {
	if strings.HasPrefix(line, "#") || !strings.Contains(line, "CUDA_VISIBLE_DEVICES") {
		return false
	}
	for _, way := range setsDevices {
		for _, m := range way.FindAllStringSubmatch(line, -1) {
			value := strings.Trim(m[1], `'" `)
			if !slices.Contains(noDevice, value) && !keepsDevices(value) {
				return true
			}
		}
	}
	return false
}

// keepsDevices tells whether a value is made of the GPUs that CARMA names.
func keepsDevices(value string) bool {
	return strings.Contains(value, "CUDA_VISIBLE_DEVICES") || strings.Contains(value, "CARMA_GPU_UUIDS")
}
