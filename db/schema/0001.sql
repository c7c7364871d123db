-- One row for each attempt of a job on a node, written when it ends there.
-- Times are seconds since 1970, sizes MiB per GPU, NULL means unknown.

CREATE TABLE attempt (
  cluster      TEXT NOT NULL,
  job_id       INTEGER NOT NULL,
  restart      INTEGER NOT NULL,
  node         TEXT NOT NULL,
  array_job_id INTEGER,
  array_task   TEXT,
  name         TEXT,
  account      TEXT,
  user         TEXT NOT NULL,
  uid          INTEGER NOT NULL,
  partition    TEXT NOT NULL,
  submit       REAL,
  start        REAL NOT NULL,
  end          REAL NOT NULL,
  state        TEXT NOT NULL,
  exit_code    INTEGER NOT NULL,
  exit_signal  INTEGER NOT NULL,
  mode         TEXT NOT NULL,
  method       TEXT NOT NULL,
  est_mib      INTEGER,
  reserve_mib  INTEGER NOT NULL,
  peak_mib     INTEGER,          -- of the GPU with the highest
  smact_pct    REAL,             -- mean over the job's GPUs
  smact_max    REAL,
  energy_j     REAL,             -- the job's share, all its GPUs
  neighbours   TEXT NOT NULL,    -- job ids, "12,13"
  oom          TEXT,             -- signature
  oom_note     TEXT,             -- evidence, or why nothing was done
  requeued_to  TEXT,             -- partition
  PRIMARY KEY (cluster, job_id, restart, node)
) STRICT, WITHOUT ROWID;

CREATE TABLE attempt_gpu (
  cluster     TEXT NOT NULL,
  job_id      INTEGER NOT NULL,
  restart     INTEGER NOT NULL,
  node        TEXT NOT NULL,
  slot        INTEGER NOT NULL,
  uuid        TEXT NOT NULL,
  peak_mib    INTEGER,
  smact_pct   REAL,
  energy_j    REAL,
  PRIMARY KEY (cluster, job_id, restart, node, slot)
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_end ON attempt (end);
