// SPDX-License-Identifier: Apache-2.0

// Package userfile looks into a file that a user named, as that user.
//
// Prolog and Epilog run as root, and a job's stderr may be anything: a link to
// /etc/shadow, a FIFO, a file on a mount that hangs. So the program starts
// itself once more as the user, without groups that the user does not have, and
// that child opens the file. The parent waits until its deadline and goes on
// whatever happens to the child. No byte of the file reaches the parent: the
// reply holds numbers and the names of constants.
package userfile

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"carma/prolog/oomscan"
)

// Command is the argument with which a program must call Child.
const Command = "as-user"

// Op is what the child does with the file.
type Op string

// The operations.
const (
	OpMark Op = "mark" // remember where the file ends now
	OpScan Op = "scan" // look for a signature behind a mark
)

// Ask is the parent's question.
type Ask struct {
	Op    Op
	Files []File // OpMark takes one; OpScan looks into all
}

// File is a file and where in it this job's text begins.
type File struct {
	Path string // absolute
	From Mark   // OpScan
}

// rawFile is a File in JSON: a path is bytes, and need not be UTF-8.
type rawFile struct {
	Path []byte
	From Mark
}

// MarshalJSON keeps the bytes of the path as they are.
func (f File) MarshalJSON() ([]byte, error) { return json.Marshal(rawFile{[]byte(f.Path), f.From}) }

// UnmarshalJSON is the inverse of MarshalJSON.
func (f *File) UnmarshalJSON(text []byte) error {
	var r rawFile
	err := json.Unmarshal(text, &r)
	*f = File{string(r.Path), r.From}
	return err
}

// Reply is the child's answer. State tells why there may be no more: of several
// files, how far the child came with the best.
type Reply struct {
	State     State
	Mark      Mark   // OpMark
	Signature string // OpScan: oomscan id; empty: none found
	Kind      oomscan.Kind
	Offset    int64 // of the signature in its file
}

// check refuses an answer that no child of ours gives. The child runs as the
// user, who may trace it and answer in its place; what is stored and shown must
// be one of our own words even then.
func (r Reply) check() error {
	if !slices.Contains(states, r.State) {
		return errors.New("unknown state")
	}
	known := func(s oomscan.Signature) bool { return s.ID == r.Signature && s.Kind == r.Kind }
	if r.Signature+string(r.Kind) != "" && !slices.ContainsFunc(oomscan.Signatures, known) {
		return errors.New("unknown signature")
	}
	if _, err := hex.DecodeString(r.Mark.Tail); err != nil || len(r.Mark.Tail) > 2*sha256.Size {
		return errors.New("no mark")
	}
	return nil
}

// State is how far the child came.
type State string

// The states.
const (
	StateOK         State = "ok"
	StateMissing    State = "missing"
	StateDenied     State = "denied"
	StateNotRegular State = "not-regular"
	StateError      State = "error"
)

// states, the best first.
var states = []State{StateOK, StateNotRegular, StateDenied, StateMissing, StateError}

// User is whom the child runs as.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// maxAsk bounds a question: paths of 4 KiB of the batch script and of some
// steps, in base64.
const maxAsk = 1 << 20

// Run asks a child that runs as u. It returns when ctx ends even if the child
// cannot be killed, as it hangs in a system call on a dead mount.
func Run(ctx context.Context, u User, ask Ask) (Reply, error) {
	question, err := json.Marshal(ask)
	if err != nil {
		return Reply{}, fmt.Errorf("ask about %d files: %w", len(ask.Files), err)
	}
	var answer bytes.Buffer
	cmd := exec.Command("/proc/self/exe", Command)
	cmd.Dir = "/"
	cmd.Env = []string{"GOTRACEBACK=none", "GOMAXPROCS=1"}
	cmd.Stdin = bytes.NewReader(question)
	cmd.Stdout = &limited{to: &answer, left: 4096}
	cmd.WaitDelay = 100 * time.Millisecond
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups},
		Setsid:     true,
	}
	if err := cmd.Start(); err != nil {
		return Reply{}, fmt.Errorf("start a process as uid %d: %w", u.UID, err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		cmd.Process.Kill()
		return Reply{}, fmt.Errorf("read a file as uid %d: %w", u.UID, ctx.Err())
	}
	var reply Reply
	if err != nil {
		return Reply{}, fmt.Errorf("read a file as uid %d: %w", u.UID, err)
	}
	if err := json.Unmarshal(answer.Bytes(), &reply); err != nil {
		return Reply{}, fmt.Errorf("read a file as uid %d: answer: %w", u.UID, err)
	}
	if err := reply.check(); err != nil {
		return Reply{}, fmt.Errorf("read a file as uid %d: answer: %w", u.UID, err)
	}
	return reply, nil
}

// limited refuses to grow beyond its bound: the child is the user's to trace.
type limited struct {
	to   io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, errors.New("answer too long")
	}
	l.left -= len(p)
	return l.to.Write(p)
}

// Child answers one question from stdin on stdout. The program's main calls it
// before anything else when its only argument is Command.
func Child() {
	for _, l := range []struct {
		resource int
		most     uint64
	}{
		{syscall.RLIMIT_CPU, 2}, {syscall.RLIMIT_FSIZE, 0}, {syscall.RLIMIT_NOFILE, 16}, {syscall.RLIMIT_CORE, 0},
	} {
		syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: l.most, Max: l.most})
	}
	// Never root, whoever called: then there is nothing to protect.
	if os.Getuid() == 0 && os.Geteuid() != 0 {
		os.Exit(1)
	}
	var ask Ask
	if err := json.NewDecoder(io.LimitReader(os.Stdin, maxAsk)).Decode(&ask); err != nil {
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer(ask)); err != nil {
		os.Exit(1)
	}
}
