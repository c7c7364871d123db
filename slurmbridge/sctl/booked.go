// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"carma/slurmbridge/tres"
)

// Booked is a pending job, or all waiting tasks of an array, whose request books memory.
type Booked struct {
	Target Target
	Gres   string // the request without CARMA's part, made of checked names and numbers
	Err    error  // the request cannot be made so
}

var bookedFields = []string{"JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "tres-per-node"}

// Booked asks for the pending jobs with booked memory, of all partitions.
func (c Client) Booked(ctx context.Context) ([]Booked, error) {
	rows, err := c.squeue(ctx, bookedFields, "--all", "--states=PENDING")
	if err != nil && !errors.Is(err, ErrNoJob) {
		return nil, err
	}
	var jobs []Booked
	for _, row := range rows {
		if j, ok := parseBooked(row); ok {
			jobs = append(jobs, j)
		}
	}
	return jobs, nil
}

// parseBooked reads the fields of a job; ok is false for a job without a booking or with wrong numbers.
func parseBooked(row []string) (b Booked, ok bool) {
	f := make([]string, len(row))
	for i := range row {
		f[i] = strings.TrimSpace(row[i])
	}
	list := tres.Read(f[5])
	id, err := number(f[0])
	if err != nil || !list.Books() {
		return b, false
	}
	j := Job{ID: id}
	if !none(f[2]) {
		if j.ArrayJobID, err = number(f[1]); err != nil {
			return b, false
		}
		if j.ArrayTask, err = number(f[2]); err != nil {
			j.Unsplit = true
		}
	}
	if !none(f[3]) && f[3] != "0" {
		var failed error
		j.HetJobID, err = number(f[3])
		if j.HetOffset, failed = number(f[4]); err != nil || failed != nil {
			return b, false
		}
	}
	b.Target = j.Component()
	if j.Unsplit {
		b.Target = j.waitingTasks()
	}
	b.Gres, b.Err = plainGres(list.Without())
	return b, true
}

var gresName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.-]+$`) })

// plainGres writes a GRES list anew from names and numbers: a user's own text stands in no argument.
func plainGres(list string) (string, error) {
	var entries []string
	for e := range tres.Parse(list) {
		entry := e.Name
		if e.Type != "" {
			entry += ":" + e.Type
		}
		for part := range strings.SplitSeq(entry, ":") {
			if !gresName().MatchString(part) {
				return "", errors.New("its GRES are no plain names and numbers")
			}
		}
		entries = append(entries, entry+":"+strconv.FormatInt(e.Count, 10))
	}
	return strings.Join(entries, ","), nil
}

// ownExtra is the word by which an administrator takes CARMA's part out of a job's extra: the plugin
// leaves the user's own text (slurmbridge/shim).
const ownExtra = "carma"

// Unbook makes a request Slurm's own again. Nothing is left of a request of CARMA's alone.
func (c Client) Unbook(ctx context.Context, b Booked, v Version) error {
	if b.Err != nil {
		return b.Err
	}
	if !v.Publishes() {
		gres := b.Gres
		if gres == "" {
			gres = tres.GPU + ":0" // scontrol puts "gres:" before each, also before nothing (22.05)
		}
		return c.update(ctx, b.Target, "Gres="+gres)
	}
	gres := "TresPerNode=" + withPrefix(b.Gres)
	err := c.update(ctx, b.Target, gres, "Extra="+ownExtra)
	if err != nil && strings.Contains(err.Error(), "Invalid extra constraints") {
		// slurmctld takes no empty extra (extra_constraints.c, 24.11 to 26.05), as of a user without one:
		// CARMA's part stays, and says nothing any more when extra_constraints leaves slurm.conf.
		return c.update(ctx, b.Target, gres)
	}
	return err
}

// withPrefix writes "gres/" before each entry, as TresPerNode= takes them.
func withPrefix(gres string) string {
	if gres == "" {
		return ""
	}
	return "gres/" + strings.ReplaceAll(gres, ",", ",gres/")
}
