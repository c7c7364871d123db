-- SPDX-License-Identifier: Apache-2.0

-- GPU time that the work takes alone by the law of interference; NULL: not known. Readers
-- put it behind the line, which this step thus need not write anew.
ALTER TABLE attempt ADD COLUMN law_ms INTEGER;

INSERT INTO changed SELECT DISTINCT uid, 1 FROM attempt WHERE true ON CONFLICT DO UPDATE SET times = times + 1;
