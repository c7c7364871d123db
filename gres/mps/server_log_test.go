// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What NVIDIA's guide shows of a server whose client makes an illegal access.
const faultLog = `[2022-04-28 15:56:08.906 Other 11570] Volta MPS: Server is handling a fatal GPU error.
[2022-04-28 15:56:08.906 Other 11570] Volta MPS: status of client {11641, 1} is INACTIVE
`

func TestServerFault(t *testing.T) {
	const plain = "[2022-04-28 15:56:07.410 Other 11570] Volta MPS: status of client {11661, 1} is ACTIVE\n"
	c := Control{RunDir: t.TempDir(), LogDir: t.TempDir()}
	if fault, to, err := c.ServerFault("GPU-1", 7); fault || to != 7 || err != nil {
		t.Errorf("no daemon: %v, %d, %v", fault, to, err)
	}
	must(t, os.MkdirAll(PipeDir(c.RunDir, "GPU-1"), 0o700))
	must(t, tenure{}.write(PipeDir(c.RunDir, "GPU-1")))
	if fault, to, err := c.ServerFault("GPU-1", 7); fault || to != 0 || err != nil {
		t.Errorf("no log: %v, %d, %v", fault, to, err)
	}
	must(t, os.Mkdir(c.logDir("GPU-1"), 0o700))
	path := filepath.Join(c.logDir("GPU-1"), "server.log")
	for _, s := range []struct {
		name, text string
		from       int
		fault      bool
		to         int
	}{
		{"empty", "", 0, false, 0},
		{"none", plain, 0, false, len(plain)},
		{"a fault", plain + faultLog, 0, true, len(plain + faultLog)},
		{"behind it", plain + faultLog, len(plain + faultLog), false, len(plain + faultLog)},
		{"between", plain + faultLog + plain, len(plain), true, len(plain + faultLog + plain)},
		{"half a line", plain + faultLog[:50], 0, false, len(plain)},
		{"the rest of it", plain + faultLog, len(plain), true, len(plain + faultLog)},
		{"emptied since", faultLog, 1 << 20, true, len(faultLog)},
		{"a line without end", strings.Repeat("x", 3*maxLook), 0, false, 3 * maxLook},
		{"behind many", faultLog + strings.Repeat(plain, maxLook/len(plain)+1), 0, false,
			len(faultLog) + len(plain)*(maxLook/len(plain)+1)},
		{"binary", "\x00\xff\n" + faultLog, 0, true, 3 + len(faultLog)},
	} {
		must(t, os.WriteFile(path, []byte(s.text), 0o600))
		if fault, to, err := c.ServerFault("GPU-1", int64(s.from)); fault != s.fault || to != int64(s.to) || err != nil {
			t.Errorf("%s: %v, %d, %v; want %v, %d", s.name, fault, to, err, s.fault, s.to)
		}
	}
	must(t, os.Remove(path))
	must(t, os.Symlink("/etc/passwd", path))
	if _, _, err := c.ServerFault("GPU-1", 0); err == nil {
		t.Error("a link was followed")
	}
}
