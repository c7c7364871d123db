// SPDX-License-Identifier: Apache-2.0

package userfile

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"carma/prolog/oomscan"
)

// How much of a file is read: a framework's last words stand at the end, a
// failing start-up's at the beginning.
const (
	maxHead = 64 << 10
	maxTail = 1 << 20
)

// markTail is the stretch before a mark whose hash tells later whether the
// text in front of the mark is still the same.
const markTail = 4096

// Mark is where a file ended when a job started. Appended output
// (--open-mode=append, JobFileAppend=1) keeps the text of earlier runs, and an
// old message must not requeue the job again; output truncated and written anew
// must be read from its beginning, however long by now.
type Mark struct {
	Exists  bool
	Dev     uint64
	Ino     uint64
	Size    int64
	MtimeNs int64
	Tail    string // hex SHA-256 of the last bytes before Size; empty: not known
}

func answer(ask Ask) Reply {
	best := Reply{State: StateError}
	for _, f := range ask.Files {
		r := look(ask.Op, f)
		w, most := r.weight(), best.weight()
		if w > most || w == most && better(r.State, best.State) || w == most && r.OtherEnd {
			best = r
		}
	}
	return best
}

func better(a, b State) bool { return slices.Index(states, a) < slices.Index(states, b) }

func look(op Op, file File) Reply {
	f, info, state := open(file.Path)
	if state != StateOK {
		return Reply{State: state}
	}
	defer f.Close()
	r := Reply{State: StateOK}
	var err error
	switch op {
	case OpMark:
		r.Mark, err = mark(f, info)
	case OpScan:
		err = r.scan(f, info, file.From)
	default:
		err = errors.New("unknown operation")
	}
	if err != nil {
		return Reply{State: StateError}
	}
	return r
}

// open opens a regular file for reading and nothing else: O_NONBLOCK keeps a
// FIFO without a writer from blocking, magic links in /proc are not followed, and
// the opened file is judged by its descriptor. A setting below /proc/sys that root
// alone may read can be opened, as the kernel asks for the effective uid there
// (fs/proc/proc_sysctl.c); the setting has no size, and no more than its size is
// read of a file.
func open(path string) (*os.File, unix.Stat_t, State) {
	var st unix.Stat_t
	const flags = unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ENOSYS) {
		// Linux before 5.6. A magic link leads a child with the user's fsuid, and without capabilities, to files of
		// the user's own processes alone.
		fd, err = unix.Open(path, flags, 0)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, st, StateMissing
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.ELOOP):
		return nil, st, StateDenied
	case err != nil:
		return nil, st, StateError
	}
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, st, StateError
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, st, StateNotRegular
	}
	return os.NewFile(uintptr(fd), "stderr"), st, StateOK
}

var openat2 = unix.Openat2 // another in tests

func mark(f io.ReaderAt, st unix.Stat_t) (Mark, error) {
	tail, err := tailHash(f, st.Size)
	return Mark{Exists: true, Dev: st.Dev, Ino: st.Ino, Size: st.Size, MtimeNs: st.Mtim.Nano(), Tail: tail}, err
}

func tailHash(f io.ReaderAt, size int64) (string, error) {
	from := max(size-markTail, 0)
	h := sha256.New()
	if _, err := io.Copy(h, io.NewSectionReader(f, from, size-from)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// scan looks at the text written since from, at most maxHead and maxTail bytes.
func (r *Reply) scan(f io.ReaderAt, st unix.Stat_t, from Mark) error {
	start, err := begin(f, st, from)
	if err != nil {
		return err
	}
	pieces := []io.Reader{io.NewSectionReader(f, start, st.Size-start)}
	gap := max(st.Size-start-maxHead-maxTail, 0)
	if gap > 0 {
		// The line that the gap cuts ends before the gap.
		pieces = []io.Reader{io.NewSectionReader(f, start, maxHead), strings.NewReader("\n"),
			io.NewSectionReader(f, st.Size-maxTail, maxTail)}
		gap--
	}
	text, err := io.ReadAll(io.LimitReader(io.MultiReader(pieces...), maxHead+maxTail+1))
	if err != nil {
		return err
	}
	found := oomscan.Scan(text)
	r.Signature, r.Kind, r.Grade = found.ID, found.Kind, found.Grade
	r.Survived, r.OtherEnd = found.Survived, found.OtherEnd
	r.QuietS = max(int64(time.Since(time.Unix(st.Mtim.Unix())).Seconds()), 0)
	r.Offset = start + found.Offset
	if found.Offset >= maxHead {
		r.Offset += gap
	}
	return nil
}

// begin tells where this run's text begins: at the mark if the file is
// unchanged up to there, else at 0. A file of the same length that was written
// since was written anew by a run of the same script.
func begin(f io.ReaderAt, st unix.Stat_t, from Mark) (int64, error) {
	switch {
	case !from.Exists, from.Dev != st.Dev, from.Ino != st.Ino, from.Size > st.Size:
		return 0, nil
	case from.Tail != "" && from.Size == st.Size && from.MtimeNs != st.Mtim.Nano():
		return 0, nil
	}
	if from.Tail == "" { // seen by the agent, which reads no file
		return from.Size, nil
	}
	tail, err := tailHash(f, from.Size)
	if err != nil || tail != from.Tail {
		return 0, err
	}
	return from.Size, nil
}
