// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"carma/db/figure"
	"carma/db/rows"
	"carma/gres"
	"carma/slurmbridge/jobenv"
)

// Held is a job and its GPUs.
type Held struct {
	Job
	Age        time.Duration
	GPUs       []Granted
	Neighbours []uint32 // jobs that held one of its GPUs at the same time
	Fault      string   // what befell the job
	Victim     bool     // Fault is a fault of its MPS server, which had clients of other jobs
	Cancelled  string   // why the agent has cancelled the job; empty: it has not
}

// querier is a database or a transaction.
type querier interface {
	Query(query string, args ...any) (*sql.Rows, error)
	QueryRow(query string, args ...any) *sql.Row
}

// Snapshot is the ledger at a single moment: what is true of the GPUs now.
type Snapshot struct {
	Readings        []gres.Reading   // by index
	Leases          []gres.Lease     // by GPU, oldest first
	PendingRestarts []PendingRestart // oldest first
	Holds           []Hold           // GPUs kept for a job
	PerhapsHeld     []PerhapsHeld    // oldest first
	AgentAge        time.Duration    // since the agent last looked at the GPUs; Never: not since the boot
	EndAge          time.Duration    // since an attempt left its GPUs last, if slurmctld has not told its end; or Never
}

// Never is the age of what has not been.
const Never time.Duration = math.MaxInt64

// Leases reads the leases alone.
func (b *Ledger) Leases() ([]gres.Lease, error) { return leasesOf(b.db) }

// Snapshot reads the ledger at a single moment, and waits for nobody.
func (b *Ledger) Snapshot(ctx context.Context) (s Snapshot, err error) {
	c, err := b.db.Conn(ctx)
	if err != nil {
		return s, fmt.Errorf("read ledger: %w", err)
	}
	defer c.Close()
	// Not BeginTx, which would take the writers' lock (_txlock).
	if _, err := c.ExecContext(ctx, "BEGIN DEFERRED"); err != nil {
		return s, fmt.Errorf("read ledger: %w", err)
	}
	// Nobody can make a reader wait (WAL), and a context that can end costs the
	// driver a goroutine for each query.
	ctx = context.WithoutCancel(ctx)
	defer c.ExecContext(ctx, "ROLLBACK")
	q := connection{ctx, c}
	if s.Readings, err = readingsOf(q); err != nil {
		return s, err
	}
	if s.Leases, err = leasesOf(q); err != nil {
		return s, err
	}
	if s.PendingRestarts, err = pendingRestarts(q); err != nil {
		return s, err
	}
	if s.Holds, err = holdsOf(q); err != nil {
		return s, err
	}
	if s.PerhapsHeld, err = perhapsHeld(q); err != nil {
		return s, err
	}
	if s.AgentAge, err = ageOf(q, "SELECT max(at_ns) FROM measured"); err != nil {
		return s, wrap(err, "read when the agent looked")
	}
	s.EndAge, err = ageOf(q, "SELECT max(at_ns) FROM ended")
	return s, wrap(err, "read when an attempt ended")
}

// ageOf is the age of the time that a query returns.
func ageOf(q querier, query string) (time.Duration, error) {
	var at sql.NullInt64
	if err := q.QueryRow(query).Scan(&at); err != nil || !at.Valid {
		return Never, err
	}
	return Now() - time.Duration(at.Int64), nil
}

// connection is a connection as a querier.
type connection struct {
	ctx context.Context
	*sql.Conn
}

func (c connection) Query(query string, args ...any) (*sql.Rows, error) {
	return c.QueryContext(c.ctx, query, args...)
}

func (c connection) QueryRow(query string, args ...any) *sql.Row {
	return c.QueryRowContext(c.ctx, query, args...)
}

// Oldest returns the age of the oldest reading; ok is false if there is none.
func (b *Ledger) Oldest(ctx context.Context) (age time.Duration, ok bool, err error) {
	var at sql.NullInt64
	if err := b.db.QueryRowContext(ctx, "SELECT min(at_ns) FROM gpu").Scan(&at); err != nil {
		return 0, false, fmt.Errorf("read readings: %w", err)
	}
	return Now() - time.Duration(at.Int64), at.Valid, nil
}

// Find returns the GPUs of key, or of an earlier attempt of its job; ok is false
// if there are none.
func (b *Ledger) Find(ctx context.Context, key jobenv.JobKey) (h Held, ok bool, err error) {
	h.JobKey = key
	var at int64
	var about string
	err = b.db.QueryRowContext(ctx, "SELECT restart, uid, at_ns, about, fault, victim, cancelled FROM job WHERE "+
		"job_id=? AND restart<=?", key.JobID, key.Restart).
		Scan(&h.Restart, &h.UID, &at, &about, &h.Fault, &h.Victim, &h.Cancelled)
	if errors.Is(err, sql.ErrNoRows) {
		return h, false, nil
	} else if err != nil {
		return h, false, fmt.Errorf("find lease of job %s: %w", key, err)
	}
	h.Age, h.About = Now()-time.Duration(at), []byte(about)
	if h.GPUs, err = grantedOf(b.db, key.JobID); err != nil {
		return h, false, err
	}
	h.Neighbours, err = neighboursOf(b.db, key.JobID)
	return h, err == nil, err
}

func readingsOf(q querier) ([]gres.Reading, error) {
	found, err := q.Query(`SELECT gpu.uuid, idx, minor, model, total_mib, mig, numa, nvlink, gpu.at_ns, used_mib, smact_pct, source, processes, clients, unreadable, counter_j,
		coalesce(q.reason, f.reason, ''), iif(q.reason IS NULL, ifnull(f.cause,''), 'mps'), ifnull(h.job_id,0), ifnull(h.uid,0), ifnull(h.gpus,0), ifnull(h.open_ns <= ?,0)
		FROM gpu LEFT JOIN quarantine q USING (uuid) LEFT JOIN hold h USING (uuid)
		LEFT JOIN fault f ON f.uuid=gpu.uuid AND f.cause=(SELECT max(cause) FROM fault WHERE uuid=gpu.uuid AND `+standing+`)
		ORDER BY idx, gpu.uuid`, int64(Now()), int64(Now()))
	now := Now()
	return rows.All(found, err, "read readings", func(r *gres.Reading, scan rows.Scan) error {
		var at, nvlink int64
		err := scan(&r.UUID, &r.Index, &r.Minor, &r.Model, &r.TotalMiB, &r.MIG, &r.NUMA, &nvlink, &at, &r.UsedMiB,
			(*figure.Measured)(&r.SMActPct), &r.Source, &r.Foreign, &r.MPSClients, &r.Unreadable, &r.CounterJ,
			&r.Quarantined, &r.Cause, &r.HeldFor, &r.HeldUID, &r.HeldGPUs, &r.HeldOpen)
		r.Age, r.NVLink = now-time.Duration(at), uint64(nvlink)
		return err
	})
}

func leasesOf(q querier) ([]gres.Lease, error) {
	now := Now()
	found, err := q.Query("SELECT j.job_id, j.restart, j.uid, j.at_ns, l.uuid, l.reserve_mib, l.exclusive, l.daemon, "+
		"l.smact_pct, l.alone_pct, l.alone_dram_pct, l.max_slowdown, l.slowed, "+
		"l.seen_ns IS NOT NULL, ifnull(?1-l.idle_ns,0), ifnull(?1-l.idle_sure_ns,0) "+
		"FROM lease l JOIN job j "+
		"USING (job_id) ORDER BY l.uuid, j.at_ns, j.job_id", int64(now))
	return rows.All(found, err, "read leases", func(l *gres.Lease, scan rows.Scan) error {
		var at int64
		err := scan(&l.Job.JobID, &l.Job.Restart, &l.UID, &at, &l.UUID, &l.ReserveMiB, &l.Exclusive, &l.Daemon,
			&l.SMActPct, &l.AlonePct, &l.AloneDRAMPct, &l.MaxSlowdown, &l.Slowed, &l.Seen, &l.Idle, &l.IdleSure)
		l.Age = now - time.Duration(at)
		return err
	})
}

func grantedOf(q querier, job uint32) ([]Granted, error) {
	found, err := q.Query("SELECT l.uuid, ifnull(g.model,''), l.slot, l.reserve_mib, l.exclusive, l.daemon, l.seen_ns "+
		"IS NOT NULL, max(l.idle_max_ns, ifnull(?-l.idle_ns,0)), l.slowed_max, "+usageColumns+
		" FROM lease l JOIN job j USING (job_id) LEFT JOIN usage u USING (job_id, restart, uuid) "+
		"LEFT JOIN law w USING (job_id, restart, uuid) LEFT JOIN gpu g USING "+
		"(uuid) WHERE l.job_id=? ORDER BY l.slot", int64(Now()), job)
	return rows.All(found, err, fmt.Sprint("read GPUs of job ", job), func(g *Granted, scan rows.Scan) error {
		var u usageRow
		err := scan(append([]any{&g.UUID, &g.Model, &g.Slot, &g.ReserveMiB, &g.Exclusive, &g.Daemon, &g.Seen,
			&g.Idle, &g.Slowed}, u.fields()...)...)
		g.Figures = u.figures()
		return err
	})
}

func neighboursOf(q querier, job uint32) ([]uint32, error) {
	found, err := q.Query("SELECT other FROM neighbour WHERE job_id=? ORDER BY other", job)
	return rows.All(found, err, fmt.Sprint("read neighbours of job ", job),
		func(other *uint32, scan rows.Scan) error { return scan(other) })
}
