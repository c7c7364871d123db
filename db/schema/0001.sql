-- Times are seconds since 1970, in attempt milliseconds; NULL means unknown.

-- One row for each attempt of a job on a node, written at the end of the attempt.
CREATE TABLE attempt (
  job_id       INTEGER NOT NULL,
  cluster      TEXT NOT NULL,
  restart      INTEGER NOT NULL,
  node         TEXT NOT NULL,
  array_job_id INTEGER,
  account      TEXT NOT NULL,    -- empty: not known
  user         TEXT NOT NULL,
  uid          INTEGER NOT NULL,
  start_ms     INTEGER NOT NULL,
  end_ms       INTEGER NOT NULL,
  requeued_to  TEXT,             -- partition
  record       TEXT NOT NULL,    -- JSON of db.Attempt, with the columns above; no key in a copy for users
  version      TEXT,             -- of the CARMA that wrote the record last; in no copy for users
  PRIMARY KEY (job_id, cluster, restart, node, start_ms)   -- slurmctld may give an id again
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_array ON attempt (array_job_id) WHERE array_job_id IS NOT NULL;

-- A series for each GPU; old samples are put together to longer ones.
CREATE TABLE sample (
  uuid      TEXT NOT NULL,
  at        INTEGER NOT NULL,
  length    INTEGER NOT NULL,    -- seconds
  used_mib  INTEGER NOT NULL,    -- most
  smact_pct REAL,                -- mean
  smact_max REAL,
  smact_s   REAL NOT NULL,       -- seconds that the mean covers
  energy_j  REAL NOT NULL,
  unowned_j REAL NOT NULL,       -- of it, when no job held the GPU
  energy_s  REAL NOT NULL,       -- seconds that the energy covers
  jobs      INTEGER NOT NULL,    -- most at once
  PRIMARY KEY (uuid, at)
) STRICT, WITHOUT ROWID;

CREATE INDEX sample_age ON sample (length, at);

-- The memory of each job on a GPU: a row for as long as the figure stays. Readers of the job's record, and
-- nobody else, read the rows.
CREATE TABLE job_sample (
  uuid     TEXT NOT NULL,
  at       INTEGER NOT NULL,
  job_id   INTEGER NOT NULL,
  restart  INTEGER NOT NULL,
  uid      INTEGER NOT NULL,
  length   INTEGER NOT NULL,     -- seconds
  used_mib INTEGER NOT NULL,     -- most
  PRIMARY KEY (uuid, at, job_id, restart)
) STRICT, WITHOUT ROWID;

-- A user's copy of 3,500 rows takes 7 ms with the index, and 71 ms without where 200 users have 700,000 rows.
CREATE INDEX job_sample_uid ON job_sample (uid);

-- What an agent that starts needs to know of each GPU.
CREATE TABLE gpu (
  uuid        TEXT PRIMARY KEY,
  node        TEXT NOT NULL,
  idx         INTEGER NOT NULL,
  model       TEXT NOT NULL,
  total_mib   INTEGER NOT NULL,
  counter_j   REAL,              -- total-energy counter at that time
  at          REAL NOT NULL,
  floor_watts REAL               -- with nobody on it; NULL: never seen so
) STRICT, WITHOUT ROWID;

-- Records that slurmdbd is to get.
CREATE TABLE outbox (
  job_id  INTEGER NOT NULL,
  cluster TEXT NOT NULL,
  at      INTEGER NOT NULL,      -- not to be sent before
  tries   INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (job_id, cluster)
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_uid ON attempt (uid);

-- How many jobs of a user were requeued within an hour (Lately): few jobs are, so that the index stays small.
CREATE INDEX attempt_requeued ON attempt (uid, end_ms, requeued_to) WHERE requeued_to IS NOT NULL;

-- Whose records are newer than what users can read (db.Publisher), and how often they
-- changed. A later step that changes the table of attempts has to enter all users here.
CREATE TABLE changed (
  uid   INTEGER PRIMARY KEY,
  times INTEGER NOT NULL
) STRICT;
