// SPDX-License-Identifier: Apache-2.0

package userfile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// squashed is a file server that trusts no root, as one of NFS with root_squash: it
// answers by the uid and gid that the kernel sends with each request. Those are the
// thread's fsuid and fsgid, with FUSE (fs/fuse/dev.c) as with AUTH_SYS of NFS
// (net/sunrpc/auth_unix.c).
type squashed struct {
	dev  *os.File
	text string
	user User // who alone may look up, open and read

	lock    sync.Mutex
	asked   map[uint32]string // by operation: who asked
	hanging int               // thread whose read has no answer; 0: none
}

// Of linux/fuse.h.
const (
	fuseLookup, fuseGetattr, fuseOpen, fuseRead, fuseRelease, fuseFlush, fuseInit = 1, 3, 14, 15, 18, 25, 26
	fuseForget, fuseInterrupt, fuseBatchForget                                    = 2, 36, 42
	fuseRoot, fuseFile, fuseHang                                                  = 1, 2, 3 // inodes
)

type fuseIn struct {
	Len, Opcode   uint32
	Unique, Node  uint64
	UID, GID, PID uint32
	_             uint32
}

// serve mounts the server on a new directory. FUSE and the right to mount are the
// kernel's; no program is needed.
func serve(t *testing.T, u User, text string) (*squashed, string) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("no file server to try it on: open /dev/fuse: %v", err)
	}
	d := dir(t)
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("squashed", d, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		t.Skipf("no file server to try it on: mount: %v", err)
	}
	// Go can wait for requests only of what is mounted already.
	s := &squashed{dev: os.NewFile(uintptr(fd), "/dev/fuse"), text: text, user: u, asked: map[uint32]string{}}
	done := make(chan bool)
	go func() { defer close(done); s.answerAll() }()
	t.Cleanup(func() {
		unix.Unmount(d, unix.MNT_DETACH)
		s.dev.Close() // ends every request that has no answer
		<-done
	})
	return s, d
}

func (s *squashed) answerAll() {
	buf := make([]byte, 1<<20)
	for {
		n, err := s.dev.Read(buf)
		if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EINTR) {
			continue // the request was taken back
		}
		var in fuseIn
		if err != nil || binary.Read(bytes.NewReader(buf[:n]), binary.NativeEndian, &in) != nil {
			return
		}
		if out, errno, ok := s.reply(in, buf[binary.Size(in):n]); ok {
			var b bytes.Buffer
			binary.Write(&b, binary.NativeEndian, []uint32{uint32(16 + len(out)), uint32(-int32(errno))})
			binary.Write(&b, binary.NativeEndian, in.Unique)
			b.Write(out)
			s.dev.Write(b.Bytes())
		}
	}
}

// reply answers one request; false if it gets no answer.
func (s *squashed) reply(in fuseIn, args []byte) (out []byte, errno syscall.Errno, ok bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	switch in.Opcode {
	case fuseLookup, fuseOpen, fuseRead:
		s.asked[in.Opcode] = fmt.Sprint(in.UID, ":", in.GID)
		if in.UID != s.user.UID || in.GID != s.user.GID {
			return nil, syscall.EACCES, true
		}
	}
	switch in.Opcode {
	case fuseInit:
		var init [64]byte
		binary.NativeEndian.PutUint32(init[0:], 7)
		binary.NativeEndian.PutUint32(init[4:], 31)
		binary.NativeEndian.PutUint32(init[20:], 1<<16) // max_write
		return init[:], 0, true
	case fuseLookup:
		node, found := map[string]uint64{"err": fuseFile, "hang": fuseHang}[strings.TrimRight(string(args), "\x00")]
		if !found {
			return nil, syscall.ENOENT, true
		}
		entry := make([]byte, 40)
		binary.NativeEndian.PutUint64(entry, node)
		return append(entry, s.attr(node)...), 0, true
	case fuseGetattr:
		return append(make([]byte, 16), s.attr(in.Node)...), 0, true
	case fuseOpen:
		return make([]byte, 16), 0, true
	case fuseRead:
		if in.Node == fuseHang {
			s.hanging = int(in.PID)
			return nil, 0, false
		}
		offset, size := binary.NativeEndian.Uint64(args[8:]), uint64(binary.NativeEndian.Uint32(args[16:]))
		offset = min(offset, uint64(len(s.text)))
		return []byte(s.text)[offset:min(offset+size, uint64(len(s.text)))], 0, true
	case fuseRelease, fuseFlush:
		return nil, 0, true
	case fuseForget, fuseBatchForget, fuseInterrupt:
		return nil, 0, false
	}
	return nil, syscall.ENOSYS, true
}

// attr is a struct fuse_attr: files are the user's alone.
func (s *squashed) attr(node uint64) []byte {
	mode, size := uint32(syscall.S_IFREG|0o600), uint64(len(s.text))
	if node == fuseRoot {
		mode, size = syscall.S_IFDIR|0o700, 0
	}
	a := make([]byte, 88)
	binary.NativeEndian.PutUint64(a[0:], node)
	binary.NativeEndian.PutUint64(a[8:], size)
	for i, v := range []uint32{mode, 1, s.user.UID, s.user.GID} {
		binary.NativeEndian.PutUint32(a[60+4*i:], v)
	}
	return a
}

func (s *squashed) reader() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.hanging
}

// A file on a server that squashes root is read: it sees the user in every request.
func TestServerThatSquashesRoot(t *testing.T) {
	u := nobody(t)
	u.GID--
	s, d := serve(t, u, "starting\n"+oom)
	path := filepath.Join(d, "err")
	if _, err := os.ReadFile(path); !errors.Is(err, syscall.EACCES) {
		t.Fatalf("the server lets root in (%v): it proves nothing", err)
	}
	r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}})
	if r.State != StateOK || r.Signature != "pytorch" {
		t.Errorf("got %+v; the server was asked by %v", r, s.asked)
	}
	if r := ask(t, u, Ask{Op: OpMark, Files: []File{{Path: path}}}); !r.Mark.Exists || r.Mark.Size != int64(len(s.text)) {
		t.Errorf("got %+v", r)
	}
	want := fmt.Sprint(u.UID, ":", u.GID)
	for _, op := range []uint32{fuseLookup, fuseOpen, fuseRead} {
		if s.asked[op] != want {
			t.Errorf("operation %d was asked for by %q, want %s", op, s.asked[op], want)
		}
	}
}

// A server that does not answer holds the child, which nothing can kill then, and
// not who asked.
func TestDeadlineOfAHangingServer(t *testing.T) {
	u := nobody(t)
	s, d := serve(t, u, oom)
	returned := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := Run(context.Background(), u, Ask{Op: OpScan, Files: []File{{Path: filepath.Join(d, "hang")}}})
		returned <- err
	}()
	select {
	case err := <-returned:
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took < deadline[OpScan] {
			t.Errorf("got %v after %s", err, took)
		}
	case <-time.After(time.Minute): // twelve times the deadline
		t.Fatal("waits for a server that does not answer")
	}
	pid := s.reader()
	if pid == 0 {
		t.Skip("the machine is too slow: the child had not come to read")
	}
	if gone(pid) {
		t.Error("the child has ended: the server did not hold it, which proves nothing")
	}
	if err := s.dev.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, fmt.Sprintf("the child %d is reaped", pid), func() bool {
		_, err := os.Stat(fmt.Sprint("/proc/", pid))
		return err != nil
	})
}

// In the very read every thread has the user's rights and no more.
func TestCredentialsWhileItReads(t *testing.T) {
	u := nobody(t)
	s, d := serve(t, u, oom)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go run(ctx, u, Ask{Op: OpScan, Files: []File{{Path: filepath.Join(d, "hang")}}})
	until(t, "the child reads", func() bool { return s.reader() != 0 })
	checkThreads(t, s.reader(), u)
}
