// SPDX-License-Identifier: Apache-2.0

// Package method names where an estimate comes from. What reads these names need not link
// the estimator.
package method

// Methods by which a model's summary is estimated, as submit.estimator and carma-estimate
// --method have them.
const Analytic = "analytic"

// Default estimates unless a flag or carma.toml names another.
const Default = Analytic

// Names lists the methods.
func Names() []string { return []string{Analytic} }

// What a job's record names beside them.
const (
	User    = "user"    // #CARMA mem=
	History = "history" // earlier runs of the same job
	None    = "none"    // no estimate; submit.estimator's word for estimating no summary, too
)
