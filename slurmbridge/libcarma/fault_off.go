// SPDX-License-Identifier: Apache-2.0

//go:build !carmafault

package main

// fault does nothing in the library that is shipped; see fault_on.go.
func fault([]byte) {}
