// SPDX-License-Identifier: Apache-2.0

package figure

// Source says how SM activity was measured.
type Source string

// The sources, best first. Utilisation counts the time in which any kernel ran,
// so utilisation overstates SMACT (thesis 3.3.2): readings of it are coarse.
const (
	SourceGPM         Source = "gpm"  // NVML GPM, Hopper and later
	SourceDCGM        Source = "dcgm" // dcgmi dmon, Volta and later
	SourceUtilisation Source = "nvml-utilisation"
	SourceNone        Source = "none"
)

// Coarse tells whether readings of the source over-state SM activity.
func (s Source) Coarse() bool { return s == SourceUtilisation }
