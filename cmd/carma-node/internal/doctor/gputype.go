// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strings"
)

// GPUType is a GPU's type as scripts name it, in gpu:a100:1: the model's own name without
// the maker, form and memory.
func GPUType(model string) string {
	words := strings.Fields(strings.ToLower(model))
	for len(words) > 1 && slices.Contains([]string{"nvidia", "tesla", "quadro", "geforce"}, words[0]) {
		words = words[1:]
	}
	if len(words) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(words[0], "-")
	if len(words) > 1 && slices.Contains([]string{"rtx", "gtx", "titan"}, name) { // rtx a6000, rtx 3090 ti
		name += "_" + strings.Join(words[1:], "_")
		name, _, _ = strings.Cut(name, "_generation")
	}
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return -1
	}, name)
}
