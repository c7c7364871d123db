// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"encoding/json"
	"math"
)

// Measured is a figure that may not have been measured: NaN, null in JSON.
type Measured float64

// Unknown is what was not measured.
var Unknown = Measured(math.NaN())

// Known tells whether the figure was measured.
func (m Measured) Known() bool { return m == m }

// MarshalJSON writes NaN and infinities, which JSON does not have, as null.
func (m Measured) MarshalJSON() ([]byte, error) {
	if f := float64(m); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return json.Marshal(f)
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads null as NaN.
func (m *Measured) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*m = Measured(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(m))
}
