// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"runtime"
	"slices"

	"carma/db"
	"carma/slurmbridge/sctl"
)

// slurmdbd is records as the nodes forwarded them to slurmdbd. Slurm's own facts
// on a job are Slurm's word.
type slurmdbd struct {
	attempts []db.Attempt
	left     Left
}

// accountedID names a job in slurmdbd.
type accountedID struct {
	cluster string
	job     uint32
}

// accountedPart holds the jobs read by a worker.
type accountedPart struct {
	jobs     []sctl.Accounted // without their comments
	attempts []db.Attempt
	left     Left
}

// Left tells of how many records in slurmdbd were left out.
type Left struct {
	Spoiled int // jobs whose records cannot be read
	Refused int // records stored at a wrong job
}

// Slurmdbd asks slurmdbd once for all jobs of a filter, and once for their names. Their
// comments are unpacked while sacct prints them. slurmdbd has no samples of GPUs.
func Slurmdbd(ctx context.Context, c sctl.Client, f db.Filter) (Source, Left, error) {
	work := make(chan []sctl.Accounted, 2)
	parts := make(chan accountedPart)
	workers := runtime.GOMAXPROCS(0)
	for range workers {
		go func() {
			var p accountedPart
			for batch := range work {
				p.unpack(batch)
			}
			parts <- p
		}()
	}
	var batch []sctl.Accounted
	filter := sctl.AccountedFilter{Jobs: f.Jobs, Users: f.Users, Accounts: f.Accounts, Clusters: f.Clusters,
		From: f.From, To: f.To}
	err := sctl.Accounting(c).Accounted(ctx, filter, func(j sctl.Accounted) {
		if batch = append(batch, j); len(batch) == 500 {
			work <- batch
			batch = nil
		}
	})
	work <- batch
	close(work)
	src := &slurmdbd{}
	known := map[accountedID]*sctl.Accounted{}
	var records []db.Attempt
	for range workers {
		p := <-parts
		for i, j := range p.jobs {
			known[accountedID{j.Cluster, j.JobID}] = &p.jobs[i]
		}
		records = append(records, p.attempts...)
		src.left.Spoiled, src.left.Refused = src.left.Spoiled+p.left.Spoiled, src.left.Refused+p.left.Refused
	}
	names := map[accountedID]sctl.Named{}
	if err == nil && len(records) > 0 {
		err = sctl.Accounting(c).Names(ctx, filter, func(n sctl.Named) { names[accountedID{n.Cluster, n.JobID}] = n })
	}
	if err != nil {
		return nil, Left{}, err
	}
	for _, a := range records {
		id := accountedID{a.Cluster, a.JobID}
		own, ok := known[id]
		if !ok {
			continue
		}
		if a.UID != own.UID {
			src.left.Refused++
			continue
		}
		a.ArrayJobID, a.ArrayTask = own.ArrayJobID, own.ArrayTask
		a.Name, a.User, a.Account = names[id].Name, cmp.Or(own.User, a.User), names[id].Account
		src.attempts = append(src.attempts, a)
	}
	src.attempts = InOrder(src.attempts)
	return cleaned{src}, src.left, nil
}

func (p *accountedPart) unpack(batch []sctl.Accounted) {
	for _, j := range batch {
		attempts, refused, err := db.ParseComment(j.JobID, db.Comment{ArrayJobID: j.ArrayJobID, Text: j.Comment})
		if err != nil {
			p.left.Spoiled++
		}
		p.left.Refused += refused
		for _, a := range attempts {
			a.Cluster, a.GPUs = j.Cluster, nil // reports show the sums
			p.attempts = append(p.attempts, a)
		}
		j.Comment = ""
		p.jobs = append(p.jobs, j)
	}
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
	byID := func(a db.Attempt, id uint32) int { return cmp.Compare(a.JobID, id) }
	from, _ := slices.BinarySearchFunc(s.attempts, f.FromJob, byID)
	list := s.attempts[from:]
	if f.BeforeJob > 0 {
		before := func(a db.Attempt, id uint64) int { return cmp.Compare(uint64(a.JobID), id) }
		end, _ := slices.BinarySearchFunc(list, f.BeforeJob, before)
		list = list[:end]
	}
	return db.EachJob(list, each)
}
