// SPDX-License-Identifier: Apache-2.0

package figure

// MemorySource says how the memory of a job was measured.
type MemorySource string

// The sources. NVML tells the memory of each process, of MPS clients from Volta
// on. Where NVML does not (some containers, MIG), the memory of the GPU while the
// job held the GPU is taken in its place, less what is known of the others.
const (
	MemoryProcess MemorySource = "process"
	MemoryMPS     MemorySource = "mps"
	MemoryWindow  MemorySource = "window"
)

// Figures is what a job did on one GPU while it held the GPU.
type Figures struct {
	PeakMiB   int64        `json:"peak"` // 0: not known
	PeakFrom  MemorySource `json:"by"`
	MeanMiB   int64        `json:"mean"` // while its processes were there; 0: not known
	SMActPct  Measured     `json:"act"`  // mean of its own
	SMActMax  Measured     `json:"max"`
	SMActFrom Source       `json:"of"`
	EnergyJ   Measured     `json:"j"`             // its share
	IdleJ     Measured     `json:"idle"`          // of the share, the idle floor
	LeaseS    float64      `json:"s"`             // time for which the job held the GPU, as far as measured
	HeldS     float64      `json:"held"`          // the same, divided by the holders at the time
	SharedS   float64      `json:"shared"`        // of LeaseS, with other holders
	AloneS    Measured     `json:"alone"`         // time that the same work takes alone
	LawS      float64      `json:"law,omitempty"` // the same, as the law of interference expects; 0: not known
}

// NoFigures are the figures of a job that was never measured.
func NoFigures() Figures {
	return Figures{SMActPct: Unknown, SMActMax: Unknown, SMActFrom: SourceNone, EnergyJ: Unknown, IdleJ: Unknown,
		AloneS: Unknown}
}

// Quality says how a figure of a job was got.
type Quality string

// The qualities.
const (
	Exact       Quality = "exact"   // its own
	Shared      Quality = "shared"  // its part, by rule, of what several did
	QualityNone Quality = "unknown" // not measured
)

// leaseCovered is the part of the lease that a figure must cover to be one.
const leaseCovered = 0.9

// And is the quality of a figure that is made of two.
func (q Quality) And(o Quality) Quality {
	switch {
	case q == QualityNone || o == QualityNone:
		return QualityNone
	case q == Shared || o == Shared:
		return Shared
	}
	return Exact
}

// Covers tells whether measuring for seconds of the lease makes a figure of the
// lease.
func (f Figures) Covers(seconds float64) bool {
	return seconds > 0 && seconds >= leaseCovered*f.LeaseS
}

// PeakQuality says how PeakMiB was got.
func (f Figures) PeakQuality() Quality {
	switch {
	case f.PeakMiB == 0:
		return QualityNone
	case f.PeakFrom == MemoryWindow && f.SharedS > 0:
		return Shared
	}
	return Exact
}

// EnergyQuality says how EnergyJ was got.
func (f Figures) EnergyQuality() Quality { return f.split(f.EnergyJ) }

// SMActQuality says how SMActPct was got.
func (f Figures) SMActQuality() Quality { return f.split(f.SMActPct) }

func (f Figures) split(m Measured) Quality {
	switch {
	case !m.Known():
		return QualityNone
	case f.SharedS > 0:
		return Shared
	}
	return Exact
}
