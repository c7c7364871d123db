// SPDX-License-Identifier: Apache-2.0

package extra

import (
	"strconv"
	"strings"
)

// GPUs is how many GPUs a node has by the counts in its Extra; 0: it has none.
func GPUs(text string) (most int) {
	counts, err := Counts(text)
	if err != nil {
		return 0
	}
	for key := range counts {
		if k, err := strconv.Atoi(strings.TrimPrefix(Anybodys(key), prefix)); err == nil {
			most = max(most, k)
		}
	}
	return most
}

// Anybodys is the Key of a UserKey; any other key is its own.
func Anybodys(key string) string {
	any, _, _ := strings.Cut(key, "u")
	return any
}
