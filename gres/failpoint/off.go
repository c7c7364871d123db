// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

// Package failpoint names the places at which `make bench-placement` kills a
// hook. It does nothing unless built with the tag "failpoints".
package failpoint

// Here is a place to die at.
func Here(string) {}
