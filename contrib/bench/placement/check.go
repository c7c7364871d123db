// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// check replays the ledger's log against a model of a GPU: the memory promised
// is at most the GPU's, and a job with the GPU to itself is alone there. It
// returns the number of changes and the most memory that was promised twice at
// any moment.
func check(audit *sql.DB) (changes int, twiceMiB int64, err error) {
	total := map[string]int64{}
	if err := each(audit, "SELECT uuid, total_mib FROM gpu", func(scan func(...any) error) error {
		var uuid string
		var mib int64
		err := scan(&uuid, &mib)
		total[uuid] = mib
		return err
	}); err != nil {
		return 0, 0, err
	}
	booked := map[string]int64{}
	jobs := map[string]map[int64]bool{} // on a GPU; true: alone
	err = each(audit, "SELECT job_id, uuid, reserve_mib, exclusive FROM audit ORDER BY seq",
		func(scan func(...any) error) error {
			var job, mib int64
			var uuid string
			var alone bool
			if err := scan(&job, &uuid, &mib, &alone); err != nil {
				return err
			}
			changes++
			booked[uuid] += mib
			if jobs[uuid] == nil {
				jobs[uuid] = map[int64]bool{}
			}
			if mib < 0 {
				delete(jobs[uuid], job)
			} else {
				jobs[uuid][job] = alone
			}
			for _, alone := range jobs[uuid] {
				if alone && len(jobs[uuid]) > 1 {
					return fmt.Errorf("job %d is on GPU %s, which another has alone", job, uuid)
				}
			}
			twiceMiB = max(twiceMiB, booked[uuid]-total[uuid])
			return nil
		})
	return changes, twiceMiB, err
}

func each(db *sql.DB, query string, row func(scan func(...any) error) error) error {
	rows, err := db.Query(query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// watchAgent tells how much of a core the agent takes and how much memory it
// has (proc(5): user and system time in ticks of 10 ms, VmRSS).
func (n *node) watchAgent(d time.Duration) (pct, rssMiB float64, err error) {
	ticks := func() (float64, error) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.agent.Process.Pid))
		if err != nil {
			return 0, err
		}
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		user, err1 := strconv.ParseFloat(f[11], 64)
		system, err2 := strconv.ParseFloat(f[12], 64)
		return user + system, errors.Join(err1, err2)
	}
	before, err := ticks()
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(d)
	after, err := ticks()
	if err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.agent.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	if m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text); m != nil {
		kib, _ := strconv.ParseFloat(string(m[1]), 64)
		rssMiB = kib / 1024
	}
	return (after - before) / 100 / d.Seconds() * 100, rssMiB, nil
}

// latencies are times of many hooks.
type latencies []time.Duration

func (l latencies) String() string {
	if len(l) == 0 {
		return "none"
	}
	slices.Sort(l)
	at := func(q float64) time.Duration { return l[int(q*float64(len(l)-1))].Round(100 * time.Microsecond) }
	return fmt.Sprintf("median %v, p99 %v, longest %v (%d)", at(0.5), at(0.99), at(1), len(l))
}

var leased = regexp.MustCompile(`msg=leased hook=prolog took=(\S+)`)

// logged reads from the hooks' log how long each lease took.
func (n *node) logged() (latencies, error) {
	f, err := os.Open(filepath.Join(n.dir, "hooks.log"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all latencies
	for s := bufio.NewScanner(f); s.Scan(); {
		if m := leased.FindSubmatch(s.Bytes()); m != nil {
			d, err := time.ParseDuration(string(m[1]))
			if err != nil {
				return nil, err
			}
			all = append(all, d)
		}
	}
	return all, nil
}
