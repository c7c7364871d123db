// SPDX-License-Identifier: Apache-2.0

//go:build abuse

package abuse

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

const oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"

// A user's stderr in every hostile form: the Epilog ends with status 0, a scan in
// at most 5 s, and every file below the user's directory is opened by a process
// that has the user's rights and no capability.
func TestAbuseStdErr(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatal("strace is missing; run: make deps-test-abuse")
	}
	for i, c := range []struct {
		name string
		make func(n *node) string // returns the pattern
		oom  bool                 // the job is rightly requeued
	}{
		{"an honest file", func(n *node) string { return n.asUser("err", oom) }, true},
		{"link to /etc/shadow", link("/etc/shadow"), false},
		{"link to root's file that holds a message", func(n *node) string {
			secret := filepath.Join(n.dir, "secret")
			n.must(os.WriteFile(secret, []byte(oom), 0o600))
			return link(secret)(n)
		}, false},
		{"link to itself", func(n *node) string {
			p := filepath.Join(n.dir, "home", "err")
			n.asUser("x", "")
			n.must(os.Symlink(p, p))
			return p
		}, false},
		{"swapped with a link all the time", swapped, false},
		{"FIFO without a writer", func(n *node) string {
			p := n.asUser("x", "") + ".fifo"
			n.must(syscall.Mkfifo(p, 0o666))
			return p
		}, false},
		{"/dev/zero", fixed("/dev/zero"), false},
		{"/dev/tty", fixed("/dev/tty"), false},
		{"/proc/kcore", fixed("/proc/kcore"), false},
		{"/proc/self/mem", fixed("/proc/self/mem"), false},
		{"/proc/self/fd/0", fixed("/proc/self/fd/0"), false},
		{"socket", func(n *node) string {
			p := n.asUser("x", "") + ".sock"
			l, err := net.Listen("unix", p)
			n.must(err)
			n.t.Cleanup(func() { l.Close() })
			return p
		}, false},
		{"directory", func(n *node) string { return filepath.Dir(n.asUser("x", "")) }, false},
		{"sparse file of 1 TiB", func(n *node) string { p := n.asUser("err", oom); n.must(os.Truncate(p, 1<<40)); return p },
			true},
		{"grows while it is read", grows, false},
		{"mode 000", func(n *node) string { p := n.asUser("err", oom); n.must(os.Chmod(p, 0)); return p }, false},
		{"deleted", func(n *node) string { p := n.asUser("err", oom); n.must(os.Remove(p)); return p }, false},
		{"hard link to root's file", func(n *node) string {
			secret := filepath.Join(n.dir, "secret")
			n.must(os.WriteFile(secret, []byte(oom), 0o600))
			p := n.asUser("x", "") + ".hard"
			n.must(os.Link(secret, p))
			return p
		}, false},
		{"name with %, newline, $( ), quotes", func(n *node) string {
			n.asUser("$(touch pwned)\n'\"; -rf %", oom)
			return filepath.Join(n.dir, "home", "$(touch pwned)\n'\"; -rf %%")
		}, true},
		{"name of 5,000 bytes", fixed("/" + strings.Repeat("x", 5000)), false},
		{"name with ..", func(n *node) string { n.asUser("err", oom); return n.dir + "/home/../home/./err" }, true},
		{"name that is no UTF-8", func(n *node) string { return n.asUser("\xff\xfe.err", oom) }, true},
		{"1 MiB without a newline", func(n *node) string { return n.asUser("err", strings.Repeat("x", 1<<20)+oom) }, true},
		{"1 MiB made to be searched slowly", func(n *node) string {
			return n.asUser("err", strings.Repeat("Cuda failure CUDA error: out of memory on host ", 20000))
		}, false},
		{"terminal escapes and a fake log line", func(n *node) string {
			return n.asUser("err",
				"\x1b[2J\nlevel=ERROR msg=forged\n"+oom)
		}, true},
		{"root-squashed (readable by the user alone)", func(n *node) string {
			p := n.asUser("err",
				oom)
			n.must(os.Chmod(p, 0o400))
			return p
		}, true},
	} {
		t.Run(c.name, retried(func(t *testing.T, last bool) (again bool) {
			n := newNode(t)
			pattern := c.make(n)
			n.must(os.Chmod(filepath.Join(n.dir), 0o755))
			vars := []string{"SLURM_JOB_STDERR=" + pattern, "SLURM_JOB_EXIT_CODE2=1:0"}
			if _, _, err := n.hook("prolog", 7, nil); err != nil { // without a mark: the file is the job's
				t.Fatal(err)
			}
			out, took, err := n.hook("epilog", 7, nil, vars...)
			if err != nil {
				t.Errorf("epilog: %v\n%s", err, out)
			}
			if took > 10*time.Second { // 5 s on a machine with nothing else to do
				t.Errorf("took %s", took)
			}
			log, _ := os.ReadFile(n.dir + "/hooks.log")
			back := strings.Contains(n.calls(), "requeuehold 7")
			if c.oom && !back && !last && n.late() {
				return true
			}
			if back != c.oom {
				t.Errorf("requeued: %v, want %v\n%s", back, c.oom, log)
			}
			if strings.Contains(string(log), "\nlevel=ERROR msg=forged") || strings.ContainsRune(string(log), '\x1b') {
				t.Errorf("the user's text is in the log:\n%q", log)
			}
			if _, err := os.Stat(n.dir + "/pwned"); err == nil {
				t.Error("a name reached a shell")
			}
			row(t, fmt.Sprintf("%2d %s", i+1, c.name), fmt.Sprintf("status 0, %s, requeued: %v",
				took.Round(time.Millisecond), c.oom))

			// Once more under strace, for another job: who opens what.
			n.hook("prolog", 8, nil)
			trace := filepath.Join(n.dir, "trace")
			n.hook("epilog", 8, []string{"strace", "-f", "-o", trace, "-s", "8192", "-e",
				"trace=openat,openat2,open,setfsuid,setgid,setgroups,capset,execve"}, vars...)
			text, err := os.ReadFile(trace)
			n.must(err)
			opened := opensAsUser(t, n, string(text), pattern)
			if c.oom && opened == 0 && !last && n.late() {
				return true
			}
			if c.oom && opened == 0 {
				t.Error("nobody opened the file: the trace proves nothing")
			}
			return false
		}))
	}
}

func fixed(path string) func(*node) string { return func(*node) string { return path } }

func link(to string) func(*node) string {
	return func(n *node) string {
		p := filepath.Join(n.dir, "home", "err")
		n.asUser("x", "")
		n.must(os.Symlink(to, p))
		return p
	}
}

// swapped is now a file without a message, now a link to root's with one.
func swapped(n *node) string {
	secret := filepath.Join(n.dir, "secret")
	n.must(os.WriteFile(secret, []byte(oom), 0o600))
	file, l, p := n.asUser("file", "nothing\n"), filepath.Join(n.dir, "home", "link"), filepath.Join(n.dir, "home", "err")
	n.must(os.Symlink(secret, l))
	n.must(os.Link(file, p))
	stop := make(chan bool)
	done := make(chan bool)
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			os.Remove(p + ".new")
			if i%2 == 0 {
				os.Link(l, p+".new")
			} else {
				os.Link(file, p+".new")
			}
			os.Rename(p+".new", p)
		}
	}()
	n.t.Cleanup(func() { close(stop); <-done })
	return p
}

func grows(n *node) string {
	p := n.asUser("err", strings.Repeat("x", 4<<20))
	f, err := os.OpenFile(p, os.O_WRONLY|os.O_APPEND, 0)
	n.must(err)
	stop, done := make(chan bool), make(chan bool)
	go func() {
		defer close(done)
		defer f.Close()
		chunk := make([]byte, 1<<20)
		for i := 0; i < 500; i++ { // at most 500 MiB
			select {
			case <-stop:
				return
			default:
				f.Write(chunk)
			}
		}
	}()
	n.t.Cleanup(func() { close(stop); <-done })
	return p
}

var (
	traceLine = regexp.MustCompile(`(?m)^(\d+) +(\w+)\((.*)$`)
	quoted    = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// opensAsUser requires that every process that opens what the user named has
// taken the user's ids for files, without root's groups, and dropped all
// capabilities before; it counts the opens.
func opensAsUser(t *testing.T, n *node, trace, pattern string) (opened int) {
	t.Helper()
	took := map[string]int{} // by process: how much of it
	for _, m := range traceLine.FindAllStringSubmatch(trace, -1) {
		pid, call, args := m[1], m[2], m[3]
		done := strings.HasSuffix(args, "= 0")
		switch call {
		case "setgroups", "setgid", "setfsuid", "capset":
			own := map[string]string{"setgroups": "", "setgid": n.gid + ")", "setfsuid": n.uid + ")", "capset": "{"}
			if done && strings.HasPrefix(args, own[call]) && (call != "capset" || noCapability.MatchString(args)) {
				took[pid]++
			}
		case "open", "openat", "openat2":
			q := quoted.FindStringSubmatch(args)
			if q == nil || !strings.Contains(args, "AT_FDCWD") {
				continue
			}
			if mine := strings.HasPrefix(q[1], n.dir+"/home") || pattern != "" && !strings.HasPrefix(pattern, n.dir) &&
				q[1] == pattern; !mine {
				continue
			}
			opened++
			if !tookRights(trace, pid, took) {
				t.Errorf("opened by process %s, which may more than the user: %s", pid, m[0])
			}
		}
	}
	return opened
}

var noCapability = regexp.MustCompile(`effective=0, permitted=0, inheritable=0`)

// tookRights tells whether pid, or the process of which it is a thread, did all four
// of what makes the child. In a trace of an Epilog the only process that does is the
// child, and what it starts afterwards are its threads.
func tookRights(trace, pid string, took map[string]int) bool {
	for p, n := range took {
		if n >= 4 && (p == pid || strings.Index(trace, "\n"+pid+" ") > strings.Index(trace, "\n"+p+" capset(")) {
			return true
		}
	}
	return false
}
