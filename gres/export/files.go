// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"time"

	"carma/gres"
	"carma/gres/status"
	"carma/slurmbridge/config"
)

// textfileEvery is the time between two writes of the metrics: shorter than the
// time between two scrapes.
const textfileEvery = 10 * time.Second

// Files are the files that carma.toml asks for, and when they were last
// written.
type Files struct {
	config.Export
	Ended *Ended

	written time.Time
}

// Write writes the files that are due.
func (f *Files) Write(readings []gres.Reading, leases []gres.Lease, node func() status.Node) error {
	var err1, err2 error
	if f.DCGMJobDir != "" {
		err1 = writeJobs(f.DCGMJobDir, readings, leases)
	}
	if f.Textfile != "" && time.Since(f.written) >= textfileEvery {
		f.written = time.Now()
		err2 = writeText(f.Textfile, node(), f.Ended)
	}
	return errors.Join(err1, err2)
}
