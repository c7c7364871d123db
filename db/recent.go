// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"fmt"
	"time"

	"carma/db/rows"
)

// Lately is a question about the last while of a node.
type Lately struct {
	UID        uint32
	Now        time.Time
	Started    time.Time // the job that asks; no earlier sample is of the job's time
	Hour       time.Time // requeues from then on are counted
	Neighbours []uint32  // jobs whose ends are looked for
	Ended      time.Time // ends and samples from then on
	UUIDs      []string  // GPUs whose samples are looked for
}

// Happened is the answer.
type Happened struct {
	Requeues map[string]int       // of the user, by the partition that the jobs were requeued to; nil: not known
	Ended    map[uint32]time.Time // by job
	Notes    map[uint32]string    // of the jobs in Ended
	UsedMiB  map[string][]int64   // most of each sample, by GPU, the newest first
}

const countRequeues = "SELECT requeued_to, count(*) FROM attempt WHERE uid=? AND end_ms>=? AND " +
	"requeued_to IS NOT NULL GROUP BY requeued_to"

// Lately tells what has happened on the node, by keys and indices alone.
func (d *DB) Lately(ctx context.Context, q Lately) (Happened, error) {
	h := Happened{Requeues: map[string]int{}, Ended: map[uint32]time.Time{}, Notes: map[uint32]string{},
		UsedMiB: map[string][]int64{}}
	found, err := d.sql.QueryContext(ctx, countRequeues, q.UID, q.Hour.UnixMilli())
	_, err = rows.All(found, err, fmt.Sprint("count requeues of uid ", q.UID), func(_ *struct{}, scan rows.Scan) error {
		var to string
		var n int
		err := scan(&to, &n)
		h.Requeues[to] = n
		return err
	})
	if err != nil {
		return Happened{}, explain(err)
	}
	found, err = d.sql.QueryContext(ctx, "SELECT job_id, end_ms, coalesce(record ->> 'note', '') FROM attempt "+
		"WHERE job_id IN ("+JoinIDs(q.Neighbours)+") AND end_ms>=?", q.Ended.UnixMilli())
	_, err = rows.All(found, err, "read ends of co-located jobs", func(_ *struct{}, scan rows.Scan) error {
		var job uint32
		var ms int64
		var note string
		err := scan(&job, &ms, &note)
		h.Ended[job], h.Notes[job] = time.UnixMilli(ms), note
		return err
	})
	if err != nil {
		return h, explain(err)
	}
	const longest = 10 * time.Minute // sample (nvml.interval, Thin)
	from := max((q.Started.UnixMilli()+999)/1000, q.Ended.Add(-2*longest).Unix())
	for _, uuid := range q.UUIDs {
		// The sample of this moment is not written before its own length is over.
		found, err := d.sql.QueryContext(ctx, "SELECT used_mib FROM sample WHERE uuid=? AND at BETWEEN ? AND ? AND "+
			"at+2*length>=? ORDER BY at DESC", uuid, from, q.Now.Unix(), q.Ended.Unix())
		h.UsedMiB[uuid], err = rows.All(found, err, "read samples of GPU "+uuid,
			func(mib *int64, scan rows.Scan) error { return scan(mib) })
		if err != nil {
			return h, explain(err)
		}
	}
	return h, nil
}
