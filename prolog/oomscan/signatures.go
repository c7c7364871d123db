// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"fmt"
	"math"
	"strings"
)

// Kind is what a message tells about the end of a job.
type Kind string

// The kinds. Only GPUMemory is a reason to requeue a job: alone on a GPU the
// job has more memory. The other kinds are told apart so that a report can
// name each, and none is taken for a lack of GPU memory.
const (
	GPUMemory  Kind = "gpu-memory"  // no memory left on the GPU, or beyond the job's own limit
	HostMemory Kind = "host-memory" // the node's memory or the job's cgroup
	MPS        Kind = "mps"         // the MPS server ended the client, or is not there: a victim
	GPUFault   Kind = "gpu-fault"   // illegal access, failed assertion, ECC
	Profiling  Kind = "profiling"   // a server measured the GPU's free memory while others changed the amount
)

// Grade is how much a message about GPU memory proves by itself.
type Grade string

// The grades. The table of docs/bench/oom.md says which other evidence each needs (package evidence).
const (
	Strong   Grade = "strong"   // a framework's own last words; nothing prints them by accident
	Weak     Grade = "weak"     // any program's "out of memory", without a word of which memory
	Disguise Grade = "disguise" // what libraries say for want of memory, and for other reasons
	Hint     Grade = "advice"   // how to do with less, as programs add to many errors
)

// Signature is one kind of message, with a grade.
type Signature struct {
	message
	Grade Grade // of GPUMemory; empty: of others
}

// message is a stretch of text, here in lower case; the named framework prints the text in any case.
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
	"by allocator mklcpu", "cudahostalloc", "cudamallochost", "cudahostregister", "cumemhostalloc",
	"cumemallochost", "cumemhostregister", "host memory", "pinned",
	"cuda_host_mem"}

// harmless are words of messages after which the program goes on by its own word: caches
// with less memory, autotuners without one choice, loops without a batch.
var harmless = []string{"this is not a failure", "ignoring this choice", "for benchmark choice", "skipping batch",
	"will be ignored", "falling back to", "retrying with", "and retrying",
	"using cpu", "attempting to free up memory"}

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

// Weight is the weight of a message, by whether the program survived.
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

// start is a server that takes a part of the whole GPU at its start, with the setting for
// less as users write the name.
type start struct{ program, setting string }

// A server of Triton has no such setting for the memory of models.
var startOf = map[string]start{
	"vllm":         {"vLLM", "gpu_memory_utilization"},
	"sglang":       {"SGLang", "mem_fraction_static"},
	"tgi":          {"text-generation-inference", "cuda_memory_fraction"},
	"tritonserver": {"Triton", ""},
}

// Advice says of the refusal of a server to start which setting would have allowed the start with
// reserveMiB, a fraction of the GPU; empty: none is known.
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

// Program names the program with the messages of an id, in words.
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
