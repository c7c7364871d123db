// SPDX-License-Identifier: Apache-2.0

package lease

// FailPoint is called at the places at which contrib/bench/placement kills hooks. A
// carma-node built with the tag failpoints dies there (cmd/carma-node).
var FailPoint = func(place string) {}
