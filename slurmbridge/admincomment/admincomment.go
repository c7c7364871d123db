// SPDX-License-Identifier: Apache-2.0

// Package admincomment holds what all tokens in a job's AdminComment have in
// common. They are for people, and are never read back as truth: other tools
// write there too.
package admincomment

import "strings"

// most is the length of a text in a token.
const most = 100

// Plain makes text fit into a token: short printable ASCII without quotes. It may
// come from a user's script or output.
func Plain(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '"' || r == '\\':
			return '\''
		case r < ' ' || r > '~':
			return '?'
		}
		return r
	}, text)
	if len(text) > most {
		text = text[:most-3] + "..."
	}
	return text
}
