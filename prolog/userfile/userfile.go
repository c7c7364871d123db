// SPDX-License-Identifier: Apache-2.0

// Package userfile looks into a file named by a user, with that user's rights.
//
// Prolog and Epilog run as root, and a job's stderr may be anything: a link to
// /etc/shadow, a FIFO, a file on a mount that hangs. So the program starts
// itself once more, with the user's ids and groups for all that concerns files
// and without capabilities, and that child opens the file. A file server sees
// the user, whatever it thinks of root. To the user's processes the child is
// root's: they can neither signal nor trace it (credentials.c). The parent waits
// until its deadline and goes on whatever happens to the child. No byte of the
// file reaches the parent: the reply holds numbers and the names of constants.
package userfile

// #cgo CFLAGS: -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -fstack-protector-strong
// #include "credentials.h"
import "C"

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
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"carma/prolog/oomscan"
)

// Command is the argument with which a program must call Child. The user's id
// follows.
const Command = C.USERFILE_COMMAND

// deadline is how long Run waits for a child, by the task: a slower file is not worth a job's start, but without its
// text a job that ran out of memory is not brought back. On a node with a load of 40 children took 2 s.
var deadline = map[Op]time.Duration{OpMark: 2 * time.Second, OpScan: 5 * time.Second}

// Op is the child's task with the file.
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
	Grade     oomscan.Grade
	Offset    int64 // of the message's line in its file
	Survived  bool  // the program went on after it (oomscan.Finding)
	OtherEnd  bool  // the last error of the text is about something else
	QuietS    int64 // how long ago its file was written
}

// weight is the weight of the message.
func (r Reply) weight() int {
	for _, s := range oomscan.Signatures {
		if s.ID == r.Signature && s.Kind == r.Kind && s.Grade == r.Grade {
			return s.Weight(r.Survived)
		}
	}
	return 0
}

// check refuses an answer that no child of ours gives: the child reads the
// user's text, and the words stored and shown must be our own even if the text
// got the better of the child.
func (r Reply) check() error {
	if !slices.Contains(states, r.State) {
		return errors.New("unknown state")
	}
	if r.Signature+string(r.Kind)+string(r.Grade) != "" && r.weight() == 0 {
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

// User is with whose rights the child reads.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// maxAsk bounds a question: paths of 4 KiB of the batch script and of some
// steps, in base64.
const maxAsk = 1 << 20

// Run asks a child that reads with u's rights. Run returns after the deadline, or when
// ctx ends, even if the child cannot be killed, hanging in a system call on a dead
// mount.
func Run(ctx context.Context, u User, ask Ask) (Reply, error) {
	at, bounded := ctx.Deadline()
	ctx, cancel := context.WithTimeout(ctx, within(time.Until(at), bounded, ask.Op))
	defer cancel()
	return run(ctx, u, ask)
}

// within is how long a child may take. A scan leaves a second of the caller's time to look into the records, or half.
func within(left time.Duration, bounded bool, op Op) time.Duration {
	if bounded && op == OpScan {
		return min(deadline[op], max(left/2, left-time.Second))
	}
	return deadline[op]
}

func run(ctx context.Context, u User, ask Ask) (reply Reply, err error) {
	question, err := json.Marshal(ask)
	if err != nil {
		return Reply{}, fmt.Errorf("ask about %d files: %w", len(ask.Files), err)
	}
	var answer bytes.Buffer
	cmd := command(ctx, u)
	cmd.Stdin = bytes.NewReader(question)
	cmd.Stdout = &limited{to: &answer, left: 4096}
	done := make(chan error, 1)
	go func() {
		// The child is killed with the thread that started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- cmd.Run()
	}()
	select {
	case err = <-done:
	case <-ctx.Done(): // the child is killed; nobody waits until it has gone
		err = ctx.Err()
	}
	if err == nil {
		err = json.Unmarshal(answer.Bytes(), &reply)
	}
	if err == nil {
		err = reply.check()
	}
	if err != nil {
		return Reply{}, fmt.Errorf("read a file of uid %d: %w", u.UID, explain(err))
	}
	return reply, nil
}

// command is the child, before the child has given up its privileges
// (credentials.c).
func command(ctx context.Context, u User) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", Command, strconv.FormatUint(uint64(u.UID), 10))
	cmd.Dir = "/"
	cmd.Env = []string{"GOTRACEBACK=none", "GOMAXPROCS=1"}
	// On a busy machine a ready answer may be read late; run waits for neither the
	// child nor the answer.
	cmd.WaitDelay = deadline[OpMark]
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: 0, Gid: u.GID, Groups: u.Groups},
		Setsid:     true,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd
}

// exitRoot is the child's status when the child could not give up root's
// privileges.
const exitRoot = 3

func explain(err error) error {
	if e := (*exec.ExitError)(nil); errors.As(err, &e) && e.ExitCode() == exitRoot {
		return errors.New("root's rights cannot be given up here; the hook needs CAP_SETUID, CAP_SETPCAP and Linux 4.3")
	}
	return err
}

// limited refuses to grow beyond its bound, whatever the child writes.
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
// before anything else when its arguments are Command and a user's id.
func Child() {
	if C.userfile_ready != 1 {
		os.Exit(exitRoot)
	}
	for _, l := range []struct {
		resource int
		most     uint64
	}{
		{syscall.RLIMIT_CPU, 2}, {syscall.RLIMIT_FSIZE, 0}, {syscall.RLIMIT_NOFILE, 16}, {syscall.RLIMIT_CORE, 0},
	} {
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: l.most, Max: l.most}); err != nil {
			os.Exit(1)
		}
	}
	var ask Ask
	if err := json.NewDecoder(io.LimitReader(os.Stdin, maxAsk)).Decode(&ask); err != nil {
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer(ask)); err != nil {
		os.Exit(1)
	}
}
