// SPDX-License-Identifier: Apache-2.0

// Package oomscan finds the messages with which frameworks tell that a GPU had
// no memory left. It is pure: a reader in, a signature out. What it reads is a
// user's text and never leaves it.
package oomscan

import (
	"bytes"
	"errors"
	"io"
)

// Signature is one kind of message.
type Signature struct {
	ID        string // stable; stored in records
	Framework string
	text      string
}

// Signatures are tried in this order at each place of the text; the most
// telling come first. Each is a stretch of text that the named framework
// prints and that nothing prints by accident. testdata holds messages as they
// were printed, with their versions.
var Signatures = []Signature{
	{"pytorch", "PyTorch", "torch.OutOfMemoryError"},                // 2.5 and later
	{"pytorch", "PyTorch", "torch.cuda.OutOfMemoryError"},           // 1.13 to 2.4
	{"pytorch", "PyTorch", "CUDA out of memory. Tried to allocate"}, // all, also before 1.13
	{"tensorflow", "TensorFlow", "OOM when allocating tensor"},      // ResourceExhaustedError of 1.x and 2.x
	{"jax", "JAX", "RESOURCE_EXHAUSTED: Out of memory"},             // XlaRuntimeError
	{"cuda", "CUDA driver", "CUDA_ERROR_OUT_OF_MEMORY"},             // cuGetErrorName
	{"cuda", "CUDA runtime", "cudaErrorMemoryAllocation"},           // cudaGetErrorName
	{"cuda", "CUDA runtime", "CUDA error: out of memory"},           // cudaGetErrorString as frameworks print it
	{"cublas", "cuBLAS", "CUBLAS_STATUS_ALLOC_FAILED"},              // handle or workspace
}

const chunk = 256 << 10

var longest = func() int {
	n := 0
	for _, s := range Signatures {
		n = max(n, len(s.text))
	}
	return n
}()

// Scan reads r to its end and returns the first signature in it and the offset
// of its first byte; ok is false if there is none. It keeps one chunk in
// memory whatever it reads.
func Scan(r io.Reader) (found Signature, offset int64, ok bool, err error) {
	buf := make([]byte, 0, chunk+longest)
	var base int64 // offset of buf[0]
	for {
		n, err := io.ReadFull(r, buf[len(buf):len(buf)+chunk])
		buf = buf[:len(buf)+n]
		if s, at := first(buf); at >= 0 {
			return s, base + int64(at), true, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return Signature{}, 0, false, nil
		} else if err != nil {
			return Signature{}, 0, false, err
		}
		// A signature may lie across two chunks.
		keep := min(len(buf), longest-1)
		base += int64(len(buf) - keep)
		copy(buf, buf[len(buf)-keep:])
		buf = buf[:keep]
	}
}

// first returns the signature that begins earliest in text, and where.
func first(text []byte) (Signature, int) {
	at, which := -1, 0
	for i, s := range Signatures {
		limit := text
		if at >= 0 {
			limit = text[:min(len(text), at+len(s.text)-1)]
		}
		if j := bytes.Index(limit, []byte(s.text)); j >= 0 && (at < 0 || j < at) {
			at, which = j, i
		}
	}
	return Signatures[which], at
}
