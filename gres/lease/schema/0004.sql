-- slurmctld has counted what the job holds (carmatotal): its end gives that back (docs/adr/0126).
ALTER TABLE lease ADD COLUMN booked INTEGER NOT NULL DEFAULT 0;
