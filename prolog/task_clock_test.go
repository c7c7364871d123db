// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package prolog

import (
	"os"
	"strings"
	"testing"
	"testing/synctest" // not in Go 1.24, with which CARMA builds
	"time"
)

// Nobody waits for a process that has died, and everybody for one that lives, whatever
// becomes of the clock by which files are dated.
func TestTasksGiveUp(t *testing.T) {
	w := newWorld(t)
	if err := w.markUndecided(hook(7), false); err != nil {
		t.Fatal(err)
	}
	path := taskPath(w.RunDir, 7)
	synctest.Test(t, func(t *testing.T) {
		begin, lives := time.Now(), time.Hour
		go func() {
			for n := 0; time.Since(begin) < lives; n++ {
				// an hour back, none, an hour forwards
				at := begin.Add(time.Duration(n%3-1)*time.Hour + time.Duration(n)*time.Second)
				if err := os.Chtimes(path, at, at); err != nil {
					t.Error(err)
				}
				time.Sleep(10 * time.Second)
			}
		}()
		var b strings.Builder
		err := Task(&b, w.RunDir, func(name string) string {
			return map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "3", "CUDA_VISIBLE_DEVICES": "3"}[name]
		})
		if err == nil || !strings.Contains(b.String(), "export CUDA_VISIBLE_DEVICES=\n") {
			t.Errorf("%v\n%s", err, b.String())
		}
		if waited := time.Since(begin) - lives; waited < taskGivesUpAt-10*time.Second ||
			waited > taskGivesUpAt+10*time.Second {
			t.Errorf("it gave up %v after the other had died", waited)
		}
		// The SPANK plugin ends a program that says nothing for five minutes.
		if lines, least := strings.Count(b.String(), "\n"), int(lives/(30*time.Second)); lines < least {
			t.Errorf("%d lines in %v, want %d at least", lines, lives, least)
		}
	})
}
