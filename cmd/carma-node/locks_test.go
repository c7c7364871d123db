// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carma/db"
	"carma/gres"
	"carma/gres/lease"
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

// A user who locks every file of CARMA's that the user can open keeps no hook waiting and
// lets no log grow, whatever modes an older CARMA left.
func TestLocksOfUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("", "carma")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	runDir, records := filepath.Join(dir, "run"), filepath.Join(dir, "lib")
	if err := prepare(runDir); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(records, "carma.db")
	use := func(id uint32) (slowest time.Duration) {
		t.Helper()
		timed := func(what string, f func() error) {
			t.Helper()
			begin := time.Now()
			if err := f(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			slowest = max(slowest, time.Since(begin))
		}
		timed("lease", func() error {
			book, err := lease.Open(runDir, time.Second)
			if err != nil {
				return err
			}
			defer book.Close()
			if err := book.PutReadings(t.Context(), []gres.Reading{{GPU: gres.GPU{UUID: "GPU-a", TotalMiB: 1000}}}); err != nil {
				return err
			}
			pick := func([]gres.Reading, []gres.Lease, string) ([]string, gres.Daemon) { return []string{"GPU-a"}, "" }
			_, err = book.Acquire(t.Context(), lease.Job{JobKey: gres.JobKey{JobID: id}}, gres.Request{GPUs: 1, ReserveMiB: 1}, pick)
			return err
		})
		timed("record", func() error {
			d, err := db.Open(path)
			if err != nil {
				return err
			}
			defer d.Close()
			return d.Put(t.Context(), db.Attempt{JobID: id, Node: "n1", User: "alice", Start: time.Unix(1, 0), End: time.Unix(2, 0), Name: strings.Repeat("x", 60000)})
		})
		return slowest
	}
	use(1)
	// The agent has both open, so that -wal and -shm stay.
	book, err := lease.Open(runDir, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	// As CARMA left them before.
	for _, suffix := range []string{"", "-wal", "-shm"} {
		for _, file := range []string{filepath.Join(runDir, "leases.db"), path} {
			if err := os.Chmod(file+suffix, 0o644); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
	}
	use(2)
	p := &db.Publisher{Path: path}
	defer p.Close()
	published := func() bool {
		t.Helper()
		if err := p.Publish(t.Context(), db.Readers{}); err != nil {
			t.Fatal(err)
		}
		_, err := os.Stat(filepath.Join(db.PublicDir(path), "gpus.db"))
		return err == nil
	}
	for !published() {
		time.Sleep(10 * time.Millisecond)
	}
	open := stranger(t, dir)
	if len(open) == 0 {
		t.Fatal("a user can open nothing: what is published is not")
	}
	for _, file := range open {
		if strings.HasPrefix(filepath.Base(file), "leases.") || strings.HasPrefix(file, path) && filepath.Dir(file) != db.PublicDir(path) {
			t.Errorf("a user can open %s", file)
		}
	}
	for id := range uint32(150) {
		slowest := use(3 + id)
		published()
		if t.Failed() {
			t.Fatalf("after %d jobs, one of %v", id, slowest)
		}
	}
	for _, wal := range []string{filepath.Join(runDir, "leases.db-wal"), path + "-wal"} {
		// SQLite begins it anew from 1,000 pages on.
		if info, err := os.Stat(wal); err == nil && info.Size() > 3*1000*4096 {
			t.Errorf("%s has grown to %d bytes", wal, info.Size())
		}
	}
}
