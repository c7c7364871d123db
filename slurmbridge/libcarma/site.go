// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"carma/estimator/history"
	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
	"carma/slurmbridge/extra"
)

// siteFile is carma.toml as last read. Only the shim's worker thread calls
// into the library, so nothing here is locked.
type siteFile struct {
	path       string
	gresPrefix string
	read       stamp
	site       annotate.Site
	mode       string // of carma.toml
	recovery   string // partitions for jobs from CARMA alone, with commas between
	managed    string // all partitions of carma.toml
	whole      string // the blocks of carma_whole
	usable     bool
	said       string // why the key cannot be read
	history    historyFile
	estimates  memory
}

var site siteFile

// stamp tells whether a file is still the same. A file becoming readable has the
// same content and another time of change.
type stamp struct {
	modified, changed syscall.Timespec
	size              int64
}

func stampOf(info os.FileInfo) stamp {
	v := stamp{size: info.Size()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		v.modified, v.changed = st.Mtim, st.Ctim
	}
	return v
}

func (s *siteFile) current() (annotate.Site, error) {
	if !s.usable {
		return annotate.Site{}, errors.New("no usable carma.toml: jobs are accepted as written")
	}
	return s.site, nil
}

// load reads the file. After an error the last good configuration stays.
func (s *siteFile) load() error {
	if info, err := os.Stat(s.path); err == nil {
		s.read = stampOf(info)
	}
	c, err := config.Load(s.path, os.ReadFile)
	var tags extra.Tags
	if err == nil {
		tags, err = s.tags(c.Slurm.UserKey)
	}
	if err != nil && s.usable {
		return fmt.Errorf("%w; the previous configuration stays in force", err)
	} else if err != nil {
		return err
	}
	s.site, s.usable = annotate.NewSite(c, s.gresPrefix), true
	s.site.Estimate, s.site.Tags = s.estimates.byMethod, tags
	s.mode, s.managed, s.recovery, s.whole = c.Mode, "", "", ""
	if c.Mode == config.ModeShare {
		s.keep(c)
	}
	s.history.path = c.History.File
	err = s.history.load()
	s.site.History = s.history.snapshot
	return err
}

// keep makes what the shim keeps for the time when the library is busy.
func (s *siteFile) keep(c config.Config) {
	s.managed = strings.Join(c.PartitionNames(), ",")
	s.recovery = strings.Join(slices.DeleteFunc(c.PartitionNames(),
		func(name string) bool { return !c.RecoveryOf(name) }), ",")
	s.whole = wholes(&s.site)
}

// tags reads the key. Without the key carma.toml counts as unread, for the key may come to be readable.
func (s *siteFile) tags(path string) (extra.Tags, error) {
	tags, err := extra.ReadTags(path, os.ReadFile)
	s.said = ""
	if err != nil {
		s.read, s.said = stamp{}, err.Error()
	}
	return tags, err
}

func (s *siteFile) reload() error {
	info, err := os.Stat(s.path)
	if err != nil || stampOf(info) == s.read {
		err := s.history.load()
		s.site.History = s.history.snapshot
		return err
	}
	before := s.said
	if err := s.load(); before == "" || before != s.said {
		return err
	}
	return nil // said
}

// historyFile is the output of carma-report history --write. The file is replaced
// as a whole, by rename, and read when no job waits.
type historyFile struct {
	path     string
	read     stamp
	snapshot history.Snapshot
}

// load reads the file if it has changed. An unreadable file leaves the history
// unchanged; the error is logged once.
func (h *historyFile) load() error {
	if h.path == "" {
		h.snapshot = history.Snapshot{}
		return nil
	}
	info, err := os.Stat(h.path)
	if err != nil || stampOf(info) == h.read {
		return nil // none yet, or the same
	}
	h.read = stampOf(info)
	if info.Size() > history.MaxBytes {
		return fmt.Errorf("read history %s: %w", h.path, history.ErrSpoiled)
	}
	text, err := os.ReadFile(h.path)
	if err != nil {
		return fmt.Errorf("read history: %w", err)
	}
	snapshot, err := history.Parse(text)
	if err != nil {
		return fmt.Errorf("read history %s: %w", h.path, err)
	}
	h.snapshot = snapshot
	return nil
}
