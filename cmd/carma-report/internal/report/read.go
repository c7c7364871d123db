// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"runtime"

	"carma/db"
	"carma/db/source"
)

// pieces is in how many parts the job ids are read, and ahead how many of them
// may be done before it is their turn.
const (
	pieces = 512
	ahead  = 8
)

// each makes a part of every range of job ids, several at a time, and hands them
// to done in the order of the ids. So a million jobs take as many cores as there
// are, and memory for a few parts.
func each[T any](ctx context.Context, sources []source.Source, s *selection, start func() T, add func(T, *job),
	done func(T) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ranges, err := split(ctx, sources)
	if err != nil {
		return err
	}
	type result struct {
		part T
		err  error
	}
	results := make([]chan result, len(ranges))
	for i := range results {
		results[i] = make(chan result, 1)
	}
	slots := make(chan struct{}, min(runtime.GOMAXPROCS(0), ahead))
	turn := make(chan struct{}, ahead)
	go func() {
		for i, r := range ranges {
			select {
			case turn <- struct{}{}:
			case <-ctx.Done():
				results[i] <- result{err: ctx.Err()}
				continue
			}
			slots <- struct{}{}
			go func() {
				defer func() { <-slots }()
				part := start()
				err := scan(ctx, sources, s, r, func(j *job) error { add(part, j); return nil })
				results[i] <- result{part, err}
			}()
		}
	}()
	for i := range results {
		r := <-results[i]
		if r.err != nil {
			return unavailable(r.err)
		}
		if err := done(r.part); err != nil {
			return err
		}
		<-turn
	}
	return nil
}

// idRange is job ids from, and below before.
type idRange struct {
	from   uint32
	before uint64
}

func split(ctx context.Context, sources []source.Source) ([]idRange, error) {
	var low, high uint32
	for _, src := range sources {
		l, h, err := src.JobIDs(ctx)
		if err != nil {
			return nil, unavailable(err)
		}
		if h == 0 {
			continue
		}
		if low == 0 || l < low {
			low = l
		}
		high = max(high, h)
	}
	if high == 0 {
		return nil, nil
	}
	var list []idRange
	step := (uint64(high) - uint64(low) + pieces) / pieces
	for from := uint64(low); from <= uint64(high); from += step {
		list = append(list, idRange{uint32(from), from + step})
	}
	return list, nil
}

// inRanges calls f for all job ids: at once for one source, which reads on as it goes; for several, range after
// range, as each holds all attempts of its range in memory.
func inRanges(ctx context.Context, sources []source.Source, f func(idRange) error) error {
	ranges := []idRange{{}}
	if len(sources) > 1 {
		var err error
		if ranges, err = split(ctx, sources); err != nil {
			return err
		}
	}
	for _, r := range ranges {
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

// scan hands the selected jobs of a range to f in sequence; f must not keep
// them.
func scan(ctx context.Context, sources []source.Source, s *selection, r idRange, f func(*job) error) error {
	filter := s.Filter
	filter.FromJob, filter.BeforeJob = r.from, r.before
	var j job
	one := func(attempts []db.Attempt) error {
		j.merge(attempts)
		if !s.has(&j) {
			return nil
		}
		return f(&j)
	}
	return source.Scan(ctx, sources, filter, one)
}

// errEnough ends a scan that has what it wants.
var errEnough = errors.New("enough")

// first returns the first jobs of the selection, at most so many, among the first jobs of the time, at most look; rest
// tells whether there may be more.
func first(ctx context.Context, sources []source.Source, s *selection, most, look int) (jobs []*job, rest bool,
	err error) {
	looked := 0
	count := *s
	err = inRanges(ctx, sources, func(r idRange) error {
		return scan(ctx, sources, &selection{Filter: s.Filter}, r, func(j *job) error {
			if looked++; len(jobs) == most || looked > look {
				return errEnough
			}
			if count.has(j) {
				jobs = append(jobs, j.clone())
			}
			return nil
		})
	})
	if errors.Is(err, errEnough) {
		return jobs, true, nil
	}
	if err != nil {
		return nil, false, unavailable(err)
	}
	return jobs, false, nil
}
