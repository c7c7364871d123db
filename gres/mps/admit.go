// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"carma/db/accesslist"
	"carma/db/file"
	"carma/gres"
)

// A GPU belongs to one user at a time, and its pipe directory is open to that user
// alone: one client that connects and says nothing stops a daemon (535 and 550), and
// whoever opens its lock keeps the next one from starting. The server runs as the user
// and needs no more than its clients: to reach "control" and "log". The directory stays
// root's, so that nobody else makes or removes a name in it.

// ErrOpen says that a file system knows no ACLs: everybody can reach its daemons.
var ErrOpen = errors.New("the file system of the run directory has no ACLs: every user can reach the MPS daemons")

// openTo opens a pipe directory to one user and closes it to all others.
func openTo(dir string, uid uint32) error {
	const all, search = accesslist.Read | accesslist.Write | accesslist.Execute, accesslist.Read | accesslist.Execute
	err := accesslist.Set(dir, all, search, uid)
	if errors.Is(err, unix.ENOTSUP) {
		return errors.Join(ErrOpen, os.Chmod(dir, 0o711))
	}
	return err
}

// closeDir closes it to everybody but root. Its mode first: that bounds the ACL.
func closeDir(dir string) error {
	if err := os.Chmod(dir, 0o700); err != nil {
		return err
	}
	return accesslist.Remove(dir)
}

// lockWait is how long a Prolog waits for the agent to have closed directories. It then
// goes on: a job is not to wait for an agent that hangs.
const lockWait = time.Second

// lockAdmission keeps Prologs that open directories and the agent that closes them apart.
func lockAdmission(runDir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	f, err := file.Lock(ctx, filepath.Join(runDir, "mps", ".lock"))
	if errors.Is(err, context.DeadlineExceeded) {
		return func() {}, nil
	} else if err != nil {
		return nil, err
	}
	return func() { f.Close() }, nil
}

// Admit makes a daemon ready for the job of a user that holds a lease by now: it waits
// until the daemon runs, opens its directory to the user alone, and waits for a server of
// that user. Clients that come while a server starts may be refused (CUDA's errors 805
// and 807).
func (c Control) Admit(ctx context.Context, d gres.Daemon, uid uint32) error {
	if err := c.admit(ctx, d, uid); err != nil {
		return fmt.Errorf("prepare the MPS daemon of GPU %s: %w", d, err)
	}
	return nil
}

func (c Control) admit(ctx context.Context, d gres.Daemon, uid uint32) error {
	dir := PipeDir(c.RunDir, d)
	// The agent makes it, and starts anew what has ended. Without an agent there is none.
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && !d.Many() {
		return errors.New("there is none")
	}
	for pidOf(dir) == 0 {
		select {
		case <-ctx.Done():
			return errors.New("it does not come up")
		case <-time.After(20 * time.Millisecond):
		}
	}
	unlock, err := lockAdmission(c.RunDir)
	if err != nil {
		return err
	}
	err = openTo(dir, uid)
	unlock()
	if err != nil && !errors.Is(err, ErrOpen) { // the agent says that, once
		return err
	}
	return c.startServer(ctx, d, uid)
}

// Close closes the directories of daemons that no job uses, and sees to it that the
// others are open to their jobs' user. users tells who that is by the ledger: it is asked
// while no Prolog can open one.
func (c Control) Close(daemons []gres.Daemon, users func() (map[gres.Daemon]uint32, error)) error {
	unlock, err := lockAdmission(c.RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no daemon was ever started
	}
	if err != nil {
		return fmt.Errorf("close MPS pipe directories: %w", err)
	}
	defer unlock()
	of, err := users()
	if err != nil {
		return err
	}
	var open bool
	for _, d := range daemons {
		dir := PipeDir(c.RunDir, d)
		if _, statErr := os.Stat(dir); statErr != nil {
			continue
		}
		uid, used := of[d]
		var dirErr error
		if used {
			dirErr = openTo(dir, uid)
		} else {
			dirErr = closeDir(dir)
		}
		if open = open || errors.Is(dirErr, ErrOpen); dirErr != nil && !errors.Is(dirErr, ErrOpen) {
			err = errors.Join(err, dirErr)
		}
	}
	if open {
		err = errors.Join(err, ErrOpen)
	}
	if err != nil {
		return fmt.Errorf("close MPS pipe directories: %w", err)
	}
	return nil
}

// startServer has the daemon start a server for a user, unless there is one, and waits
// until it takes clients. The daemon answers before the server is there, whether or not
// it ever comes.
func (c Control) startServer(ctx context.Context, d gres.Daemon, uid uint32) error {
	asked, seen := false, 0
	for {
		servers, err := c.servers(ctx, d)
		if err != nil {
			return err
		}
		mine := ""
		for _, pid := range servers {
			if uidOf(pid) == int(uid) {
				mine = fmt.Sprint(pid)
			}
		}
		switch {
		case mine != "":
			status, err := c.Do(ctx, d, "get_server_status "+mine)
			if err != nil && !gone(err) {
				return err
			}
			if strings.HasPrefix(status, "ACTIVE") {
				return nil
			}
			seen = 0
		case !asked && len(servers) > 0:
			// Of a user whose jobs have ended. The daemon ends it when this user's first
			// client comes, and starts another (NVIDIA's MPS guide, provisioning sequence).
			return nil
		case !asked:
			if _, err := c.Do(ctx, d, fmt.Sprintf("start_server -uid %d", uid)); err != nil {
				return err
			}
			asked = true
		default:
			// It has not come, or has ended at once, as without a GPU.
			if seen++; seen > serverLooks {
				return fmt.Errorf("no server for user %d starts", uid)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its server for user %d does not start: %w", uid, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serverLooks is how often a server is looked for that has been started. One that starts
// is in the list at once (550).
const serverLooks = 10
