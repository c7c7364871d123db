CREATE TABLE perhaps_held (     -- jobs that an Epilog requeues held, until it has released them
  job_id  INTEGER PRIMARY KEY,
  restart INTEGER NOT NULL,     -- the attempt that is held
  uid     INTEGER NOT NULL,
  at_ns   INTEGER NOT NULL
) STRICT;
