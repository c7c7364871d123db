// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/sctl"
)

// ExitOf asks slurmctld how the job ended. An Epilog started by slurmstepd is told
// 0:0 of every job (slurmstepd/mgr.c, _run_prolog_epilog, 24.05 to 25.11).
func ExitOf(ctx context.Context, log *slog.Logger, h *jobenv.Hook, slurm sctl.Client) {
	j, err := slurm.Job(ctx, h.JobID)
	if err != nil || j.UID != h.UID {
		log.Error("query how a job ended", "job", h.JobKey, "error", err)
		return
	}
	h.Exit = jobenv.Exit{Code: j.ExitCode, Signal: j.ExitSignal}
}

// OpenLog appends to a file; without it, messages go to slurmd.
func OpenLog(path string) *slog.Logger {
	out := os.Stderr
	if f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW, 0o600); err == nil {
		out = f
		leavePipe(f)
	}
	return slog.New(slog.NewTextHandler(out, nil))
}

// leavePipe closes the pipe from which slurmd reads a hook's output; a crash goes to the log.
// Up to 22.05 slurmd kills a hook, and drains the node, when a signal comes to the reading
// thread: to rotate its log, or of scontrol reconfigure (run_command.c, poll). slurmd is
// patient with a hook done with its output.
func leavePipe(log *os.File) {
	null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer null.Close()
	unix.Dup3(int(null.Fd()), 1, 0)
	unix.Dup3(int(log.Fd()), 2, 0)
}

// Groups looks up the supplementary groups of a user; the look-up may go to a
// silent directory service.
func Groups(ctx context.Context, name string, gid uint32) []uint32 {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	done := make(chan []uint32, 1)
	go func() {
		ids := []uint32{gid}
		if u, err := user.Lookup(name); err == nil {
			list, _ := u.GroupIds()
			for _, s := range list {
				if id, err := strconv.ParseUint(s, 10, 32); err == nil && uint32(id) != gid {
					ids = append(ids, uint32(id))
				}
			}
		}
		done <- ids
	}()
	select {
	case ids := <-done:
		return ids
	case <-ctx.Done():
		return []uint32{gid}
	}
}

// Group looks up a group, which may hang as above.
func Group(ctx context.Context, name string) (gid uint32, ok bool) {
	done := make(chan *user.Group, 1)
	go func() {
		g, _ := user.LookupGroup(name)
		done <- g
	}()
	select {
	case g := <-done:
		if g == nil {
			return 0, false
		}
		id, err := strconv.ParseUint(g.Gid, 10, 32)
		return uint32(id), err == nil
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	return 0, false
}
