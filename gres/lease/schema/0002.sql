-- What is wrong with GPUs beside a fault of their MPS server (quarantine). They take no
-- job.
CREATE TABLE fault (
  uuid     TEXT NOT NULL,
  cause    TEXT NOT NULL,       -- xid, device, jobs
  reason   TEXT NOT NULL,
  at_ns    INTEGER NOT NULL,
  until_ns INTEGER,             -- when it ends by itself; NULL: when somebody ends it
  PRIMARY KEY (uuid, cause)
) STRICT, WITHOUT ROWID;

CREATE TABLE failure (          -- jobs in a row that failed soon with a fault of the GPU
  uuid   TEXT NOT NULL,
  job_id INTEGER NOT NULL,
  uid    INTEGER NOT NULL,
  at_ns  INTEGER NOT NULL,
  PRIMARY KEY (uuid, job_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE followed (         -- how far the log of a daemon's MPS servers has been read
  daemon TEXT PRIMARY KEY,
  at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

ALTER TABLE job ADD COLUMN victim INTEGER NOT NULL DEFAULT 0; -- its MPS server faulted, with clients of other jobs
