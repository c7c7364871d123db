// SPDX-License-Identifier: Apache-2.0

// Package version says which CARMA this is.
package version

import (
	"runtime/debug"
	"strings"
)

// text is set by the Makefile: -ldflags "-X carma/slurmbridge/version.text=0.1.0".
var text string

// String returns the version: that of the release, with the commit behind a plus for a
// build from git; what the go command knows for a build without the Makefile.
func String() string {
	if text != "" {
		return text
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "unknown"
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}
