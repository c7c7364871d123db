// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"encoding/json"
	"fmt"

	"carma/db"
	"carma/gres/lease"
	"carma/prolog/userfile"
)

// jobMeta is the record of a job as far as known when the job starts, and for its Epilog. The
// Prolog keeps it in the ledger, written as the spool and slurmdbd have records: an attempt
// without an Epilog has no environment, and the Prolog may have made the job's mode another.
type jobMeta struct {
	db.Attempt
	StdErr userfile.Mark `json:"stderr"`
}

// keepIn puts the record into the ledger's data of the job.
func (m jobMeta) keepIn(job *lease.Job) (err error) {
	if job.About, err = json.Marshal(m); err != nil {
		return fmt.Errorf("describe job %s: %w", job.JobKey, err)
	}
	return nil
}

// metaOf is the ledger's record of a job, or only whose the attempt is if the record cannot
// be read.
func (n *Node) metaOf(held lease.Held) (m jobMeta) {
	if err := json.Unmarshal(held.About, &m); err != nil {
		n.Log.Error("read the job from the ledger", "job", held.JobKey, "error", err)
	}
	m.JobID, m.Restart, m.UID, m.Node = held.JobID, held.Restart, held.UID, n.Name
	m.FullMiB = cmp.Or(m.FullMiB, n.Config.Partition[m.Partition].GPUMemMiB) // a Prolog of an older form had other words
	return m
}
