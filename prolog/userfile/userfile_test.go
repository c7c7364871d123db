// SPDX-License-Identifier: Apache-2.0

package userfile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"carma/prolog/oomscan"
)

// The test program is the child too.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == Command {
		Child()
		return
	}
	if helper := os.Getenv("USERFILE_TEST"); helper != "" {
		helpers[helper](os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// nobody is an ordinary user.
func nobody(t *testing.T) User {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: only root can start a process as another user")
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	return User{UID: uint32(uid), GID: uint32(gid), Groups: []uint32{uint32(gid)}}
}

// open directory for any user
func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "userfile")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	if err := os.Chmod(d, 0o755); err != nil {
		t.Fatal(err)
	}
	return d
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, u User, a Ask) Reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	r, err := run(ctx, u, a) // a slow machine may need more than deadline
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const oom = "torch.OutOfMemoryError: CUDA out of memory\n"

func TestScan(t *testing.T) {
	u, path := nobody(t), filepath.Join(dir(t), "err")
	if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.State != StateMissing {
		t.Errorf("no file: %+v", r)
	}
	write(t, path, "starting\n"+oom)
	if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.State != StateOK || r.Signature != "pytorch" ||
		r.Offset != 9 {
		t.Errorf("got %+v", r)
	}
}

func TestMark(t *testing.T) {
	u, path := nobody(t), filepath.Join(dir(t), "err")
	old := strings.Repeat("an earlier run\n", 1000) + oom
	write(t, path, old)
	m := ask(t, u, Ask{Op: OpMark, Files: []File{{Path: path}}}).Mark
	if !m.Exists || m.Size != int64(len(old)) {
		t.Fatalf("mark %+v", m)
	}
	scan := func() string { return ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path, From: m}}}).Signature }
	if got := scan(); got != "" {
		t.Errorf("nothing was written since: %q", got)
	}
	write(t, path, old+"and more\n")
	if got := scan(); got != "" {
		t.Errorf("appended without a message: %q", got)
	}
	write(t, path, old+"and more\n"+oom)
	if got := scan(); got != "pytorch" {
		t.Errorf("appended with a message: %q", got)
	}
	later := time.Now().Add(time.Hour)
	write(t, path, old)
	if err := os.Chtimes(path, later, later); err != nil {
		t.Fatal(err)
	}
	if got := scan(); got != "pytorch" {
		t.Errorf("truncated and written anew, the same bytes: %q", got)
	}
	write(t, path, strings.Repeat("x", len(old))+oom)
	if got := scan(); got != "pytorch" {
		t.Errorf("truncated and written anew, longer: %q", got)
	}
	write(t, path, oom)
	if got := scan(); got != "pytorch" {
		t.Errorf("truncated and written anew, shorter: %q", got)
	}
}

func TestHeadAndTailOfALongFile(t *testing.T) {
	u, d := nobody(t), dir(t)
	long := strings.Repeat("x", 3<<20)
	for name, c := range map[string]struct {
		text  string
		found bool
	}{
		"head":   {oom + long, true},
		"middle": {long + oom + long, false},
		"tail":   {long + oom, true},
	} {
		path := filepath.Join(d, name)
		write(t, path, c.text)
		if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); (r.Signature != "") != c.found {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// What root could read and the user cannot stays unread, and what would block
// does not.
func TestHostileFiles(t *testing.T) {
	u, d := nobody(t), dir(t)
	path := func(name string) string { return filepath.Join(d, name) }
	secret := path("secret")
	write(t, secret, oom)
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, path("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path("loop"), path("loop")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(path("fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(mustCreate(t, path("sparse")), 1<<40); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]State{
		secret:                          StateDenied,
		path("link"):                    StateDenied,
		path("loop"):                    StateDenied,
		"/etc/shadow":                   StateDenied,
		path("fifo"):                    StateNotRegular,
		"/dev/zero":                     StateNotRegular,
		"/dev/full":                     StateNotRegular,
		d:                               StateNotRegular,
		"/proc/self/fd/0":               StateDenied, // a magic link
		path("sparse"):                  StateOK,
		path("none") + "/x":             StateMissing,
		secret + "/x":                   StateMissing,
		"/" + strings.Repeat("x", 5000): StateError,
		"":                              StateMissing,
		"/proc/self/mem":                StateDenied,
		"/tmp/\x00/x":                   StateError,
	} {
		start := time.Now()
		if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: name}}}); r.State != want || r.Signature != "" {
			t.Errorf("%.60q: %+v, want %s", name, r, want)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("%.60q took %s", name, took)
		}
	}
}

func mustCreate(t *testing.T, path string) string {
	t.Helper()
	write(t, path, "")
	return path
}

func TestChildHasNoMoreGroupsThanItsUser(t *testing.T) {
	u, path := nobody(t), filepath.Join(dir(t), "group")
	write(t, path, oom)
	if err := os.Chmod(path, 0o040); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 0, 4242); err != nil {
		t.Fatal(err)
	}
	if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.State != StateDenied {
		t.Errorf("without the group: %+v", r)
	}
	u.Groups = append(u.Groups, 4242)
	if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.State != StateOK || r.Signature == "" {
		t.Errorf("with the group: %+v", r)
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		op         Op
		left, want time.Duration // left 0: without a bound
	}{
		{OpScan, 0, 5 * time.Second}, {OpScan, time.Hour, 5 * time.Second}, {OpScan, 6 * time.Second, 5 * time.Second},
		{OpScan, 3 * time.Second, 2 * time.Second}, {OpScan, time.Second, time.Second / 2},
		{OpMark, 0, 2 * time.Second}, {OpMark, 3 * time.Second, 2 * time.Second},
	} {
		if got := within(c.left, c.left > 0, c.op); got != c.want {
			t.Errorf("%s, %s left: %s, want %s", c.op, c.left, got, c.want)
		}
	}
}

func TestDeadline(t *testing.T) {
	u := nobody(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, u, Ask{Op: OpScan, Files: []File{{Path: "/etc/passwd"}}}); err == nil {
		t.Error("no error after the deadline")
	}
}

// An answer that is read some time after its child has ended, as on a machine where others
// have the processors, counts.
func TestAnswerThatIsReadLate(t *testing.T) {
	cmd := command(t.Context(), User{})
	cmd.Path, cmd.Args, cmd.SysProcAttr = "/bin/sh", []string{"sh", "-c", "echo answer; sleep 0.5 & exit 0"}, nil
	var answer bytes.Buffer
	cmd.Stdout = &limited{to: &answer, left: 4096}
	if err := cmd.Run(); err != nil || answer.String() != "answer\n" {
		t.Errorf("%q, %v", answer.String(), err)
	}
}

func TestUnknownOperation(t *testing.T) {
	if r := ask(t, nobody(t), Ask{Op: "delete", Files: []File{{Path: "/etc/passwd"}}}); r.State != StateError {
		t.Errorf("got %+v", r)
	}
}

// Several files: what one of them tells counts, the rest may be anything.
func TestSeveralFiles(t *testing.T) {
	u, d := nobody(t), dir(t)
	path := func(name, text string) File {
		p := filepath.Join(d, name)
		if text != "" {
			write(t, p, text)
		}
		return File{Path: p}
	}
	none, quiet, fault, gpu := path("none", ""), path("quiet", "nothing\n"),
		path("fault", "an illegal memory access was encountered\n"), path("gpu", oom)
	for _, c := range []struct {
		files []File
		state State
		kind  oomscan.Kind
	}{
		{nil, StateError, ""},
		{[]File{none}, StateMissing, ""},
		{[]File{none, {Path: d}}, StateNotRegular, ""},
		{[]File{{Path: "/dev/zero"}, quiet, none}, StateOK, ""},
		{[]File{quiet, fault}, StateOK, oomscan.GPUFault},
		{[]File{fault, quiet, gpu}, StateOK, oomscan.GPUMemory},
	} {
		if r := ask(t, u, Ask{Op: OpScan, Files: c.files}); r.State != c.state || r.Kind != c.kind {
			t.Errorf("%v: got %+v", c.files, r)
		}
	}
}

func TestNameThatIsNoUTF8(t *testing.T) {
	u, path := nobody(t), filepath.Join(dir(t), "\xff\xfe\n.err")
	write(t, path, oom)
	if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.Signature != "pytorch" {
		t.Errorf("got %+v", r)
	}
}

// The agent knows where a job's text begins, but not what stands before it.
func TestMarkOfTheAgent(t *testing.T) {
	u, path := nobody(t), filepath.Join(dir(t), "err")
	write(t, path, oom)
	m := ask(t, u, Ask{Op: OpMark, Files: []File{{Path: path}}}).Mark
	m.Tail, m.MtimeNs = "", 0
	scan := func() string {
		return ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path, From: m}}}).Signature
	}
	if got := scan(); got != "" {
		t.Errorf("an earlier job's message: %q", got)
	}
	write(t, path, oom+oom)
	if got := scan(); got != "pytorch" {
		t.Errorf("appended: %q", got)
	}
	m.Ino++
	write(t, path, oom)
	if got := scan(); got != "pytorch" {
		t.Errorf("another file of the name: %q", got)
	}
}

// The gap in a long file joins no halves of a message, and offsets behind it
// are the file's.
func TestGapOfALongFile(t *testing.T) {
	u, path := nobody(t), filepath.Join(dir(t), "err")
	const message = "CUDA error: out of memory\n"
	half := strings.Index(message, " of memory") // neither half is a message of any program
	write(t, path, strings.Repeat("x", maxHead-half)+message+strings.Repeat("x", 2<<20)+message[half:]+
		strings.Repeat("x", maxTail-len(message[half:])))
	if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.Signature != "" {
		t.Errorf("got %+v", r)
	}
	text := strings.Repeat("x", 5<<20) + "\n" + oom
	write(t, path, text)
	if r := ask(t, u, Ask{Op: OpScan, Files: []File{{Path: path}}}); r.Offset != int64(len(text)-len(oom)) {
		t.Errorf("offset %d, want %d", r.Offset, len(text)-len(oom))
	}
}

// Whatever the child answers, only our words are taken.
func TestForgedReply(t *testing.T) {
	for _, r := range []Reply{
		{},
		{State: "fine"},
		{State: StateOK, Signature: "$(reboot)"},
		{State: StateOK, Signature: "pytorch\n", Kind: oomscan.GPUMemory},
		{State: StateOK, Signature: "mps", Kind: oomscan.GPUMemory},
		{State: StateOK, Kind: "other"},
		{State: StateOK, Signature: "pytorch", Kind: oomscan.GPUMemory, Grade: oomscan.Weak},
		{State: StateOK, Mark: Mark{Tail: "'; DROP TABLE attempt"}},
		{State: StateOK, Mark: Mark{Tail: strings.Repeat("00", 33)}},
	} {
		if r.check() == nil {
			t.Errorf("taken: %+v", r)
		}
	}
	for _, r := range []Reply{{State: StateMissing}, {State: StateOK, Signature: "pytorch", Kind: oomscan.GPUMemory,
		Grade: oomscan.Strong, Offset: 3}, {State: StateOK, Mark: Mark{Exists: true, Tail: strings.Repeat("0f", 32)}}} {
		if err := r.check(); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

func TestLimited(t *testing.T) {
	var b strings.Builder
	l := &limited{to: &b, left: 5}
	if _, err := fmt.Fprint(l, "12345"); err != nil || b.String() != "12345" {
		t.Errorf("got %q, %v", b.String(), err)
	}
	if _, err := fmt.Fprint(l, "6"); err == nil {
		t.Error("grew beyond its bound")
	}
}

// Linux before 5.6 has no openat2.
func TestOpenBeforeLinux56(t *testing.T) {
	old := openat2
	openat2 = func(int, string, *unix.OpenHow) (int, error) { return -1, unix.ENOSYS }
	t.Cleanup(func() { openat2 = old })
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]State{"file": StateOK, "fifo": StateNotRegular, "none": StateMissing} {
		f, _, got := open(dir + "/" + name)
		if got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		f.Close()
	}
}
