// SPDX-License-Identifier: Apache-2.0

//go:build integration && abuse

package devcluster_test

// long tells whether attacks last as long as make test-abuse has them.
const long = true
