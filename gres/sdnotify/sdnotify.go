// SPDX-License-Identifier: Apache-2.0

// Package sdnotify tells systemd a service's state: started, alive, stopping
// (sd_notify(3), Type=notify and WatchdogSec= of systemd.service(5)). Without
// systemd the package does nothing.
package sdnotify

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notifier speaks for a service. Its zero value is silent.
type Notifier struct {
	socket  string
	every   time.Duration // half of the time that the watchdog waits; 0: no watchdog
	started bool
	last    time.Time
}

// New reads systemd's variables in the environment: NOTIFY_SOCKET,
// WATCHDOG_USEC and WATCHDOG_PID.
func New(getenv func(string) string) *Notifier {
	n := &Notifier{socket: getenv("NOTIFY_SOCKET")}
	pid := getenv("WATCHDOG_PID")
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.every = time.Duration(usec) * time.Microsecond / 2
	}
	return n
}

// Alive tells systemd that the service works: the first time that it has
// started, later that it lives, as often as the watchdog asks for.
func (n *Notifier) Alive() error {
	switch {
	case !n.started:
		n.started, n.last = true, time.Now()
		return n.send("READY=1", "WATCHDOG=1")
	case n.every > 0 && time.Since(n.last) >= n.every:
		n.last = time.Now()
		return n.send("WATCHDOG=1")
	}
	return nil
}

// Stopping says that the service ends because it was told to.
func (n *Notifier) Stopping() error { return n.send("STOPPING=1") }

func (n *Notifier) send(lines ...string) error {
	if n.socket == "" {
		return nil
	}
	// net takes a leading "@" for the abstract namespace, as systemd does.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell systemd %s: %w", lines[0], err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(strings.Join(lines, "\n"))); err != nil {
		return fmt.Errorf("tell systemd %s: %w", lines[0], err)
	}
	return nil
}
