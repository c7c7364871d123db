-- SPDX-License-Identifier: Apache-2.0

-- How many jobs of a user were requeued within an hour (Lately): few jobs are, so that the index stays small.
CREATE INDEX attempt_requeued ON attempt (uid, end_ms, requeued_to) WHERE requeued_to IS NOT NULL;
