// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"fmt"

	"carma/estimator/method"
)

// methods are the ways to estimate a summary, by name.
var methods = map[string]func(Spec) (Estimate, error){
	method.Analytic: Analytic,
}

// ByMethod estimates from a summary by the name of a method.
func ByMethod(name string, s Spec) (Estimate, error) {
	estimate, ok := methods[name]
	if !ok {
		return Estimate{}, fmt.Errorf("no method %q to estimate a summary", name)
	}
	return estimate(s)
}
