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

	"carma/gres"
)

// ErrNotGiven means that a user was not given a daemon: it is still another user's, or none runs.
var ErrNotGiven = errors.New("the user was not given it")

// lookEvery is the pause between two looks at what is awaited.
const lookEvery = 20 * time.Millisecond

// noneFor is how many looks in a row at a single GPU find no trace of a daemon before a Prolog gives up: the agent
// makes the daemon's directory anew between two users. Looks, not time: on a busy machine a Prolog may sleep for
// longer than the agent takes.
const noneFor = 50

// Admit makes a daemon ready for the job of a user who holds a lease by now: it waits until the agent
// has ended all that an earlier user had of the daemon, gives the daemon to the user, alone, and waits
// for a server of that user. Clients that come while a server starts may be refused (CUDA's errors 805
// and 807).
func (c Control) Admit(ctx context.Context, d gres.Daemon, uid uint32) error {
	err := c.give(ctx, d, int64(uid))
	if err == nil {
		err = c.startServer(ctx, d, uid)
	}
	if err != nil {
		return fmt.Errorf("prepare the MPS daemon of GPU %s: %w", d, err)
	}
	return nil
}

// give waits until the daemon is the user's.
func (c Control) give(ctx context.Context, d gres.Daemon, user int64) error {
	for none := 0; ; {
		given, why := c.tryGive(ctx, d, user)
		if given {
			return nil
		}
		if !errors.Is(why, fs.ErrNotExist) {
			none = 0
		} else {
			// The agent makes the daemon when all of the earlier user's has ended. Without an agent
			// there is none.
			none++
			if ending, _ := filepath.Glob(filepath.Join(endedDir(c.RunDir), name(d)+".*")); len(ending) > 0 {
				none = 0
			}
			if why = errors.New("there is none"); !d.Many() && none > noneFor {
				return errors.Join(ErrNotGiven, why)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrNotGiven, why)
		case <-time.After(lookEvery):
		}
	}
}

// tryGive gives the user a daemon that runs and that no other user has reached; why: what prevents it.
func (c Control) tryGive(ctx context.Context, d gres.Daemon, user int64) (given bool, why error) {
	dir := PipeDir(c.RunDir, d)
	if _, err := os.Stat(dir); err != nil {
		return false, err
	}
	unlock, err := c.lockTenures(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	t, _ := readTenure(dir)
	switch {
	case !t.runs():
		return false, errors.New("it does not come up")
	case t.User != user && t.User != gres.Nobody:
		return false, fmt.Errorf("it is still user %d's", t.User)
	case t.User != user:
		t.User = user
		if err := t.write(dir); err != nil {
			return false, err
		}
	}
	err = openTo(dir, user)
	return err == nil, err
}

// startServer has the daemon start a server for a user, unless there is one, and waits
// until the server takes clients. The daemon answers before the server is there,
// whether or not a server ever comes.
func (c Control) startServer(ctx context.Context, d gres.Daemon, uid uint32) error {
	asked, seen := false, 0
	for {
		servers, err := c.servers(ctx, d)
		if err != nil {
			return err
		}
		mine, others := "", -1
		for _, pid := range servers {
			if of := uidOf(pid); of == int(uid) {
				mine = fmt.Sprint(pid)
			} else if of >= 0 {
				others = of
			}
		}
		switch {
		case others >= 0: // no client of this user would be served
		case mine != "":
			status, err := c.do(ctx, d, "get_server_status "+mine)
			if err != nil && !gone(err) {
				return err
			}
			if strings.HasPrefix(status, "ACTIVE") {
				return nil
			}
			seen = 0
		case !asked:
			if _, err := c.do(ctx, d, fmt.Sprintf("start_server -uid %d", uid)); err != nil {
				return err
			}
			asked = true
		default:
			// The server has not come, or has ended at once, as without a GPU.
			if seen++; seen > serverLooks {
				return fmt.Errorf("no server for user %d starts", uid)
			}
		}
		select {
		case <-ctx.Done():
			if others >= 0 {
				return fmt.Errorf("%w: a server of user %d runs", ErrNotGiven, others)
			}
			return fmt.Errorf("its server for user %d does not start: %w", uid, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serverLooks is the number of looks for a started server. A starting server is in the
// list at once (550).
const serverLooks = 10
