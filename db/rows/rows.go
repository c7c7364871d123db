// SPDX-License-Identifier: Apache-2.0

// Package rows reads SQLite's answers.
package rows

import (
	"database/sql"
	"errors"
	"fmt"
)

// Scan is sql.Rows's.
type Scan func(fields ...any) error

// All makes a value of each row of a query and closes the query; err is the query's. doing
// names in an error the step that failed.
func All[T any](r *sql.Rows, err error, doing string, one func(v *T, scan Scan) error) (list []T, _ error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	for err == nil && r.Next() {
		var v T
		err = one(&v, r.Scan)
		list = append(list, v)
	}
	if err = errors.Join(err, r.Err(), r.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	return list, nil
}
