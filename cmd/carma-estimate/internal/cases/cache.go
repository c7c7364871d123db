// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"errors"
	"os"
	"path/filepath"

	"carma/cmd/carma-estimate/internal/script"
	"carma/slurmbridge/directive"
)

// cacheBytes bounds the summaries kept: several times all of timm.
const (
	cacheBytes = 64 << 20
	entryBytes = 512 // of an entry, beside its text
)

// cache reads summary files, each once as long as they fit.
type cache struct {
	dir     string // where a relative path is looked for in the second place
	entries map[string]cached
	order   []string // oldest first
	bytes   int
}

type cached struct {
	text []byte
	err  error
}

// read returns the text of a summary, or why it cannot be read.
func (c *cache) read(path string) ([]byte, error) {
	e, ok := c.entries[path]
	if ok {
		return e.text, e.err
	}
	e.text, e.err = c.load(path)
	size := len(path) + len(e.text) + entryBytes
	for c.bytes+size > cacheBytes && len(c.order) > 0 {
		oldest := c.order[0]
		c.bytes -= len(oldest) + len(c.entries[oldest].text) + entryBytes
		delete(c.entries, oldest)
		c.order = c.order[1:]
	}
	if c.entries == nil {
		c.entries = map[string]cached{}
	}
	c.entries[path] = e
	c.order = append(c.order, path)
	c.bytes += size
	return e.text, e.err
}

func (c *cache) load(path string) ([]byte, error) {
	text, _, err := script.ReadRegular(path, directive.MaxSummary)
	if errors.Is(err, os.ErrNotExist) && c.dir != "" && !filepath.IsAbs(path) {
		text, _, err = script.ReadRegular(filepath.Join(c.dir, path), directive.MaxSummary)
	}
	_, text = script.Unwrap(text)
	return text, script.Cause(err)
}
