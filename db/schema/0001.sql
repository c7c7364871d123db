-- Times are seconds since 1970, in attempt milliseconds; sizes MiB per GPU;
-- NULL means unknown.

-- One row for each attempt of a job on a node, written when it ends there. The
-- figures are those of attempt_gpu put together.
CREATE TABLE attempt (
  job_id       INTEGER NOT NULL,
  cluster      TEXT NOT NULL,
  restart      INTEGER NOT NULL,
  node         TEXT NOT NULL,
  array_job_id INTEGER,
  array_task   TEXT,
  name         TEXT,
  account      TEXT,
  user         TEXT NOT NULL,
  uid          INTEGER NOT NULL,
  partition    TEXT NOT NULL,
  submit_ms    INTEGER,
  start_ms     INTEGER NOT NULL,
  end_ms       INTEGER NOT NULL,
  state        TEXT NOT NULL,
  exit_code    INTEGER NOT NULL,
  exit_signal  INTEGER NOT NULL,
  mode         TEXT NOT NULL,
  method       TEXT NOT NULL,
  key          TEXT,             -- of the history
  est_mib      INTEGER,
  reserve_mib  INTEGER NOT NULL,
  full_mib     INTEGER,          -- a whole GPU as carma.toml has it
  gpus         TEXT NOT NULL,    -- UUIDs, "GPU-a,GPU-b"
  model        TEXT,             -- of the GPUs
  peak_mib     INTEGER,          -- of the GPU with the highest
  peak_how     TEXT NOT NULL,    -- exact, shared, unknown
  mean_mib     INTEGER,
  smact_pct    REAL,             -- mean over the GPUs, of the job's own
  smact_max    REAL,
  smact_how    TEXT NOT NULL,
  energy_j     INTEGER,          -- the job's share, all GPUs
  idle_j       INTEGER,          -- of it, the idle floor
  energy_how   TEXT NOT NULL,
  lease_ms     INTEGER NOT NULL, -- GPU time held, as far as it was measured
  held_ms      INTEGER NOT NULL, -- the same, divided by the holders at the time
  shared_ms    INTEGER NOT NULL, -- of lease_ms, with other holders
  alone_ms     INTEGER,          -- GPU time that the same work takes alone
  neighbours   TEXT NOT NULL,    -- job ids, "12,13"
  oom          TEXT,             -- signature
  oom_note     TEXT,             -- evidence, or why nothing was done
  requeued_to  TEXT,             -- partition
  law_ms       INTEGER,          -- GPU time that the work takes alone by the law of interference; NULL: not known
  unread       INTEGER,          -- line of the script that was meant for CARMA and is not read; NULL: none
  -- All of the above as one text, each value followed by a unit separator: a
  -- report that reads a million records makes one of it in a tenth of the time.
  line         TEXT NOT NULL GENERATED ALWAYS AS (format(replace('xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', 'x', '%s' || char(31)),
                 job_id, cluster, restart, node, array_job_id, array_task, name, account, user, uid, partition,
                 submit_ms, start_ms, end_ms, state, exit_code, exit_signal, mode, method, key, est_mib, reserve_mib, full_mib,
                 gpus, model, peak_mib, peak_how, mean_mib, smact_pct, smact_max, smact_how, energy_j, idle_j, energy_how,
                 lease_ms, held_ms, shared_ms, alone_ms, neighbours, oom, oom_note, requeued_to,
                 law_ms, unread)) STORED,
  version      TEXT,             -- of the CARMA that wrote the record last; in no copy for users and in no line
  PRIMARY KEY (job_id, cluster, restart, node)
) STRICT, WITHOUT ROWID;

CREATE INDEX attempt_array ON attempt (array_job_id) WHERE array_job_id IS NOT NULL;

CREATE TABLE attempt_gpu (
  job_id     INTEGER NOT NULL,
  cluster    TEXT NOT NULL,
  restart    INTEGER NOT NULL,
  node       TEXT NOT NULL,
  slot       INTEGER NOT NULL,
  uuid       TEXT NOT NULL,
  model      TEXT NOT NULL,
  figures    TEXT NOT NULL,      -- JSON of gres.Figures
  PRIMARY KEY (job_id, cluster, restart, node, slot)
) STRICT, WITHOUT ROWID;

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
