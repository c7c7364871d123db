// SPDX-License-Identifier: Apache-2.0

// Package method names the methods by which a model's summary is estimated. What reads
// these names need not link the estimator.
package method

// The methods, as submit.estimator and carma-estimate --method have them.
const Analytic = "analytic"

// Default estimates unless a flag or carma.toml names another.
const Default = Analytic

// None is submit.estimator's word for estimating no summary.
const None = "none"

// Names lists the methods.
func Names() []string { return []string{Analytic} }
