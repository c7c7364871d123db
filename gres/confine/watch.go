// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// watchEvery is how often Watch looks without a reason.
const watchEvery = 10 * time.Second

// Watch calls look when a job may have been given a cgroup not made by a Prolog, and now and
// then, until ctx ends. Only in cgroup v1 do such cgroups open GPUs.
func Watch(ctx context.Context, g Guard, look func()) error {
	v1, ok := g.(*v1)
	if !ok {
		look()
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch for jobs that are not confined: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	defer f.Close()
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	events := make([]byte, 64<<10)
	for ctx.Err() == nil {
		if err := v1.watch(fd); err != nil {
			return err
		}
		look()
		f.SetReadDeadline(time.Now().Add(watchEvery))
		if ctx.Err() != nil {
			return nil
		}
		if _, err := f.Read(events); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("watch for jobs that are not confined: %w", err)
		}
	}
	return nil
}

// watch starts to watch new cgroups below which jobs get their cgroups.
func (g *v1) watch(fd int) error {
	dirs := []string{g.root}
	for _, home := range g.homes {
		users, err := filepath.Glob(filepath.Join(home, "uid_*"))
		if err != nil {
			return err
		}
		dirs = append(append(dirs, home), users...)
	}
	for _, dir := range dirs {
		_, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_ONLYDIR)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("watch %s for jobs that are not confined: %w", dir, err)
		}
	}
	return nil
}
