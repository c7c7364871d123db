CREATE TABLE raised (           -- updates that raise the node's counts; they are bounded for the cluster
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  nodes   INTEGER NOT NULL,     -- of the cluster; 0: not known yet
  paid_ns INTEGER NOT NULL      -- until then this node has used its part of them
) STRICT;

CREATE TABLE miscounted (       -- slurmctld had lost what it was told
  one     INTEGER PRIMARY KEY CHECK (one = 1),
  at_ns   INTEGER NOT NULL      -- when this was found last
) STRICT;
