// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"carma/db/accesslist"
	"carma/db/file"
	"carma/gres"
)

// A daemon is one user's for as long as jobs of the user are clients of the daemon: a tenure. The next user gets
// another daemon, with a new pipe directory, sockets, FIFO and logs. For what a user has opened
// stays open: a silent connection stops a daemon (535 and 550), an O_PATH descriptor
// connects after the access list has gone, what is written into the FIFO is a server's word, and
// a user can stop the own server with SIGSTOP.
//
// A daemon without a user waits for one: no job waits for the start of a daemon.

// tenure is what a file of the pipe directory says of the directory's daemon. Root alone reads the file.
type tenure struct {
	process       // zero: not started yet
	User    int64 `json:"user"` // gres.Nobody: no user has reached it
	// Began tells tenures apart, in the position of a log (server_log.go).
	Began uint32 `json:"began"`
	Group string `json:"group"` // cgroup of the daemon and of its servers; empty: none
}

func tenureFile(pipeDir string) string { return filepath.Join(pipeDir, "tenure.json") }

// readTenure reads what is noted of a pipe directory's daemon; false: nothing is, as of a daemon
// of an earlier program.
func readTenure(pipeDir string) (t tenure, noted bool) {
	t.User = gres.Nobody
	text, err := os.ReadFile(tenureFile(pipeDir))
	return t, err == nil && json.Unmarshal(text, &t) == nil
}

// beginning is a number for a tenure, which no other has of the same GPU.
func beginning() uint32 { return uint32(time.Now().UnixMilli()) & (1<<beganBits - 1) }

func (t tenure) write(pipeDir string) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return file.Replace(tenureFile(pipeDir), text, 0o600)
}

// errOpen says that a file system knows no ACLs: everybody can reach daemons there.
var errOpen = errors.New("the file system of the run directory has no ACLs: every user can reach the MPS daemons")

// The user's directory is root's: nobody else makes or removes a name there. The server runs as the user
// and needs no more than the clients need: to reach "control" and "log".
const rootMay, userMay = accesslist.Read | accesslist.Write | accesslist.Execute, accesslist.Read | accesslist.Execute

// openTo opens a pipe directory to one user; gres.Nobody: to root alone.
func openTo(dir string, user int64) error {
	if user == gres.Nobody {
		if err := os.Chmod(dir, 0o700); err != nil { // first: the mode bounds the ACL
			return err
		}
		return accesslist.Remove(dir)
	}
	err := accesslist.Set(dir, rootMay, userMay, uint32(user))
	if errors.Is(err, unix.ENOTSUP) { // Restricted says so
		return os.Chmod(dir, 0o711)
	}
	return err
}

// Restricted is an error where daemons cannot be kept to one user each.
func (c Control) Restricted() error {
	dir := endedDir(c.RunDir)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = accesslist.Set(dir, rootMay, userMay, 0)
	}
	if errors.Is(err, unix.ENOTSUP) {
		return errOpen
	}
	return err
}

// lockTenures keeps apart what gives daemons to users: Prologs and the agent.
func (c Control) lockTenures(ctx context.Context) (unlock func(), err error) {
	f, err := file.Lock(ctx, filepath.Join(c.RunDir, "mps", ".lock"))
	if err != nil {
		return nil, fmt.Errorf("lock the MPS daemons' directory: %w", err)
	}
	return func() { f.Close() }, nil
}

// Tenant is the user of a daemon, gres.Nobody if no user has reached the daemon yet, and whether the daemon runs.
func (c Control) Tenant(d gres.Daemon) (user int64, runs bool) {
	t, _ := readTenure(PipeDir(c.RunDir, d))
	return t.User, t.runs()
}

// Keep has a daemon run for a user; gres.Nobody: for a user to come. The function names the user, by the ledger,
// given the present one, and is called under the lock. What an earlier user has or keeps has ended when the daemon
// of another starts.
func (c Control) Keep(ctx context.Context, d gres.Daemon, user func(now int64) (int64, error)) error {
	for range 3 { // end one, start one, open one
		done, err := c.keep(ctx, d, user)
		if err != nil {
			return fmt.Errorf("keep the MPS daemon of GPU %s: %w", d, err)
		} else if done {
			return nil
		}
	}
	return nil // the user changes all the time
}

func (c Control) keep(ctx context.Context, d gres.Daemon, user func(now int64) (int64, error)) (done bool, err error) {
	if err := os.MkdirAll(endedDir(c.RunDir), 0o700); err != nil {
		return false, err
	}
	unlock, err := c.lockTenures(ctx)
	if err != nil {
		return false, err
	}
	dir := PipeDir(c.RunDir, d)
	t, noted := readTenure(dir)
	want, err := user(t.User)
	if !noted && err == nil && want != gres.Nobody {
		// Of an earlier program: the user's jobs run.
		if p := founder(dir); p.runs() {
			t = tenure{process: p, User: want, Began: beginning()}
			err = t.write(dir)
		}
	}
	if err == nil && t.runs() && (t.User == want || t.User == gres.Nobody) {
		if t.User != want {
			t.User = want
			err = t.write(dir)
		}
		if err == nil {
			err = openTo(dir, t.User)
		}
		unlock()
		return true, err
	}
	if err == nil && t.User == want && want != gres.Nobody {
		// The daemon has ended under the user's jobs, whose clients the servers may go on serving.
		err = openTo(dir, gres.Nobody)
	} else if err == nil {
		t = tenure{User: gres.Nobody}
		err = retire(c.RunDir, d)
	}
	unlock()
	if err == nil {
		err = c.clear(ctx, name(d))
	}
	if err == nil {
		err = c.start(ctx, d, t)
	}
	return false, err
}

// End ends a daemon that nobody is to have, and whatever the user keeps of the daemon. used is asked while no
// Prolog can give the daemon to a job: a used daemon goes on.
func (c Control) End(ctx context.Context, d gres.Daemon, used func() (bool, error)) error {
	err := c.end(ctx, d, used)
	if err != nil {
		return fmt.Errorf("stop MPS daemon of GPU %s: %w", d, err)
	}
	return nil
}

func (c Control) end(ctx context.Context, d gres.Daemon, used func() (bool, error)) error {
	if err := os.MkdirAll(endedDir(c.RunDir), 0o700); err != nil {
		return err
	}
	unlock, err := c.lockTenures(ctx)
	if err != nil {
		return err
	}
	on, err := used()
	if err == nil && !on {
		err = retire(c.RunDir, d)
	}
	unlock()
	if err != nil || on {
		return err
	}
	return c.clear(ctx, name(d))
}

// Kill ends a silent daemon. Keep then starts another for the same user, whose running jobs keep their
// servers.
func (c Control) Kill(ctx context.Context, d gres.Daemon) error {
	if t, noted := readTenure(PipeDir(c.RunDir, d)); noted && t.runs() {
		if err := t.kill(ctx); err != nil {
			return fmt.Errorf("stop MPS daemon of GPU %s: %w", d, err)
		}
	}
	return nil
}

// endedDir has the pipe directories of ended tenures, until what belongs to the tenures has
// ended. Root alone goes there.
func endedDir(runDir string) string { return filepath.Join(runDir, "mps", ".ended") }

// retire takes a daemon's pipe directory away, by which the tenure is over for everybody.
func retire(runDir string, d gres.Daemon) error {
	to := filepath.Join(endedDir(runDir), name(d)+"."+strconv.FormatInt(time.Now().UnixNano(), 36))
	err := os.Rename(PipeDir(runDir, d), to)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && d.Many() {
		if err = os.Remove(noteOf(runDir, d)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return err
}

// ClearEnded ends what is left of ended tenures, as of sets of GPUs whose end did not succeed, or of an agent that was
// killed in between. No job of the same daemon need come.
func (c Control) ClearEnded(ctx context.Context) error {
	entries, err := os.ReadDir(endedDir(c.RunDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		daemon := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name()))
		one := c.clearOne(ctx, filepath.Join(endedDir(c.RunDir), e.Name()), filepath.Join(c.RunDir, "mps", daemon))
		err = errors.Join(err, one)
	}
	if err != nil {
		return fmt.Errorf("end what is left of MPS daemons: %w", err)
	}
	return nil
}

// clear ends what is left of the ended tenures of a daemon. Until then no other one starts.
func (c Control) clear(ctx context.Context, daemon string) error {
	dirs, err := filepath.Glob(filepath.Join(endedDir(c.RunDir), daemon+".*"))
	for _, dir := range dirs {
		err = errors.Join(err, c.clearOne(ctx, dir, filepath.Join(c.RunDir, "mps", daemon)))
	}
	return err
}

// clearOne ends the daemon first, which could start servers.
func (c Control) clearOne(ctx context.Context, dir, was string) error {
	t, _ := readTenure(dir)
	if t.PID == 0 { // its starter has ended meanwhile
		t.process = founder(dir)
	}
	if t.PID != 0 {
		if err := t.kill(ctx); err != nil {
			return err
		}
	}
	var err error
	if t.Group != "" && c.Groups != nil {
		err = c.Groups.Kill(ctx, t.Group)
	} else { // also where an earlier agent had cgroups
		servers := serversOf(was)
		// The next tenure's daemon has the same path, and starts when dir is gone: then servers are of the next tenure.
		if _, gone := os.Lstat(dir); errors.Is(gone, fs.ErrNotExist) {
			return nil
		}
		for _, server := range servers {
			err = errors.Join(err, server.kill(ctx))
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
