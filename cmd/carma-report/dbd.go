// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"slices"

	"carma/cmd/internal/cli"
	"carma/db"
	"carma/slurmbridge/sctl"
)

// slurmdbd is records as the nodes forwarded them to slurmdbd. What Slurm itself
// knows of a job is Slurm's word.
type slurmdbd struct {
	attempts []db.Attempt
	spoiled  int // jobs whose records cannot be read
}

// fromSlurmdbd asks slurmdbd once for all jobs of a selection.
func fromSlurmdbd(ctx context.Context, c sctl.Client, s *selection) (*slurmdbd, error) {
	list, err := c.Accounted(ctx, sctl.AccountedFilter{Jobs: s.Jobs, Users: s.Users, Accounts: s.Accounts, Clusters: s.Clusters, From: s.From, To: s.To})
	if err != nil {
		return nil, cli.Fail(cli.ExitUnavailable, "%w", err)
	}
	src := &slurmdbd{}
	type id struct {
		cluster string
		job     uint32
	}
	known := map[id]sctl.Accounted{}
	for _, j := range list {
		known[id{j.Cluster, j.JobID}] = j
	}
	for _, j := range list {
		attempts, err := db.ParseComment(j.Comment)
		if err != nil {
			src.spoiled++
			continue
		}
		for _, a := range attempts {
			// A task of an array may carry the records of another (db.Forward).
			own, ok := known[id{j.Cluster, a.JobID}]
			if !ok {
				continue
			}
			a.Cluster, a.ArrayJobID, a.ArrayTask = own.Cluster, own.ArrayJobID, own.ArrayTask
			a.Name, a.User, a.Account = own.Name, cmp.Or(own.User, a.User), own.Account
			src.attempts = append(src.attempts, a)
		}
	}
	src.attempts = inOrder(src.attempts)
	return src, nil
}

// JobIDs returns the lowest and the highest id.
func (s *slurmdbd) JobIDs(context.Context) (low, high uint32, err error) {
	if len(s.attempts) == 0 {
		return 0, 0, nil
	}
	return s.attempts[0].JobID, s.attempts[len(s.attempts)-1].JobID, nil
}

// Scan hands over the jobs of a range of ids; the rest of the filter was sacct's.
func (s *slurmdbd) Scan(_ context.Context, f db.Filter, each func([]db.Attempt) error) error {
	from, _ := slices.BinarySearchFunc(s.attempts, f.FromJob, func(a db.Attempt, id uint32) int { return cmp.Compare(a.JobID, id) })
	list := s.attempts[from:]
	for len(list) > 0 && (f.BeforeJob == 0 || uint64(list[0].JobID) < f.BeforeJob) {
		n := 1
		for n < len(list) && list[n].JobID == list[0].JobID && list[n].Cluster == list[0].Cluster {
			n++
		}
		if err := each(list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}
