// SPDX-License-Identifier: Apache-2.0

package accesslist

import (
	"encoding/hex"
	"testing"
)

// The form is the kernel's: user::rw-, user:1:rw-, user:258:rw-, group::---, mask::rw-,
// other::---.
func TestList(t *testing.T) {
	want := "02000000" + "01000600ffffffff" + "0200060001000000" + "0200060002010000" +
		"04000000ffffffff" + "10000600ffffffff" + "20000000ffffffff"
	if got := hex.EncodeToString(list(Read|Write, Read|Write, []uint32{258, 1, 258})); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
