-- SPDX-License-Identifier: Apache-2.0

-- Of the CARMA that wrote the record last; NULL: one before this step. It is in no
-- copy for users and in no line.
ALTER TABLE attempt ADD COLUMN version TEXT;
