// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"fmt"
	"math"
	"strings"
)

// Kind is what a message tells about the end of a job.
type Kind string

// The kinds. Only GPUMemory is a reason to requeue a job: alone on a GPU it
// has more of what it lacked. The others are told apart so that a report can
// name them, and so that they are not taken for it.
const (
	GPUMemory  Kind = "gpu-memory"  // no memory left on the GPU, or beyond the job's own limit
	HostMemory Kind = "host-memory" // the node's memory or the job's cgroup
	MPS        Kind = "mps"         // the MPS server ended the client, or is not there: a victim
	GPUFault   Kind = "gpu-fault"   // illegal access, failed assertion, ECC
	Profiling  Kind = "profiling"   // a server measured the GPU's free memory, and others changed it meanwhile
)

// Grade is how much a message about GPU memory proves by itself.
type Grade string

// The grades. What each needs beside it is docs/bench/oom.md's table (package evidence).
const (
	Strong   Grade = "strong"   // a framework's own last words; nothing prints them by accident
	Weak     Grade = "weak"     // any program's "out of memory", of which memory is not said
	Disguise Grade = "disguise" // what libraries say for want of memory, and for other reasons
	Hint     Grade = "advice"   // how to do with less, as programs add to many errors
)

// Signature is one kind of message, with what it proves.
type Signature struct {
	message
	Grade Grade // of GPUMemory; empty: of others
}

// message is a stretch of text, here in lower case, that the named framework prints in any.
type message struct {
	ID        string // stable; stored in records
	Framework string
	Kind      Kind
	text      string
	with      string   // must stand on the same line, behind text; empty: nothing more
	unless    []string // makes the line something else
}

// onHost are words of messages about pinned or ordinary memory of the node.
var onHost = []string{"on host", "cuda_host_bfc", "gpu_host_bfc", "device:cpu:", "by allocator cpu",
	"by allocator mklcpu", "cudahostalloc", "cudamallochost", "cudahostregister", "host memory", "pinned"}

// harmless are words of messages that say themselves that the program goes on: caches
// that make do with less, autotuners that drop one choice, loops that drop a batch.
var harmless = []string{"this is not a failure", "ignoring this choice", "for benchmark choice", "skipping batch",
	"will be ignored", "falling back to", "retrying with", "using cpu",
	"attempting to free up memory"}

// The weights of messages: the heaviest in a text is what counts. slurmstepd's word that
// the kernel killed a process is about the end itself, and no GPU has more of the node's
// memory. A server that does not start says why after the error that it met. What
// MPS clients and illegal accesses print is often what other ranks say after one of
// them ran out of memory, and explains what libraries say. Advice is the last.
const (
	ofAdvice = iota + 1
	ofSurvived
	ofDisguise
	ofWeak
	ofOthers
	ofStrong
	ofStart
	ofKernel
)

// Weight is that of a message of which a program did or did not survive what it tells.
func (s Signature) Weight(survived bool) int {
	switch {
	case s.ID == "":
		return 0
	case s.ID == "oom-kill":
		return ofKernel
	case s.Kind != GPUMemory:
		return ofOthers
	case survived && s.Grade != Hint:
		return ofSurvived
	case startOf[s.ID] != (start{}):
		return ofStart
	}
	return map[Grade]int{Hint: ofAdvice, Disguise: ofDisguise, Weak: ofWeak, Strong: ofStrong}[s.Grade]
}

// start is what tells a server that takes a part of the whole GPU at its start to take
// less: with its setting's name as users write it.
type start struct{ program, setting string }

// A server of Triton has no such setting for what its models take.
var startOf = map[string]start{
	"vllm":         {"vLLM", "gpu_memory_utilization"},
	"sglang":       {"SGLang", "mem_fraction_static"},
	"tgi":          {"text-generation-inference", "cuda_memory_fraction"},
	"tritonserver": {"Triton", ""},
}

// Advice says of the refusal of a server to start what would have let it start with
// reserveMiB, which leaves it a fraction of the GPU; empty: nothing is known that would.
func Advice(id string, reserveMiB int64, fraction float64) string {
	s := startOf[id]
	switch {
	case s == (start{}):
		return ""
	case s.setting == "":
		return fmt.Sprintf("%s did not start with %d MiB: load fewer models or instances, or book more", s.program,
			reserveMiB)
	}
	return fmt.Sprintf("%s takes a part of the whole GPU: set %s to at most %.2f, or book more", s.program, s.setting,
		math.Floor(fraction*100)/100)
}

// Program is who prints the messages of an id, in words.
func Program(id string) string {
	if id == "out-of-memory" {
		return "its text"
	}
	for _, s := range Signatures {
		if s.ID == id {
			name, _, _ := strings.Cut(s.Framework, ",")
			words := strings.Fields(name)
			for i, w := range words {
				if w == "before" || w == "of" || w == "with" || w[0] >= '0' && w[0] <= '9' {
					words = words[:i]
					break
				}
			}
			return strings.Join(words, " ")
		}
	}
	return id
}
