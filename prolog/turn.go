// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"carma/db/file"
)

// turnFile holds when this node may requeue its next job, in nanoseconds since
// 1970. The file is locked only while a turn is taken.
const turnFile = "requeue.turn"

// requeueEvery is the time between two requeues by a node: each costs slurmctld some RPCs.
// The cluster's rate is that of all nodes. Tests shorten it.
var requeueEvery = time.Second / 2

// turnWait is how long an Epilog waits for its turn at most: all the jobs ending at
// once on a node, at two a second.
const turnWait = 45 * time.Second

// turn waits until this node may requeue one more job: an array whose tasks all
// run out of memory must not become a storm of RPCs. Epilogs go in the order in
// which they get the lock on the file. The wait is not the job's: the next step has
// a deadline of its own, from the context returned by turn.
func (n *Node) turn(ctx context.Context) (context.Context, context.CancelFunc, error) {
	at, err := takeTurn(ctx, filepath.Join(n.RunDir, turnFile), requeueEvery)
	if err != nil {
		return nil, nil, fmt.Errorf("wait for the requeue rate limit: %w", err)
	}
	time.Sleep(time.Until(at))
	ctx, cancel := n.part(ctx)
	return ctx, cancel, nil
}

// part is a context for the next part of a hook: with a deadline of its own, so
// that a hung part does not cost the others their time.
func (n *Node) part(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), n.Config.Hooks.Deadline.D())
}

var errTooMany = errors.New("too many requeues from this node at once")

// takeTurn returns at the caller's turn and puts the next one off.
func takeTurn(ctx context.Context, path string, every time.Duration) (time.Time, error) {
	f, err := file.Lock(ctx, path)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 64))
	if err != nil {
		return time.Time{}, err
	}
	now := time.Now()
	at := now
	if next, err := strconv.ParseInt(string(text), 10, 64); err == nil && next > now.UnixNano() {
		at = time.Unix(0, next)
	}
	switch wait := at.Sub(now); {
	case wait > turnWait+every: // a clock set back makes nobody wait
		at = now
	case wait > turnWait:
		return time.Time{}, errTooMany
	}
	// The length does not change before the year 2286.
	_, err = f.WriteAt(strconv.AppendInt(nil, at.Add(every).UnixNano(), 10), 0)
	return at, err
}
