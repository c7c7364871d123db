// SPDX-License-Identifier: Apache-2.0

//go:build integration || abuse

package devcluster_test

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
)

// running holds the directories of clusters that are up, for Ctrl-C must not
// leave daemons behind.
var running struct {
	sync.Mutex
	dirs map[string]bool
}

// note returns whether it is the first that is heard of dir.
func note(dir string, up bool) (first bool) {
	running.Lock()
	defer running.Unlock()
	_, known := running.dirs[dir]
	running.dirs[dir] = up
	return !known
}

func TestMain(m *testing.M) {
	running.dirs = map[string]bool{}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		running.Lock() // and no cluster starts any more
		for dir, up := range running.dirs {
			if !up {
				continue
			}
			down := devcluster("down", dir)
			down.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a second Ctrl-C does not reach it
			if out, err := down.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "devcluster down: %v\n%s", err, out)
			}
			os.RemoveAll(dir)
		}
		os.Exit(130)
	}()
	os.Exit(m.Run())
}
