// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"carma/slurmbridge/sctl"
)

// compile builds a shared library out of C text.
func compile(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	source, out := filepath.Join(dir, "x.c"), filepath.Join(dir, "x.so")
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, err := exec.Command("cc", "-shared", "-fPIC", "-o", out, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

const plugin = `const char plugin_name[] = "x", plugin_type[] = "job_submit/carma";
int job_submit(void) { return 0; }
`

func TestPluginVersion(t *testing.T) {
	path := compile(t, plugin+"const unsigned plugin_version = 23 << 16 | 11 << 8 | 4; int job_modify(void) { return 0; }")
	if v, err := PluginVersion(path); err != nil || v != (sctl.Version{Major: 23, Minor: 11, Micro: 4}) {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := PluginVersion(compile(t, plugin)); err == nil ||
		!strings.Contains(err.Error(), "does not define plugin_version, job_modify") {
		t.Errorf("got %v", err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	part := filepath.Join(t.TempDir(), "part.so")
	for n := 0; n < len(whole); n += 97 {
		if err := os.WriteFile(part, whole[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := PluginVersion(part); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
	if _, err := PluginVersion(part + ".none"); err == nil {
		t.Error("a missing plugin has a version")
	}
}

func TestCheckLibrary(t *testing.T) {
	all := "void carma_abi(void) {} void carma_version(void) {} void carma_recovery(void) {} void " +
		"carma_configure(void) {} void carma_annotate(void) {} "
	if err := CheckLibrary(compile(t, all+"void carma_tick(void) {}")); err != nil {
		t.Error(err)
	}
	if err := CheckLibrary(compile(t, all)); err == nil || !strings.Contains(err.Error(), "does not define carma_tick") {
		t.Errorf("got %v", err)
	}
}
