// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"carma/slurmbridge/annotate"
	"carma/slurmbridge/config"
)

// siteFile is carma.toml as last read. Only the shim's worker thread calls
// into the library, so nothing here is locked.
type siteFile struct {
	path       string
	gresPrefix string
	modified   time.Time
	size       int64
	site       annotate.Site
	usable     bool
	estimates  memory
}

var site siteFile

func (s *siteFile) current() (annotate.Site, error) {
	if !s.usable {
		return annotate.Site{}, errors.New("no usable carma.toml: jobs go on as they were written")
	}
	return s.site, nil
}

// load reads the file. After an error the last good configuration stays.
func (s *siteFile) load() error {
	if info, err := os.Stat(s.path); err == nil {
		s.modified, s.size = info.ModTime(), info.Size()
	}
	c, err := config.Load(s.path)
	if err != nil && s.usable {
		return fmt.Errorf("%w; the configuration read before stays", err)
	} else if err != nil {
		return err
	}
	s.site, s.usable = annotate.NewSite(c, s.gresPrefix), true
	s.site.Estimate = s.estimates.byMethod
	return nil
}

func (s *siteFile) reload() error {
	info, err := os.Stat(s.path)
	if err != nil || info.ModTime().Equal(s.modified) && info.Size() == s.size {
		return nil
	}
	return s.load()
}
