// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"

	"github.com/mattn/go-sqlite3"
)

// Damaged tells whether an error means that the ledger itself is broken. A lock, a full
// disk or a time-out is over some time; damage stays until the file is removed.
func Damaged(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrCorrupt || e.Code == sqlite3.ErrNotADB)
}
