// SPDX-License-Identifier: Apache-2.0

// Command progress runs the Makefile's long targets so that their progress is
// visible: a line for each finished test, a sign of life when nothing else is
// printed, the failures at the end, and a line that says passed or failed and
// how long the target took.
//
//	progress go ARGUMENT...          go test with the arguments
//	progress make NAME TARGET...     make of each target, called NAME
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// quiet is how long nothing is printed before there is a sign of life.
const quiet = 20 * time.Second

func main() {
	start, status := time.Now(), 2
	syscall.Umask(0o022) // the programs built and tested run as other users too
	switch args := os.Args[1:]; {
	case len(args) > 1 && args[0] == "go":
		status = goTest(args[1:])
	case len(args) > 2 && args[0] == "make":
		status = makeAll(newScreen(os.Stdout), func() time.Duration { return time.Since(start) }, args[1], args[2:])
	default:
		fmt.Fprintln(os.Stderr, "usage: progress go ARGUMENT... | make NAME TARGET...")
	}
	os.Exit(status)
}

// screen is where lines go, and remembers the time of the last line.
type screen struct {
	mu   sync.Mutex
	w    io.Writer
	last time.Time
}

func newScreen(w io.Writer) *screen { return &screen{w: w, last: time.Now()} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
	return s.w.Write(p)
}

// still prints the status after each interval in which nothing else was printed,
// until stop is called.
func (s *screen) still(status func() string) (stop func()) {
	done := make(chan struct{})
	go func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-done:
				tick.Stop()
				return
			case <-tick.C:
			}
			s.mu.Lock()
			since := time.Since(s.last)
			s.mu.Unlock()
			if since >= quiet {
				fmt.Fprintln(s, status())
			}
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

// run runs a command and hands each line of its output to take. Ctrl-C reaches the
// command itself, which shares the terminal; the command's output after a Ctrl-C
// is still shown.
func run(cmd *exec.Cmd, take func(line string)) error {
	r, w := io.Pipe()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, w, w
	cmd.WaitDelay = 2 * time.Second // a daemon that keeps the pipe open
	interrupts := make(chan os.Signal, 4)
	signal.Notify(interrupts, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(interrupts)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for in := bufio.NewReader(r); ; {
			line, err := in.ReadString('\n')
			if line != "" {
				take(line)
			}
			if err != nil {
				return
			}
		}
	}()
	if err := cmd.Start(); err != nil {
		w.Close()
		<-read
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-interrupts:
			if s == syscall.SIGTERM { // sent to us alone
				_ = cmd.Process.Signal(s)
			}
		case err := <-ended:
			w.Close()
			<-read
			if errors.Is(err, exec.ErrWaitDelay) {
				err = nil
			}
			return err
		}
	}
}

// took is a duration as people say it: 3.2 s, 95 s, 4 min 10 s.
func took(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
}
