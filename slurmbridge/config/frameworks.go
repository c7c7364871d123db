// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Variable is the value that a job gets for a variable not set by its user. Empty:
// nothing.
type Variable struct {
	Sharing  string `toml:"sharing"`  // jobs that share their GPU
	Learning string `toml:"learning"` // jobs that run alone so that later runs can share
	All      string `toml:"all"`      // these two and every other job with a GPU
}

// Of is the value for a kind of job, by the names of the keys; "" is a job of neither.
func (v Variable) Of(kind string) string {
	switch {
	case kind == Sharing && v.Sharing != "":
		return v.Sharing
	case kind == Learning && v.Learning != "":
		return v.Learning
	}
	return v.All
}

// The kinds of jobs that frameworks tells apart.
const (
	Sharing  = "sharing"
	Learning = "learning"
)

// frameworks are the defaults. JAX takes 75 % of the card at its start unless told
// otherwise, TensorFlow all of it; either would be learned as the job's need, and under a
// limit both are refused until they have come down to it. JAX's fraction is the most that
// JAX grows to: all of the booking, for nine tenths are less than what a job needs that
// books 5 % more than its peak. It has two names: JAX raises "XLA_CLIENT_MEM_FRACTION is
// specified together with XLA_PYTHON_CLIENT_MEM_FRACTION" of both, and all its releases
// take the old one. TensorFlow keeps 1.5 GiB and more of what is free to the system, which
// under a limit is a part of the booking.
func frameworks() map[string]Variable {
	return map[string]Variable{
		"XLA_PYTHON_CLIENT_PREALLOCATE":  {Sharing: "false", Learning: "false"},
		"XLA_PYTHON_CLIENT_MEM_FRACTION": {Sharing: "{part}"},
		"TF_FORCE_GPU_ALLOW_GROWTH":      {Sharing: "true", Learning: "true"},
		"TF_DEVICE_MIN_SYS_MEMORY_IN_MB": {Sharing: "256"},
		"CARMA_MEM_FRACTION":             {All: "{fraction}"},
	}
}

// Instead names the variable that stands for another, so that a program refuses both.
var Instead = map[string]string{
	"XLA_PYTHON_CLIENT_MEM_FRACTION": "XLA_CLIENT_MEM_FRACTION",
	"XLA_CLIENT_MEM_FRACTION":        "XLA_PYTHON_CLIENT_MEM_FRACTION",
}

// FrameworkNames lists the variables in alphabetical order.
func (c Config) FrameworkNames() []string { return sortedKeys(c.Frameworks) }

// Expand puts a job's booking into a value.
func Expand(value string, reserveMiB, totalMiB int64) string {
	part := 1.0
	if totalMiB > 0 {
		part = min(float64(reserveMiB)/float64(totalMiB), 1)
	}
	// Down to four places: a part that is rounded up is more than the booking.
	places := func(f float64) string { return strconv.FormatFloat(float64(int64(f*1e4))/1e4, 'f', -1, 64) }
	return strings.NewReplacer(
		"{reserve_mib}", strconv.FormatInt(reserveMiB, 10),
		"{total_mib}", strconv.FormatInt(totalMiB, 10),
		"{part}", places(part),
		"{fraction}", places(Fraction(reserveMiB, totalMiB)),
	).Replace(value)
}

// Fraction is the part of a GPU that a program may take at its start under a booking: nine
// tenths of it, for its CUDA context and what it allocates later are not in that part.
func Fraction(reserveMiB, totalMiB int64) float64 {
	if totalMiB <= 0 {
		return 0.9
	}
	return 0.9 * min(float64(reserveMiB)/float64(totalMiB), 1)
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	// TaskProlog's output is lines, and a list of what was set has spaces between.
	variableValue = regexp.MustCompile(`^[!-~]*$`)
	placeholder   = regexp.MustCompile(`\{[^}]*\}`)
)

func (c *Config) checkFrameworks() *KeyError {
	for _, name := range c.FrameworkNames() {
		v, key := c.Frameworks[name], "frameworks."+name
		if !variableName.MatchString(name) {
			return &KeyError{0, key, "is no name of a variable: letters, digits and _"}
		}
		if other, ok := c.Frameworks[Instead[name]]; ok && v != (Variable{}) && other != (Variable{}) {
			return &KeyError{0, key, fmt.Sprintf("JAX refuses it beside %[1]s; leave [frameworks.%[1]s] empty", Instead[name])}
		}
		for _, f := range []struct{ key, value string }{{Sharing, v.Sharing}, {Learning, v.Learning}, {"all", v.All}} {
			if !variableValue.MatchString(f.value) || len(f.value) > 256 {
				return &KeyError{0, key + "." + f.key, "must be at most 256 printable characters without a space"}
			}
			for _, word := range placeholder.FindAllString(f.value, -1) {
				if Expand(word, 1, 1) == word {
					return &KeyError{0, key + "." + f.key, word + " is not one of {reserve_mib}, {total_mib}, {part}, {fraction}"}
				}
			}
		}
	}
	return nil
}
