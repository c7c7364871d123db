-- What one node knows of its GPUs and of the jobs that hold them. Times are
-- nanoseconds since boot (CLOCK_BOOTTIME) where they are compared with each
-- other, so that a clock that is set does not matter; the file lives on tmpfs
-- and ends with the boot.

CREATE TABLE gpu (              -- the last sample of each GPU
  uuid       TEXT PRIMARY KEY,
  idx        INTEGER NOT NULL,
  minor      INTEGER NOT NULL,  -- -1: not known
  model      TEXT NOT NULL,
  total_mib  INTEGER NOT NULL,
  mig        INTEGER NOT NULL,
  numa       INTEGER NOT NULL,  -- -1: not known
  nvlink     INTEGER NOT NULL,  -- bits of the indices of its peers
  at_ns      INTEGER NOT NULL,
  used_mib   INTEGER NOT NULL,
  smact_pct  REAL,              -- over the window; NULL: not measured
  smocc_pct  REAL,
  dram_pct   REAL,
  source     TEXT NOT NULL,
  processes  INTEGER NOT NULL,  -- of no job
  clients    INTEGER NOT NULL,  -- of its MPS server
  unreadable TEXT NOT NULL,     -- why it cannot be read, or ''
  counter_j  REAL               -- its total-energy counter; NULL: not read
) STRICT;

CREATE TABLE quarantine (       -- GPUs that no job may have
  uuid   TEXT PRIMARY KEY,
  reason TEXT NOT NULL,
  at_ns  INTEGER NOT NULL
) STRICT;

CREATE TABLE hold (             -- GPUs kept for a job that has waited long
  uuid    TEXT PRIMARY KEY,
  job_id  INTEGER NOT NULL,
  uid     INTEGER NOT NULL,     -- of the job
  gpus    INTEGER NOT NULL,     -- that the job wants on one node
  mib     INTEGER NOT NULL,     -- that it needs of each; 0: all of it
  at_ns   INTEGER NOT NULL,
  open_ns INTEGER               -- when the job can start; NULL: not yet known
) STRICT;

CREATE TABLE measured (         -- when the agent last looked at the GPUs, one row
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  at_ns INTEGER NOT NULL
) STRICT;

CREATE TABLE given (            -- the GPU that was given last, one row
  one  INTEGER PRIMARY KEY CHECK (one = 1),
  uuid TEXT NOT NULL
) STRICT;

CREATE TABLE job (              -- jobs with leases, and what their record needs
  job_id   INTEGER PRIMARY KEY,
  restart  INTEGER NOT NULL,
  uid      INTEGER NOT NULL,
  at_ns    INTEGER NOT NULL,
  about    TEXT NOT NULL,       -- JSON, the caller's
  fault    TEXT NOT NULL DEFAULT '', -- what befell it: a neighbour's MPS fault
  cancelled TEXT NOT NULL DEFAULT '', -- why the agent has cancelled it
  victim   INTEGER NOT NULL DEFAULT 0 -- its MPS server faulted, with clients of other jobs
) STRICT;

CREATE TABLE lease (
  job_id      INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
  uuid        TEXT NOT NULL,
  slot        INTEGER NOT NULL, -- position among the job's GPUs
  reserve_mib INTEGER NOT NULL CHECK (reserve_mib >= 0),
  exclusive   INTEGER NOT NULL,
  daemon      TEXT NOT NULL,    -- MPS daemon whose client the job is, by its GPUs' UUIDs; '': none
  smact_pct   REAL NOT NULL,    -- expected; 0: not known
  seen_ns     INTEGER,          -- first process of the job on the GPU
  idle_ns     INTEGER,          -- since when the job does not use the GPU; NULL: it does, or that is not known
  idle_sure_ns INTEGER,         -- since when that is certain
  idle_max_ns INTEGER NOT NULL DEFAULT 0, -- longest time before that
  max_slowdown REAL NOT NULL DEFAULT 0, -- that the job's user allows; 0: the site's
  alone_pct   REAL NOT NULL DEFAULT 0, -- SM activity while it was alone on the GPU; 0: not known
  alone_dram_pct REAL NOT NULL DEFAULT 0, -- memory bandwidth, the same
  slowed      REAL NOT NULL DEFAULT 0, -- how many times as long it takes, where that is long beyond its bound; 0: it is not
  slowed_max  REAL NOT NULL DEFAULT 0, -- the most of that
  PRIMARY KEY (job_id, uuid)
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (            -- what an attempt did on a GPU; stays until its record is complete
  job_id     INTEGER NOT NULL,
  restart    INTEGER NOT NULL,
  uuid       TEXT NOT NULL,
  peak_mib   INTEGER NOT NULL,  -- 0: not known
  peak_from  TEXT NOT NULL,
  mib_s      REAL NOT NULL,     -- MiB x seconds
  mib_for_s  REAL NOT NULL,     -- seconds that it covers
  smact_s    REAL NOT NULL,     -- percent x seconds
  smact_for_s REAL NOT NULL,
  smact_max  REAL NOT NULL,
  smact_from TEXT NOT NULL,
  energy_j   REAL NOT NULL,
  idle_j     REAL NOT NULL,
  energy_for_s REAL NOT NULL,
  lease_s    REAL NOT NULL,
  held_s     REAL NOT NULL,
  shared_s   REAL NOT NULL,
  alone_s    REAL NOT NULL,
  alone_for_s REAL NOT NULL,
  PRIMARY KEY (job_id, restart, uuid)
) STRICT, WITHOUT ROWID;

CREATE TABLE neighbour (        -- jobs that held a GPU at the same time
  job_id INTEGER NOT NULL REFERENCES job ON DELETE CASCADE,
  other  INTEGER NOT NULL,
  PRIMARY KEY (job_id, other)
) STRICT, WITHOUT ROWID;

CREATE TABLE comeback (         -- jobs put back into the queue
  job_id   INTEGER PRIMARY KEY,
  at_ns    INTEGER NOT NULL,
  delay_ns INTEGER NOT NULL     -- before they may start
) STRICT;

CREATE TABLE ended (            -- attempts whose record waits for slurmctld's word
  job_id  INTEGER NOT NULL,
  restart INTEGER NOT NULL,
  at_ns   INTEGER NOT NULL,
  PRIMARY KEY (job_id, restart)
) STRICT, WITHOUT ROWID;

-- A slurmctld that is away for long leaves many.
CREATE INDEX ended_at ON ended (at_ns);

CREATE TABLE published (        -- what slurmctld was last told, one row
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  gres    TEXT NOT NULL,
  next_ns INTEGER NOT NULL    -- before that it is told nothing else
) STRICT;

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

CREATE TABLE accuser (          -- users whose failed jobs have closed a GPU, for a day
  uuid  TEXT NOT NULL,
  uid   INTEGER NOT NULL,
  at_ns INTEGER NOT NULL,
  PRIMARY KEY (uuid, uid)
) STRICT, WITHOUT ROWID;

CREATE TABLE unsure (           -- when an Epilog last asked who waits for a GPU on which jobs fail, one row
  one   INTEGER PRIMARY KEY CHECK (one = 1),
  at_ns INTEGER NOT NULL
) STRICT;

CREATE TABLE followed (         -- how far the log of a daemon's MPS servers has been read
  daemon TEXT PRIMARY KEY,
  at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE law (              -- what an attempt was expected to do on a GPU; stays as usage does
  job_id  INTEGER NOT NULL,
  restart INTEGER NOT NULL,
  uuid    TEXT NOT NULL,
  alone_s REAL NOT NULL,        -- time that the work takes alone, by the law of interference
  PRIMARY KEY (job_id, restart, uuid)
) STRICT, WITHOUT ROWID;

CREATE TABLE raised (           -- updates that raise the node's counts; they are bounded for the cluster
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  nodes   INTEGER NOT NULL,     -- of the cluster; 0: not known yet
  paid_ns INTEGER NOT NULL      -- until then this node has used its part of them
) STRICT;

CREATE TABLE perhaps_held (     -- jobs that an Epilog requeues held, until it has released them
  job_id  INTEGER PRIMARY KEY,
  restart INTEGER NOT NULL,     -- the attempt that is held
  uid     INTEGER NOT NULL,
  at_ns   INTEGER NOT NULL
) STRICT;
