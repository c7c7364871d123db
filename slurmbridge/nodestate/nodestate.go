// SPDX-License-Identifier: Apache-2.0

// Package nodestate reads the states of nodes as Slurm's commands print them, 22.05 to
// 26.05 (src/common/slurm_protocol_defs.c): complete, as "scontrol show node" and sinfo's
// StateComplete have them, "MIXED+CLOUD+PLANNED"; and the two forms of one word and one
// sign, as sinfo's %T and %t have them, "mixed-" and "mix-". Complete alone tells all
// flags: the others tell the one that Slurm finds most telling.
package nodestate

import (
	"carma/slurmbridge/jobstate"
	"strings"
)

// Base is what a node is doing.
type Base uint8

// The bases; Unknown is also what nobody has told.
const (
	Unknown Base = iota
	Down
	Idle
	Allocated
	Error
	Mixed
	Future
	Invalid
)

// Flags are what else holds of a node.
type Flags uint32

// The flags of all releases.
const (
	Blocked         Flags = 1 << iota // by another job's topology (24.05 and later)
	Cloud                             // comes and goes
	Completing                        // a job ends there
	Drain                             // takes no new jobs
	DynamicFuture                     // a slurmd made it known
	DynamicNorm                       // so too
	External                          // has no slurmd (25.11 and later)
	InvalidReg                        // its slurmd told less than slurm.conf
	Fail                              // is to be replaced, and takes no new jobs
	Maintenance                       // in a reservation for that
	PerfCtrs                          // network counters are in use (up to 24.05)
	PowerDown                         // is to be switched off
	PowerUp                           // is to be switched on
	PoweredDown                       // is off
	PoweringDown                      // is being switched off
	PoweringUp                        // is being switched on
	RebootRequested                   // is to reboot
	RebootIssued                      // reboots
	RebootCancel                      // is not to reboot after all
	Reserved                          // in a reservation
	Resume                            // is to take jobs again
	Undrain                           // so too
	NotResponding                     // its slurmd does not answer
	Planned                           // backfill keeps it for a job
	Unlisted                          // what this program does not know
)

// State is a node's.
type State struct {
	Base
	Flags
}

var bases = map[string]Base{
	"UNKNOWN": Unknown, "UNK": Unknown, "DOWN": Down, "IDLE": Idle, "ALLOCATED": Allocated, "ALLOC": Allocated,
	"ERROR": Error, "MIXED": Mixed, "MIX": Mixed, "FUTURE": Future, "FUTR": Future, "INVALID": Invalid,
}

// flags by their words in the complete form.
var flags = map[string]Flags{
	"BLOCKED": Blocked, "CLOUD": Cloud, jobstate.Completing: Completing, "DRAIN": Drain, "DYNAMIC_FUTURE": DynamicFuture,
	"DYNAMIC_NORM": DynamicNorm, "EXTERNAL": External, "INVALID_REG": InvalidReg, "FAIL": Fail, "MAINTENANCE": Maintenance,
	"PERFCTRS": PerfCtrs, "POWER_DOWN": PowerDown, "POWER_UP": PowerUp, "POWERED_DOWN": PoweredDown,
	"POWERING_DOWN": PoweringDown, "POWERING_UP": PoweringUp, "REBOOT_REQUESTED": RebootRequested,
	"REBOOT_ISSUED": RebootIssued, "RESERVED": Reserved, "RESUME": Resume,
	"NOT_RESPONDING": NotResponding, "PLANNED": Planned,
}

// words stand for a base and flags together, in the forms of one word.
var words = map[string]State{
	"INVAL": {Unknown, InvalidReg}, "MAINT": {Idle, Maintenance}, "REBOOT": {Idle, RebootRequested},
	"BOOT":     {Idle, RebootRequested},
	"DRAINING": {Mixed, Drain}, "DRNG": {Mixed, Drain}, "DRAINED": {Idle, Drain}, "DRAIN": {Idle, Drain},
	"FAILING": {Mixed, Fail}, "FAILG": {Mixed, Fail}, "FAIL": {Idle, Fail}, "CANCEL_REBOOT": {Unknown, RebootCancel},
	"CANC_R": {Unknown, RebootCancel}, "EXT": {Unknown, External}, "EXTERNAL": {Unknown, External},
	"CLOUD":         {Unknown, Cloud},
	"REBOOT_ISSUED": {Unknown, RebootIssued}, "POWER_DOWN": {Unknown, PowerDown}, "POW_DN": {Unknown, PowerDown},
	"POWER_UP": {Unknown, PowerUp}, "POW_UP": {Unknown, PowerUp}, "POWERING_DOWN": {Unknown, PoweringDown},
	"POWRING_DN": {Unknown, PoweringDown}, "POWERED_DOWN": {Unknown, PoweredDown}, "POWERED_DN": {Unknown, PoweredDown},
	"POWERING_UP": {Unknown, PoweringUp}, "UNDRAIN": {Unknown, Undrain}, "DYNAMIC_FUTURE": {Unknown, DynamicFuture},
	"DYNAMIC_NORM": {Unknown, DynamicNorm}, jobstate.Completing: {Idle, Completing}, "COMP": {Idle, Completing},
	"RESERVED": {Idle, Reserved}, "RESV": {Idle, Reserved}, "BLOCKED": {Idle, Blocked}, "BLOCK": {Idle, Blocked},
	"PLANNED": {Idle, Planned}, "PLND": {Idle, Planned}, "PERFCTRS": {Idle, PerfCtrs}, "NPC": {Idle, PerfCtrs},
	"RESUME": {Unknown, Resume}, "RESM": {Unknown, Resume},
}

// signs stand behind the one word.
var signs = map[byte]Flags{
	'*': NotResponding, '~': PoweredDown, '#': PoweringUp, '!': PowerDown, '%': PoweringDown, '$': Maintenance,
	'@': RebootRequested, '^': RebootIssued, '-': Planned, '+': Completing,
}

// Parse reads any of the three forms, in either case. What it does not know sets Unlisted.
func Parse(text string) State {
	word, rest, complete := strings.Cut(strings.ToUpper(strings.TrimSpace(text)), "+")
	if complete && rest != "" { // else "ALLOC+"
		return flagged(word, strings.Split(rest, "+"))
	}
	var sign Flags
	if complete {
		sign = Completing
	} else if n := len(word); n > 0 && signs[word[n-1]] != 0 {
		word, sign = word[:n-1], signs[word[n-1]]
	}
	s, known := words[word]
	if base, ok := bases[word]; ok {
		s, known = State{Base: base}, true
	}
	if !known {
		s.Flags = Unlisted
	}
	s.Flags |= sign
	return s
}

func flagged(base string, names []string) State {
	b, ok := bases[base]
	s := State{Base: b}
	if !ok {
		s.Flags = Unlisted
	}
	for _, name := range names {
		if f := flags[name]; f != 0 {
			s.Flags |= f
		} else {
			s.Flags |= Unlisted
		}
	}
	return s
}

// away is why no agent can be counted on: it is off or reboots, nobody answers there, or
// somebody works on it.
const away = NotResponding | External | InvalidReg | Drain | Fail | Maintenance | RebootRequested | RebootIssued |
	PowerDown | PoweredDown | PoweringDown | PoweringUp

// Lives tells whether slurmd, and with it the agent, can be counted on.
func (s State) Lives() bool {
	return (s.Base == Idle || s.Base == Mixed || s.Base == Allocated) && s.Flags&away == 0
}

// Takes tells whether the node takes any job, now or when others have ended there.
func (s State) Takes() bool { return s.Lives() && s.Flags&(Reserved|Blocked) == 0 }
