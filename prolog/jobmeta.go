// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"encoding/json"
	"fmt"
	"time"

	"carma/gres/lease"
	"carma/prolog/userfile"
	"carma/slurmbridge/jobenv"
)

// JobMeta is what the record of a job needs beyond its leases. The Prolog keeps it in the
// ledger, in words that programs of other releases write and read, too: an attempt that has
// no Epilog has no environment, and the Prolog may have made the job's mode another.
type JobMeta struct {
	Cluster   string        `json:"cluster,omitempty"`
	User      string        `json:"user"`
	Partition string        `json:"partition"`
	Mode      jobenv.Mode   `json:"mode"`
	Method    string        `json:"method"`
	EstMiB    int64         `json:"est_mib"`
	FullMiB   int64         `json:"full_mib"`
	Submit    time.Time     `json:"submit"`
	Start     time.Time     `json:"start"`
	StdErr    userfile.Mark `json:"stderr"`
}

// keepIn puts it into what the ledger keeps of the job.
func (m JobMeta) keepIn(job *lease.Job) (err error) {
	if job.About, err = json.Marshal(m); err != nil {
		return fmt.Errorf("describe job %s: %w", job.JobKey, err)
	}
	return nil
}

// metaOf is what the ledger keeps of a job, or nothing if that cannot be read.
func (n *Node) metaOf(held lease.Held) (m JobMeta) {
	if err := json.Unmarshal(held.About, &m); err != nil {
		n.Log.Error("read the job from the ledger", "job", held.JobKey, "error", err)
	}
	return m
}
