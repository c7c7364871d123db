// SPDX-License-Identifier: Apache-2.0

package sdnotify

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listen is systemd's end; said returns what it heard, "" for nothing.
func listen(t *testing.T, name string) (said func() string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return func() string {
		buf, n := make([]byte, 100), 0
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		receive := func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT) }
		// Datagrams are there once they are sent.
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			if failed := raw.Control(receive); failed != nil {
				t.Fatal(failed)
			}
		}
		if errors.Is(err, unix.EAGAIN) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

func TestNotify(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "s"), "@carma-test-" + strconv.Itoa(os.Getpid())} {
		said := listen(t, name)
		env := map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000000",
			"WATCHDOG_PID": strconv.Itoa(os.Getpid())}
		n := New(func(k string) string { return env[k] })
		alive := func(want string) {
			t.Helper()
			if err := n.Alive(); err != nil {
				t.Fatal(err)
			}
			if got := said(); got != want {
				t.Errorf("said %q, want %q", got, want)
			}
		}
		alive("READY=1\nWATCHDOG=1")
		alive("")
		n.last = time.Now().Add(-10 * time.Second) // half of what the watchdog waits
		alive("WATCHDOG=1")
		alive("")
		if err := n.Stopping(); err != nil || said() != "STOPPING=1" {
			t.Errorf("stopping: %v", err)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	for _, env := range []map[string]string{{}, {"WATCHDOG_USEC": "1"}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"},
		{"WATCHDOG_USEC": "x"}} {
		n := New(func(k string) string { return env[k] })
		if err := n.Alive(); err != nil {
			t.Errorf("%v: %v", env, err)
		}
		if env["WATCHDOG_PID"] == "1" && n.every != 0 {
			t.Error("another process's watchdog is ours")
		}
	}
	n := New(func(k string) string { return map[string]string{"NOTIFY_SOCKET": "/none/s"}[k] })
	if n.Alive() == nil {
		t.Error("a socket that is not there takes messages")
	}
}
