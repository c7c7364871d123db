// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"bytes"
	"regexp"
	"sync"
)

// pattern compiles an expression when it is needed: every hook has this package in it.
func pattern(s string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(s) })
}

// logged is the beginning of a line of the logs of TensorFlow and XLA that is no fatal
// one: "2019-07-21 23:23:06.228049: E tensorflow/stream_executor/cuda/cuda_driver.cc:828] ",
// "W0000 00:00:1756998431.440298    5182 bfc_allocator.cc:501] ". Their allocators log
// each refusal and then try with less; what they cannot do without is an exception.
var logged = pattern(`(?:^|[\s:>])[IWE](?:\d{4})? [^\]]*\.cc:\d+\] `)

// allocators are the ids whose messages those logs hold; that cuBLAS and cuDNN have no
// memory for a handle is tried once.
var allocators = map[string]bool{"tensorflow": true, "jax": true, "cuda": true}

// retried tells whether a message, which begins at line[at], is a line of those logs. "Execution
// of replica 0 failed" is the end of what was run, not an attempt.
func retried(line []byte, at int) bool {
	return logged().Match(line[:at]) && !bytes.Contains(line[:at], []byte("Execution of replica"))
}

// log is any line of those logs; F is fatal.
var log = pattern(`(?:^|[\s:>])[IWEF](?:\d{4})? [^\]]*\.cc:\d+\]`)

// triesAgain are words with which a program says that it caught the error and goes on:
// fairseq, Detectron2 and mmdetection, Accelerate, Lightning, RAPIDS crossfit, ComfyUI.
var triesAgain = []string{"skipping batch", "Skipping batch", "Ignoring this choice", "attempting to recover from OOM",
	"Attempting to copy inputs", "Decreasing batch size", "trying batch size", "reducing batch size to", "etrying with",
	"alling back to", "unloading all loaded models"}

// caughtWithin is in how many lines after the message they do.
const caughtWithin = 3

// raised is the last line of a traceback, whoever printed it: an error that ended a
// program. Those about memory are signatures, and weigh more than what went before.
var raised = pattern(`(?m)^(?:\[rank\d+\]: ?)?(?:[A-Za-z_]\w*\.)*` +
	`[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?::|\s*$)`)

// ends are words of lines that are not the program's: of Slurm, of the shell, of the C
// library as it aborts.
var ends = []string{"srun: ", "slurmstepd: ", "Killed", "Aborted", "Terminated", "Segmentation fault", "core dumped",
	"terminate called", "what():", "*** "}

// goesOn tells whether the program said anything of its own in text, which stands behind
// a message.
func goesOn(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || log().Match(line) || anyIn(line, ends) {
			continue
		}
		return true
	}
	return false
}

func anyIn(line []byte, words []string) bool {
	for _, w := range words {
		if bytes.Contains(line, []byte(w)) {
			return true
		}
	}
	return false
}
