// SPDX-License-Identifier: Apache-2.0

package choose

import (
	"fmt"
	"time"

	"carma/gres"
	"carma/slurmbridge/config"
)

// ReadAgainAfter is the age of readings too old to decide on while the driver answers, as when
// the agent does not run.
func ReadAgainAfter(c config.Config) time.Duration {
	return max(3*c.NVML.Interval.D(), 3*time.Second)
}

// StaleAfter is the age of readings that say nothing any more of the jobs there now. The mean of the SM
// activity is over smact.window.
func StaleAfter(c config.Config) time.Duration {
	return max(c.SMAct.Window.D(), ReadAgainAfter(c), leastStale)
}

// leastStale is longer than an agent on a busy machine, or a locked ledger, delays readings.
const leastStale = 20 * time.Second

// CloseStale closes GPUs whose readings are older than after: the readings of an agent that has died, with a
// driver that does not answer. The counts told to slurmctld obey this as Prologs do: a node that returned
// each job and went on offering its GPUs would attract job after job.
func CloseStale(readings []gres.Reading, after time.Duration) {
	for i := range readings {
		if r := &readings[i]; r.Age > after && r.Unreadable == "" {
			r.Unreadable = fmt.Sprintf("it was last read %s ago", r.Age.Round(time.Second))
		}
	}
}
