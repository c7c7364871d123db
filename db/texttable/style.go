// SPDX-License-Identifier: Apache-2.0

package texttable

// Style is how text for people looks.
type Style struct {
	Colour bool
	ASCII  bool
}

// Colours, as parameters of ECMA-48's SGR.
const (
	Bold   = "1"
	Dim    = "2"
	Red    = "31"
	Green  = "32"
	Yellow = "33"
	Cyan   = "36"
)

// Paint colours text.
func (s Style) Paint(colour, text string) string {
	if !s.Colour || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}
