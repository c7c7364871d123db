// SPDX-License-Identifier: Apache-2.0

package version

import "testing"

func TestString(t *testing.T) {
	defer func(old string) { text = old }(text)
	text = ""
	if String() == "" {
		t.Error("no word for a build without the Makefile")
	}
	if text = "0.1.0+g1234567"; String() != text {
		t.Errorf("got %q", String())
	}
}
