-- SPDX-License-Identifier: Apache-2.0

-- Whose records are newer than what users can read (db.Publisher), and how often they
-- changed. A later step that changes the table of attempts has to enter all users here.
CREATE TABLE changed (
  uid   INTEGER PRIMARY KEY,
  times INTEGER NOT NULL
) STRICT;

CREATE INDEX attempt_uid ON attempt (uid);

INSERT INTO changed SELECT DISTINCT uid, 1 FROM attempt;
