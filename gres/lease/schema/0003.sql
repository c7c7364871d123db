-- What a bound on slowdown needs, and what came of it.
ALTER TABLE lease ADD COLUMN max_slowdown REAL NOT NULL DEFAULT 0;   -- that the job's user allows; 0: the site's
ALTER TABLE lease ADD COLUMN alone_pct REAL NOT NULL DEFAULT 0;      -- SM activity while it was alone on the GPU; 0: not known
ALTER TABLE lease ADD COLUMN alone_dram_pct REAL NOT NULL DEFAULT 0; -- memory bandwidth, the same
ALTER TABLE lease ADD COLUMN slowed REAL NOT NULL DEFAULT 0;         -- how many times as long it takes, where that is long beyond its bound; 0: it is not
ALTER TABLE lease ADD COLUMN slowed_max REAL NOT NULL DEFAULT 0;     -- the most of that

CREATE TABLE law (              -- what an attempt was expected to do on a GPU; stays as usage does
  job_id  INTEGER NOT NULL,
  restart INTEGER NOT NULL,
  uuid    TEXT NOT NULL,
  alone_s REAL NOT NULL,        -- time that the work takes alone, by the law of interference
  PRIMARY KEY (job_id, restart, uuid)
) STRICT, WITHOUT ROWID;
