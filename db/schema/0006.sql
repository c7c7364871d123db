-- SPDX-License-Identifier: Apache-2.0

-- Line of the job's script that was meant for CARMA and is not read; NULL: none.
ALTER TABLE attempt ADD COLUMN unread INTEGER;

INSERT INTO changed SELECT DISTINCT uid, 1 FROM attempt WHERE true ON CONFLICT DO UPDATE SET times = times + 1;
