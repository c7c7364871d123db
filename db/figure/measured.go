// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"encoding/json"
	"fmt"
	"math"
)

// Measured is a figure that may not have been measured: NaN, null in JSON.
type Measured float64

// Unknown is a figure that was not measured.
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

// Scan reads a column of SQLite, which keeps NaN as NULL.
func (m *Measured) Scan(value any) error {
	switch v := value.(type) {
	case nil:
		*m = Unknown
	case int64:
		*m = Measured(v)
	case float64:
		*m = Measured(v)
	default:
		return fmt.Errorf("%v is no figure", value)
	}
	return nil
}

// UnmarshalJSON reads null as NaN.
func (m *Measured) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		*m = Measured(math.NaN())
		return nil
	}
	return json.Unmarshal(text, (*float64)(m))
}
