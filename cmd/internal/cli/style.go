// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"carma/db/texttable"
)

// StyleOf returns the style for output to f: colours on a terminal whose user
// wants them (no-color.org), letters beyond ASCII where the locale has them.
func StyleOf(f *os.File, ascii bool) texttable.Style {
	return texttable.Style{
		Colour: Terminal(f) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		ASCII:  ascii || !utf8Locale(),
	}
}

// Terminal tells whether f is one.
func Terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// utf8Locale looks where setlocale(3) does.
func utf8Locale() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToUpper(v)
			return strings.Contains(v, "UTF-8") || strings.Contains(v, "UTF8")
		}
	}
	return false
}
