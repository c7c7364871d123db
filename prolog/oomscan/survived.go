// SPDX-License-Identifier: Apache-2.0

package oomscan

import (
	"bytes"
	"strconv"
)

// logged is the beginning of a line of the logs of TensorFlow and XLA that is no fatal
// one: "2019-07-21 23:23:06.228049: E tensorflow/stream_executor/cuda/cuda_driver.cc:828] ",
// "W0000 00:00:1756998431.440298    5182 bfc_allocator.cc:501] ". Their allocators log
// each refusal and then try with less; a need that cannot shrink is an exception.
var logged = pattern(`(?:^|[\s:>])[iwe](?:\d{4})? [^\]]*\.cc:\d+\] `)

// allocators are the ids whose messages those logs hold; that cuBLAS and cuDNN have no
// memory for a handle is tried once.
var allocators = map[string]bool{"tensorflow": true, "jax": true, "cuda": true, "out-of-memory": true}

// retried tells whether a message at line[at] is a line of such a log. "Execution
// of replica 0 failed" is the end of what was run, not an attempt.
func retried(line []byte, at int) bool {
	return logged().Match(line[:at]) && !bytes.Contains(line[:at], []byte("execution of replica"))
}

// log is any line of such logs; F is fatal.
var log = pattern(`(?:^|[\s:>])[iwef](?:\d{4})? [^\]]*\.cc:\d+\]`)

// triesAgain are words of programs after a caught error, before the next try:
// fairseq, Detectron2 and mmdetection, Accelerate, Lightning, RAPIDS crossfit, ComfyUI.
var triesAgain = []string{"skipping batch", "ignoring this choice", "attempting to recover from oom",
	"attempting to copy inputs", "decreasing batch size", "trying batch size", "reducing batch size to", "retrying with",
	"falling back to", "unloading all loaded models"}

// caughtWithin is in how many lines after the message such words stand.
const caughtWithin = 3

// caught tells whether the program says, on the next lines, that another try with less follows.
func (p *parsed) caught(k int) bool {
	for i := k + 1; i < len(p.lines) && i <= k+caughtWithin; i++ {
		l := p.line(i)
		if anyIn(l[:min(len(l), after)], triesAgain) {
			return true
		}
	}
	return false
}

// notIts are words of lines not of the program, but of Slurm, the shell, or the C library on an abort.
var notIts = []string{"srun: ", "slurmstepd: ", "killed", "aborted", "terminated", "segmentation fault", "core dumped",
	"terminate called", "what():", "*** "}

// goesOn tells whether the program said anything of its own behind line k.
func (p *parsed) goesOn(k int) bool {
	if p.lastOwn == 0 { // once for all messages: a text may hold thousands
		p.lastOwn = 1
		for i := len(p.lines) - 1; i >= 0; i-- {
			if p.isOwn(i) {
				p.lastOwn = i + 1
				break
			}
		}
	}
	return p.lastOwn > k+1
}

// trace is a line of XLA 2026 behind a refusal: "=== Source Location Trace: ===",
// "external/xla+/xla/stream_executor/cuda/cuda_status.cc:45".
var trace = pattern(`^\s*(?:=== source location trace: ===|(?:external/)?xla[+/]\S*\.(?:cc|h):\d+)\s*$`)

// isOwn tells whether a line is the program's: neither of the logs of TensorFlow and XLA, nor of notIts.
func (p *parsed) isOwn(k int) bool {
	l := p.line(k)
	l = l[:min(len(l), after)]
	return len(bytes.TrimSpace(l)) > 0 && !log().Match(l) && !trace().Match(l) && !anyIn(l, notIts)
}

// frame is a frame of Julia's stack traces; a program may number the lines of its progress so.
var frame = pattern(`^\s*\[\d+\] (?:.*\(.*::|.*\(\)|(?:top-level scope|macro expansion)\b)`)

// ends are words of lines that are not the program's work: of errors, of launchers, of Slurm, of the shell, of
// the C library on an abort, of anything closed after an error.
var ends = []string{
	"srun: ", "slurmstepd: ", "killed", "abort", "terminat", "segmentation fault", "core dumped", "what():",
	"*** ", "error", "exception", "fail", "traceback", `file "`, "^^^", "~~~", "warn", "watchdog", "signal",
	"timeout", "nccl", "wandb", "frame #", "process group", "process_group", "shutting down", "shutdown",
	"exit", "stack", "closing", "during handling", "out of memory", "oom", "core file", "====",
	"----", "root cause", "host      :", "rank      :", "time      :", "compile with", "for debugging",
	"cuda_launch_blocking", "torch_use_cuda_dsa", "see documentation", "python", "backtrace",
}

// history is what a text says line by line of work and of time.
type history struct {
	lines []moment
	end   moment // what stands behind the last line of work
}

// moment is what is known at a line: how much work is before the line, and the last clocks printed.
type moment struct {
	work    int32
	clock   int32 // seconds of the day; -1: none
	elapsed int32 // of a progress bar; -1: none
	isWork  bool
}

// history reads each line once.
func (p *parsed) history() history {
	h := history{lines: make([]moment, len(p.lines)), end: moment{clock: -1, elapsed: -1}}
	now := moment{clock: -1, elapsed: -1}
	for k := range p.lines {
		l := p.line(k)
		l = l[:min(len(l), 512)]
		b := p.body(k) // without a launcher's prefix, of which the clock may be part
		b = b[:min(len(b), 512)]
		now.isWork = len(b) > 0 && indent(b) < 4 && l[0] != '|' && !bytes.HasPrefix(b, []byte{'\t'}) && !anyIn(l, ends) &&
			!raised().Match(b) && !log().Match(l) && !trace().Match(b) && !frame().Match(b)
		if c := clockIn(l); c >= 0 {
			now.clock = c
		}
		if e := elapsedIn(l); e >= 0 {
			now.elapsed = e
		}
		if now.isWork {
			now.work++
			h.end = now
		}
		h.lines[k] = now
	}
	return h
}

const (
	// longS is how long a program works on after a message that it survived; ranks and loaders that notice the end
	// of another print for less.
	longS = 5 * 60
	// longLines is how many lines of work count as long where no line has a time.
	longLines = 40
)

// longWorkAfter tells whether the program worked on for long after line k.
func (h history) longWorkAfter(k int) bool {
	at := h.lines[k]
	done := h.end.work - at.work
	if done <= 0 {
		return false
	}
	day := int32(24 * 60 * 60)
	byClock := at.clock >= 0 && h.end.clock >= 0 && (h.end.clock-at.clock+day)%day >= longS
	byBar := at.elapsed >= 0 && h.end.elapsed-at.elapsed >= longS
	return done >= longLines || byClock || byBar
}

// workBetween is how much the program did between two lines.
func (h history) workBetween(from, to int) int {
	if h.lines == nil {
		return 0
	}
	return int(h.lines[to].work - h.lines[from].work)
}

// clockIn is the time of day near the beginning of a line, in seconds; -1: the line has none.
func clockIn(l []byte) int32 {
	l = l[:min(len(l), 80)]
	for i := 0; i+6 < len(l); i++ {
		if l[i] != ':' || i == 0 {
			continue
		}
		h, m, s := number(l, max(i-2, 0), i), int32(-1), int32(-1)
		j := i + 1
		for j < len(l) && j < i+3 && l[j] >= '0' && l[j] <= '9' {
			j++
		}
		if m = number(l, i+1, j); j < len(l) && l[j] == ':' {
			s = number(l, j+1, min(j+3, len(l)))
		}
		if h >= 0 && h < 24 && m >= 0 && m < 60 && s >= 0 && s < 61 {
			return h*3600 + m*60 + s
		}
	}
	return -1
}

// number is the number at the end of l[from:to]; -1: there is none.
func number(l []byte, from, to int) int32 {
	for from < to && (l[from] < '0' || l[from] > '9') {
		from++
	}
	n, err := strconv.Atoi(string(l[from:to]))
	if err != nil {
		return -1
	}
	return int32(n)
}

// elapsed is the time that a progress bar has run: "[16:40<00:00", "[1:02:03<".
var elapsed = pattern(`\[(?:(\d{1,3}):)?(\d{1,2}):(\d\d)<`)

func elapsedIn(l []byte) int32 {
	if !bytes.Contains(l, []byte{'<'}) {
		return -1
	}
	m := elapsed().FindSubmatch(l)
	if m == nil {
		return -1
	}
	sum := int32(0)
	for _, part := range m[1:] {
		n, _ := strconv.Atoi(string(part))
		sum = sum*60 + int32(n)
	}
	return sum
}
