// SPDX-License-Identifier: Apache-2.0

//go:build !carmafault

package main

// fault does nothing in the shipped library; see fault_on.go.
func fault([]byte) {}
