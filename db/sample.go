// SPDX-License-Identifier: Apache-2.0

package db

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"carma/db/figure"
	"carma/db/rows"
)

// Sample is what a GPU did for a while.
type Sample struct {
	UUID     string
	At       time.Time // beginning
	Length   time.Duration
	UsedMiB  int64           // most
	SMActPct figure.Measured // mean
	SMActMax figure.Measured
	SMActS   float64 // seconds covered by the mean
	EnergyJ  figure.Measured
	UnownedJ figure.Measured // of it, when no job held the GPU
	EnergyS  float64         // seconds covered by the energy
	Jobs     int             // most at once
	Memory   []JobSample     // of the jobs, as far as the sample reaches; Series leaves these out
}

// JobSample is the memory of a job on a GPU, for as long as the figure stays.
type JobSample struct {
	UUID           string
	At             time.Time // beginning
	Length         time.Duration
	JobID, Restart uint32
	UID            uint32
	UsedMiB        int64 // most
}

// Meter is the state of a GPU for an agent that starts.
type Meter struct {
	UUID       string
	Index      int // of NVML
	Model      string
	TotalMiB   int64
	Node       string
	CounterJ   figure.Measured // total-energy counter
	At         time.Time       // of the counter
	FloorWatts figure.Measured // power with nobody on the GPU
}

// AddSamples writes samples and the state of the meters. An existing sample is replaced; a sample of
// a job grows.
func (d *DB) AddSamples(ctx context.Context, samples []Sample, meters []Meter) error {
	err := d.write(ctx, func(tx *sql.Tx) error {
		for _, s := range samples {
			if err := putSample(tx, s); err != nil {
				return err
			}
			for _, j := range s.Memory {
				_, err := tx.Exec("INSERT INTO job_sample VALUES (?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "+
					"length = max(length, excluded.length), used_mib = max(used_mib, excluded.used_mib)", j.UUID, j.At.Unix(),
					j.JobID, j.Restart, j.UID, int64(j.Length.Seconds()), j.UsedMiB)
				if err != nil {
					return err
				}
			}
		}
		for _, m := range meters {
			_, err := tx.Exec("INSERT OR REPLACE INTO gpu VALUES (?,?,?,?,?,?,?,?)", m.UUID, m.Node, m.Index, m.Model,
				m.TotalMiB,
				m.CounterJ, float64(m.At.UnixMilli())/1000, m.FloorWatts)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write samples: %w", explain(err))
	}
	return nil
}

func putSample(tx *sql.Tx, s Sample) error {
	_, err := tx.Exec("INSERT OR REPLACE INTO sample VALUES (?,?,?,?,?,?,?,?,?,?,?)", s.UUID, s.At.Unix(),
		int64(s.Length.Seconds()), s.UsedMiB,
		s.SMActPct, s.SMActMax, s.SMActS, s.EnergyJ, s.UnownedJ, s.EnergyS,
		s.Jobs)
	return err
}

// Meters returns the state of all GPUs, by node and index.
func (d *DB) Meters(ctx context.Context) ([]Meter, error) {
	found, err := d.sql.QueryContext(ctx, "SELECT uuid, node, idx, model, total_mib, counter_j, at, floor_watts FROM "+
		"gpu ORDER BY node, idx, uuid")
	return rows.All(found, d.of(err), "read GPUs", func(m *Meter, scan rows.Scan) error {
		var at sql.NullFloat64
		err := scan(&m.UUID, &m.Node, &m.Index, &m.Model, &m.TotalMiB, &m.CounterJ, &at,
			&m.FloorWatts)
		m.At = time.UnixMilli(int64(at.Float64 * 1000))
		return err
	})
}

// Series returns the samples of a GPU that lie in a time, or of all GPUs if uuid
// is empty, by GPU and time.
func (d *DB) Series(ctx context.Context, uuid string, from, to time.Time) ([]Sample, error) {
	found, err := d.sql.QueryContext(ctx, `SELECT uuid, at, length, used_mib, smact_pct, smact_max, smact_s, energy_j, unowned_j, energy_s, jobs FROM sample
		WHERE (?1 = '' OR uuid = ?1) AND at + length > ?2 AND at < ?3 ORDER BY uuid, at`, uuid, from.Unix(), to.Unix())
	return rows.All(found, d.of(err), "read samples", func(s *Sample, scan rows.Scan) error {
		var at, length int64
		err := scan(&s.UUID, &at, &length, &s.UsedMiB, &s.SMActPct, &s.SMActMax, &s.SMActS, &s.EnergyJ, &s.UnownedJ,
			&s.EnergyS, &s.Jobs)
		s.At, s.Length = time.Unix(at, 0), time.Duration(length)*time.Second
		return err
	})
}

// NewestSample is when the newest sample begins; zero: there is none.
func (d *DB) NewestSample(ctx context.Context) (at time.Time, err error) {
	var s sql.NullInt64
	if err = d.sql.QueryRowContext(ctx, "SELECT max((SELECT max(at) FROM sample s WHERE s.uuid = gpu.uuid)) "+
		"FROM gpu").Scan(&s); err == nil && s.Valid {
		at = time.Unix(s.Int64, 0)
	}
	return at, d.of(err)
}

// JobSamples returns the memory of jobs on a GPU in a time, by beginning and job.
func (d *DB) JobSamples(ctx context.Context, uuid string, from, to time.Time) ([]JobSample, error) {
	found, err := d.sql.QueryContext(ctx, `SELECT uuid, at, job_id, restart, uid, length, used_mib FROM job_sample
		WHERE uuid = ? AND at + length > ? AND at < ? ORDER BY at, job_id, restart`, uuid, from.Unix(), to.Unix())
	return rows.All(found, d.of(err), "read memory of jobs", func(j *JobSample, scan rows.Scan) error {
		var at, length int64
		err := scan(&j.UUID, &at, &j.JobID, &j.Restart, &j.UID, &length, &j.UsedMiB)
		j.At, j.Length = time.Unix(at, 0), time.Duration(length)*time.Second
		return err
	})
}

// ages say how long samples stay short: after a day a minute is enough, after a
// week ten.
var ages = []struct {
	after, length time.Duration
}{{24 * time.Hour, time.Minute}, {7 * 24 * time.Hour, 10 * time.Minute}}

// Thin puts old samples together to longer ones. Energy stays the same. Samples of jobs keep beginning
// and end.
func (d *DB) Thin(ctx context.Context, now time.Time) error {
	for _, a := range ages {
		length := int64(a.length.Seconds())
		before := now.Add(-a.after).Truncate(a.length).Unix()
		err := d.write(ctx, func(tx *sql.Tx) error {
			_, err := tx.Exec(`CREATE TEMP TABLE thin AS SELECT uuid, at / ?1 * ?1 AS begin, max(used_mib) AS used, sum(smact_pct * smact_s) / sum(iif(smact_pct IS NULL, 0, smact_s)) AS mean,
				max(smact_max) AS most, sum(smact_s) AS smact_s, sum(energy_j) AS energy, sum(unowned_j) AS unowned, sum(energy_s) AS energy_s, max(jobs) AS jobs
				FROM sample WHERE length < ?1 AND at < ?2 GROUP BY uuid, begin`, length, before)
			if err != nil {
				return err
			}
			_, err = tx.Exec(`CREATE TEMP TABLE thin_job AS SELECT uuid, min(at) AS begin, job_id, restart, uid,
				max(?1, max(at + length) - min(at)) AS length, max(used_mib) AS used
				FROM job_sample WHERE length < ?1 AND at < ?2 GROUP BY uuid, job_id, restart, uid, at / ?1`, length, before)
			if err != nil {
				return err
			}
			for _, step := range []string{
				"DELETE FROM sample WHERE length < ?1 AND at < ?2",
				"DELETE FROM job_sample WHERE length < ?1 AND at < ?2",
				"INSERT OR REPLACE INTO sample SELECT uuid, begin, ?1, used, mean, most, smact_s, energy, unowned, energy_s, " +
					"jobs FROM thin WHERE ?2 > 0",
				"INSERT INTO job_sample SELECT * FROM thin_job",
				"DROP TABLE thin",
				"DROP TABLE thin_job",
			} {
				args := []any{length, before}[:min(strings.Count(step, "?"), 2)]
				if _, err := tx.Exec(step, args...); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("thin samples: %w", explain(err))
		}
	}
	return nil
}
