// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"carma/estimator/method"
)

// Every name has its method, and every method its name.
func TestMethods(t *testing.T) {
	names := slices.Sorted(slices.Values(method.Names()))
	if have := slices.Sorted(maps.Keys(methods)); !slices.Equal(have, names) {
		t.Errorf("methods %v, names %v", have, names)
	}
	if !slices.Contains(names, method.Default) || slices.Contains(names, method.None) {
		t.Errorf("names %v", names)
	}
	_, err := ByMethod("guess", Spec{})
	if err == nil || !strings.Contains(err.Error(), `no method "guess"`) {
		t.Error(err)
	}
}
