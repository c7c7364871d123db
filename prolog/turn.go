// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// turnFile is locked by the Epilog whose turn it is to requeue; its time of
// modification is when the next one may.
const turnFile = "requeue.turn"

// turn waits until this node may requeue one more job: an array whose tasks all
// run out of memory must not become a storm of RPCs.
func (n *Node) turn(ctx context.Context) error {
	const poll = 20 * time.Millisecond
	every := time.Duration(float64(time.Second) / n.Config.Recovery.PerSecond)
	f, err := os.OpenFile(filepath.Join(n.RunDir, turnFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("wait for a turn to requeue: %w", err)
	}
	defer f.Close()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		} else if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return fmt.Errorf("wait for a turn to requeue: %w", err)
		}
		if err := sleep(ctx, poll); err != nil {
			return err
		}
	}
	// A byte tells a file that was used from one just made.
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		// A clock that was set back makes nobody wait longer than one turn.
		if err := sleep(ctx, min(time.Until(info.ModTime().Add(every)), every)); err != nil {
			return err
		}
	}
	_, err = f.WriteAt([]byte{'.'}, 0)
	if err := errors.Join(err, os.Chtimes(f.Name(), time.Now(), time.Now())); err != nil {
		return fmt.Errorf("wait for a turn to requeue: %w", err)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return errors.New("too many jobs of this node came back at once")
	case <-time.After(d):
		return nil
	}
}
