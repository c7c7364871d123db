// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// writer stands for a daemon: it keeps its log open, and writes as many MiB as it is told.
const writer = `
while read -r mib; do
	yes "Accepting connection..." | head -c $((mib << 20)) >&3
	echo "written $mib" >&3
	echo written
done
`

func usage(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		var st syscall.Stat_t
		if err := syscall.Stat(f, &st); err != nil {
			t.Fatal(err)
		}
		bytes += st.Blocks * 512
	}
	return bytes
}

// A daemon that writes 100 MiB has no more than its bound on the disk, lives, and its last
// words are in its log, whether it appends or not.
func TestBoundLogs(t *testing.T) {
	for _, open := range []string{"exec 3>>", "exec 3>"} {
		c := program(t, daemon)
		if err := c.makeLogDir("GPU-1"); err != nil {
			t.Fatal(err)
		}
		dir := c.logDir("GPU-1")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", open+`"$LOG"; `+writer)
		cmd.Env = append(os.Environ(), "LOG="+filepath.Join(dir, "server.log"))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewReader(out)
		write := func(mib int) {
			t.Helper()
			fmt.Fprintln(in, mib)
			if line, err := answers.ReadString('\n'); err != nil {
				t.Fatalf("%s: the daemon has ended: %q, %v", open, line, err)
			}
		}
		for range 20 {
			write(5)
			if err := c.BoundLogs(); err != nil {
				t.Fatal(err)
			}
			if got := usage(t, dir); got > 16<<20 {
				t.Fatalf("%s: %d MiB", open, got>>20)
			}
		}
		write(1)
		text, err := os.ReadFile(filepath.Join(dir, "server.log"))
		old, oldErr := os.ReadFile(filepath.Join(dir, "server.log.old"))
		if err != nil || oldErr != nil || !bytes.HasSuffix(text, []byte("written 1\n")) ||
			!bytes.HasSuffix(old, []byte("written 5\n")) || len(old) != keptOfLog {
			t.Errorf("%s: %d bytes, and before %d; %v, %v", open, len(text), len(old), err, oldErr)
		}
		in.Close()
		io.Copy(io.Discard, out)
		cmd.Wait()
	}
}

// Nobody but root sees what a daemon writes; logs go when their daemon has ended long ago,
// and what is no log stays.
func TestLogsOfDaemonsThatEnded(t *testing.T) {
	c := program(t, daemon)
	if err := c.BoundLogs(); err != nil { // before the first daemon
		t.Error(err)
	}
	if err := os.Mkdir(c.LogDir, 0o755); err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * keepLogs)
	for name, listens := range map[string]bool{"GPU-1": false, "GPU-2": false, "GPU-3": true, "GPU-4": false} {
		d, pipe := filepath.Join(c.LogDir, name), filepath.Join(c.RunDir, "mps", name)
		must(os.MkdirAll(pipe, 0o755))
		must(os.MkdirAll(d, 0o755))
		if listens {
			must(tenure{process: processOf(os.Getpid())}.write(pipe))
		}
		log := filepath.Join(d, "control.log")
		must(os.WriteFile(log, nil, 0o644))
		must(os.Symlink("/etc/passwd", filepath.Join(d, "link")))
		if name != "GPU-2" {
			must(os.Chtimes(log, long, long))
			must(os.Chtimes(d, long, long))
		}
	}
	must(os.WriteFile(filepath.Join(c.LogDir, "file"), nil, 0o644))
	must(os.Mkdir(filepath.Join(c.LogDir, "others"), 0o755))
	must(os.Chtimes(filepath.Join(c.LogDir, "others"), long, long))
	must(c.BoundLogs())
	left, err := filepath.Glob(filepath.Join(c.LogDir, "*"))
	if want := []string{"GPU-2", "GPU-3", "file", "others"}; err != nil || len(left) != len(want) ||
		filepath.Base(left[0]) != want[0] || filepath.Base(left[1]) != want[1] {
		t.Errorf("left %v, want %v; %v", left, want, err)
	}
	must(c.makeLogDir("GPU-2"))
	for _, dir := range []string{c.LogDir, c.logDir("GPU-2")} {
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, st.Mode(), err)
		}
	}
}
