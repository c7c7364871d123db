// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carma/db"
	"carma/gres"
	"carma/gres/lease"
	"carma/prolog"
	"carma/slurmbridge/jobenv"
)

// lockAll starts this program as one that locks all it can.
const lockAll = "lock-all"

// lockUntilClosed opens every file below some directories, takes every lock on it that the
// kernel grants, and keeps them until its stdin is closed.
func lockUntilClosed(dirs []string) {
	var held []*os.File
	for _, dir := range dirs {
		filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return nil
			}
			for _, how := range []int{os.O_RDWR, os.O_RDONLY} {
				f, err := os.OpenFile(path, how|syscall.O_NONBLOCK, 0)
				if err != nil {
					continue
				}
				held = append(held, f)
				for _, kind := range []int16{unix.F_WRLCK, unix.F_RDLCK} {
					unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind})
				}
				unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
				fmt.Println(path)
				break
			}
			return nil
		})
	}
	fmt.Println(".")
	io.Copy(io.Discard, os.Stdin)
	for _, f := range held {
		f.Close()
	}
}

// stranger runs lockUntilClosed as a user whom nobody knows, and returns what it has open.
func stranger(t *testing.T, dirs ...string) (open []string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{lockAll}, dirs...)...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "." {
		open = append(open, lines.Text())
	}
	return open
}

// filesOfNode are where a node keeps its leases and its records.
type filesOfNode struct{ runDir, db string }

// lease gives a job a GPU, as a Prolog does.
func (n filesOfNode) lease(t *testing.T, id uint32) error {
	book, err := lease.Open(n.runDir, time.Second)
	if err != nil {
		return err
	}
	defer book.Close()
	readings := []gres.Reading{{GPU: gres.GPU{UUID: "GPU-a", TotalMiB: 1000}}}
	if err := book.PutReadings(t.Context(), readings); err != nil {
		return err
	}
	pick := func([]gres.Reading, []gres.Lease, string) ([]string, gres.Daemon) { return []string{"GPU-a"}, "" }
	job := lease.Job{JobKey: jobenv.JobKey{JobID: id}}
	_, err = book.Acquire(t.Context(), job, gres.Request{GPUs: 1, ReserveMiB: 1}, pick)
	return err
}

// record writes a large record, as an Epilog does.
func (n filesOfNode) record(t *testing.T, id uint32) error {
	d, err := db.Open(n.db)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Put(t.Context(), db.Attempt{JobID: id, Node: "n1", User: "alice", Start: time.Unix(1, 0),
		End:  time.Unix(2, 0),
		Name: strings.Repeat("x", 60000)})
}

// A user who locks every file of CARMA's that the user can open fails no hook and lets no
// log grow, whatever modes an older CARMA left.
func TestLocksOfUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("", "carma")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := filesOfNode{filepath.Join(dir, "run"), filepath.Join(dir, "lib", "carma.db")}
	if err := errors.Join(os.Chmod(dir, 0o755), prolog.Prepare(n.runDir), n.lease(t, 1), n.record(t, 1)); err != nil {
		t.Fatal(err)
	}
	book, err := lease.Open(n.runDir, time.Second) // the agent: -wal and -shm stay
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if err := n.lease(t, 2); err != nil {
		t.Fatal(err)
	}
	logs := []string{filepath.Join(n.runDir, "leases.db-wal"), n.db + "-wal"}
	for _, file := range logs { // as they were before
		name := strings.TrimSuffix(file, "-wal")
		if err := errors.Join(os.Chmod(name, 0o644), os.Chmod(file, 0o644), os.Chmod(name+"-shm", 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(n.lease(t, 3), n.record(t, 3)); err != nil {
		t.Fatal(err)
	}
	p := &db.Publisher{Path: n.db}
	defer p.Close()
	public := []string{filepath.Join(db.PublicDir(n.db), "all.db"), filepath.Join(db.PublicDir(n.db), "gpus.db")}
	for published := false; !published; time.Sleep(10 * time.Millisecond) {
		if err := p.Publish(t.Context(), db.Readers{}); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(public[1])
		published = err == nil
	}
	if open := stranger(t, append(public, dir)...); !slices.Equal(open, public) {
		t.Errorf("a user can open %q", open)
	}
	for id := range uint32(150) {
		if err := errors.Join(n.lease(t, 4+id), n.record(t, 4+id), p.Publish(t.Context(), db.Readers{})); err != nil {
			t.Fatalf("after %d jobs: %v", id, err)
		}
	}
	for _, file := range logs {
		// SQLite begins it anew from 1,000 pages on.
		if info, err := os.Stat(file); err != nil || info.Size() > 3*1000*4096 {
			t.Errorf("%s has grown to %d bytes, %v", file, info.Size(), err)
		}
	}
}
