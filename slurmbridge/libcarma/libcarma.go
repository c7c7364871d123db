// SPDX-License-Identifier: Apache-2.0

// Command libcarma is the shared library loaded into slurmctld by the
// job_submit shim: a C interface to annotate, and nothing else (described in
// carma.h). The library opens no file but carma.toml, and only in
// carma_configure and carma_tick, which the shim calls when no job waits. The
// library starts no goroutine.
package main

/*
#include <stdlib.h>
#include "carma.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"unsafe"

	"carma/slurmbridge/config"
	"carma/slurmbridge/version"
)

func main() {}

func init() {
	// A guest in slurmctld keeps its heap and its threads small. With more than
	// one processor, threads that steal work sleep with the timer slack that the
	// shim gives them (worker.c).
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(256 << 20)
}

//export carma_abi
func carma_abi() C.int { return C.CARMA_ABI }

// carma_version returns what --version of the commands prints.
//
//export carma_version
func carma_version() *C.char { return C.CString(version.String()) }

// carma_configure sets where carma.toml is and how this Slurm writes a GRES,
// and reads the file. It returns NULL or a message for the log.
//
//export carma_configure
func carma_configure(path, gresPrefix *C.char) (message *C.char) {
	defer recoverTo(&message, "")
	site.path, site.gresPrefix = C.GoString(path), C.GoString(gresPrefix)
	return errorText(site.load())
}

// carma_tick reads carma.toml again if the file has changed. It returns NULL or
// a message for the log.
//
//export carma_tick
func carma_tick() (message *C.char) {
	defer recoverTo(&message, "")
	return errorText(site.reload())
}

// carma_recovery returns the partitions for recovery, with commas between.
//
//export carma_recovery
func carma_recovery() *C.char {
	if site.recovery == "" {
		return nil
	}
	return C.CString(site.recovery)
}

// carma_managed returns all partitions of carma.toml, with commas between; empty: no job is to be changed.
//
//export carma_managed
func carma_managed() *C.char {
	if site.managed == "" && (!site.usable || site.mode == config.ModeShare) {
		return nil
	}
	return C.CString(site.managed)
}

// carma_whole returns what is booked for jobs that carma_annotate does not answer for.
//
//export carma_whole
func carma_whole() *C.char {
	if site.whole == "" {
		return nil
	}
	return C.CString(site.whole)
}

// carma_annotate answers for a job.
//
//export carma_annotate
func carma_annotate(ask *C.char, n C.size_t) (answer *C.char) {
	defer recoverTo(&answer, "leave ")
	// Not copied: the shim keeps its buffer until the call returns.
	text := answerTo(unsafe.Slice((*byte)(unsafe.Pointer(ask)), int(n)))
	if text == "" {
		return nil
	}
	return C.CString(text)
}

// recoverTo turns a panic into a message: the job goes on as written.
func recoverTo(message **C.char, word string) {
	if p := recover(); p != nil {
		*message = C.CString(word + oneLine(fmt.Sprintf("libcarma: panic: %v", p)) + "\n")
	}
}

func errorText(err error) *C.char {
	if err == nil {
		return nil
	}
	return C.CString(oneLine(err.Error()))
}
