// SPDX-License-Identifier: Apache-2.0

// Package policy names the placement policies. carma.toml, #CARMA lines and the simulator
// take these names; package choose says what each does.
package policy

// Name is that of a policy.
type Name string

// The policies (thesis 6.2.2, the fits of its oracle runs, and our own).
const (
	Carma Name = "carma" // least utilised GPU, and never time-sliced

	MAGM       Name = "magm"      // most available GPU memory
	LUG        Name = "lug"       // least utilised GPU
	MUG        Name = "mug"       // most utilised GPU: fills GPUs before it opens another
	RoundRobin Name = "rr"        // the next ones after those given last
	Exclusive  Name = "exclusive" // idle GPUs only, in order
	FirstFit   Name = "first-fit" // in order
	BestFit    Name = "best-fit"  // least memory left over
)

var all = []Name{Carma, MAGM, LUG, MUG, RoundRobin, Exclusive, FirstFit, BestFit}

// Names lists them, as placement.policy takes them.
func Names() []string { return names(func(Name) bool { return true }) }

// Placements lists those that a job may ask for by name. Exclusive is a word of its own
// there: it books a whole GPU.
func Placements() []string { return names(func(n Name) bool { return n != Exclusive }) }

func names(which func(Name) bool) (list []string) {
	for _, n := range all {
		if which(n) {
			list = append(list, string(n))
		}
	}
	return list
}
