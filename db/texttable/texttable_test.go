// SPDX-License-Identifier: Apache-2.0

package texttable

import (
	"strings"
	"testing"
)

// Words stand to the left, figures to the right, and no line ends in blanks.
func TestWriteTo(t *testing.T) {
	table := Table{Columns("NAME", ">JOBS", ""), [][]string{{"ä", "7", ""}, {"longer", "12345", "x"}}}
	var got strings.Builder
	if _, err := table.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	want := "NAME     JOBS\nä           7\nlonger  12345  x\n"
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
