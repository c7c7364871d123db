// SPDX-License-Identifier: Apache-2.0

//go:build abuse

package abuse

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"carma/db"
)

// The test program is a writer too.
func TestMain(m *testing.M) {
	if path := os.Getenv("ABUSE_WRITER_DB"); path != "" {
		if err := write(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const rowsEach = 100

// write puts its rows and says on stdout which are committed, and how long each
// took.
func write(path string) error {
	first, _ := strconv.Atoi(os.Getenv("ABUSE_WRITER_FIRST"))
	d, err := db.Open(path)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin) // until all are
	for i := range rowsEach {
		start := time.Now()
		a := db.Attempt{Cluster: "c", JobID: uint32(first + i), Node: "n1", User: "u", Partition: "gpu", Start: start,
			End: start, State: "COMPLETED", Mode: "shared", Method: "user"}
		// As carma-node does: what is not taken goes to the spool, and from
		// there into the database later.
		if err := d.Put(context.Background(), a); err != nil {
			fmt.Fprintln(os.Stderr, err)
			if err := db.SpoolOf(path).Add(a); err != nil {
				return err
			}
		}
		fmt.Printf("%d %d\n", first+i, time.Since(start).Microseconds())
	}
	return d.Close()
}

// 200 processes write at the same time, 50 of them are killed: no row that was
// committed is lost, none is there twice, the database is whole.
func TestAbuseWriters(t *testing.T) {
	const writers, kills = 200, 50
	path := filepath.Join(t.TempDir(), "carma.db")
	d, err := db.Open(path) // the schema
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	committed := map[int]bool{}
	var took []int
	var wait, ready sync.WaitGroup
	begin, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for w := range writers {
		cmd := exec.Command("/proc/self/exe")
		cmd.Stdin = begin
		cmd.Env = append(os.Environ(), "ABUSE_WRITER_DB="+path, fmt.Sprint("ABUSE_WRITER_FIRST=", 1+w*rowsEach))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := rowsEach
		if w < kills {
			after = rng.IntN(rowsEach) // rows, and then some of what the next ones take
		}
		part := time.Duration(rng.IntN(100)) * time.Millisecond
		ready.Add(1)
		wait.Add(1)
		go func() {
			defer wait.Done()
			lines := bufio.NewScanner(out)
			if lines.Scan(); lines.Text() != "ready" {
				t.Errorf("writer %d: %q", w, lines.Text())
			}
			ready.Done()
			for rows := 0; rows < after || w >= kills; rows++ {
				if !lines.Scan() {
					break
				}
				id, us, ok := strings.Cut(lines.Text(), " ")
				n, err := strconv.Atoi(id)
				if m, err2 := strconv.Atoi(us); ok && err == nil && err2 == nil {
					mu.Lock()
					committed[n] = true
					took = append(took, m)
					mu.Unlock()
				}
			}
			if w < kills {
				time.Sleep(part)
				cmd.Process.Kill()
			}
			io.Copy(io.Discard, out)
			if err := cmd.Wait(); err != nil && w >= kills {
				t.Errorf("writer %d: %v", w, err)
			}
		}()
	}
	ready.Wait()
	began := time.Now()
	closed.Close()
	wait.Wait()
	lasted := time.Since(began)
	spooled, _ := os.ReadDir(db.SpoolOf(path).Dir)
	if d, err = db.Open(path); err == nil {
		for range 3 { // again and again: nothing is there twice
			refused, drainErr := db.SpoolOf(path).Drain(context.Background(), d.Put, d.PutIfNone)
			if err = errors.Join(err, drainErr); refused > 0 {
				t.Errorf("%d spooled records were refused", refused)
			}
		}
		err = errors.Join(err, d.Close())
	}
	if err != nil {
		t.Error(err)
	}
	raw, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var whole string
	if err := raw.QueryRow("PRAGMA integrity_check").Scan(&whole); err != nil || whole != "ok" {
		t.Errorf("integrity: %q, %v", whole, err)
	}
	rows, err := raw.Query("SELECT job_id, count(*) FROM attempt GROUP BY job_id")
	if err != nil {
		t.Fatal(err)
	}
	there := map[int]bool{}
	for rows.Next() {
		var id, n int
		if err := rows.Scan(&id, &n); err != nil || n != 1 {
			t.Errorf("row %d is there %d times, %v", id, n, err)
		}
		there[id] = true
	}
	lost := 0
	for id := range committed {
		if !there[id] {
			lost++
		}
	}
	if lost > 0 || len(committed) == 0 {
		t.Errorf("%d of %d committed rows are lost", lost, len(committed))
	}
	slices.Sort(took)
	row(t, fmt.Sprintf("%d writers, %d killed", writers, kills),
		fmt.Sprintf("%d rows committed in %.1f s, %d of them by the spool, %d lost, p50 %d ms, p99 %d ms, longest %d ms",
			len(committed), lasted.Seconds(), len(spooled), lost, took[len(took)/2]/1000, took[len(took)*99/100]/1000,
			took[len(took)-1]/1000))
}

// A database of a newer CARMA, or one on a network file system, is refused with
// words; a report from one that is cut is no partial report.
func TestAbuseDatabases(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"of a newer version": func(path string) error {
			raw, err := sql.Open("sqlite3", path)
			if err != nil {
				return err
			}
			defer raw.Close()
			_, err = raw.Exec("PRAGMA user_version = 999")
			return err
		},
		"cut": func(path string) error { return errors.Join(os.Remove(path+"-wal"), os.Truncate(path, 5000)) },
		"nonsense": func(path string) error {
			return errors.Join(os.Remove(path+"-wal"), os.WriteFile(path, []byte(strings.Repeat("nonsense", 1000)), 0o644))
		},
		"-wal cut": func(path string) error { return os.WriteFile(path+"-wal", []byte("cut"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			d, err := db.Open(n.dir + "/var/carma.db")
			n.must(err)
			n.must(d.Put(context.Background(), db.Attempt{Cluster: "c", JobID: 7, Node: "n1", User: "u", Partition: "gpu",
				Start: time.Now(), End: time.Now(), State: "COMPLETED", Mode: "shared", Method: "user"}))
			n.must(d.Close())
			n.must(spoil(n.dir + "/var/carma.db"))
			cmd := exec.Command(root+"/bin/carma-report", "-j", "7")
			cmd.Env = append(os.Environ(), "CARMA_CONF="+n.dir+"/carma.toml")
			out, err := cmd.CombinedOutput()
			row(t, "report of a database "+name, fmt.Sprintf("%v: %.90q", err, out))
			if whole := strings.Contains(string(out), "COMPLETED"); whole == (err != nil) ||
				strings.Contains(string(out), "panic") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
