// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"carma/db/figure"
	"carma/db/source"
	"carma/db/texttable"
	"carma/estimator/history"
	"carma/estimator/method"
	"carma/slurmbridge/jobstate"
)

// script says of a key whose it is and what the job with the highest id was called.
type script struct{ user, name string }

// lesson holds the lessons of a part of the jobs.
type lesson struct {
	runs    []history.Run
	scripts map[history.Key]script
}

func (l *lesson) add(j *job) {
	r := runOf(j)
	l.runs = append(l.runs, r)
	if s := (script{j.User, j.Name}); l.scripts[r.Key] != s {
		// Cloned, not to keep the text that they are cut from.
		l.scripts[r.Key] = script{strings.Clone(s.user), strings.Clone(s.name)}
	}
}

// learn makes a history of the selected jobs, whatever the selection says of times.
func learn(ctx context.Context, sources []source.Source, sel *selection) (*history.Learner, map[history.Key]script,
	error) {
	l, scripts := history.NewLearner(), map[history.Key]script{}
	s := *sel
	s.From, s.To = time.Time{}, time.Time{}
	err := each(ctx, sources, &s, func() *lesson { return &lesson{scripts: map[history.Key]script{}} }, (*lesson).add,
		func(part *lesson) error {
			for _, r := range part.runs {
				l.Add(r)
			}
			maps.Copy(scripts, part.scripts)
			return nil
		})
	return l, scripts, err
}

// runOf is the lesson of a job.
func runOf(j *job) history.Run {
	key, _ := history.ParseKey(j.Key)
	r := history.Run{Key: key, UID: j.UID, Submit: j.Submit.Unix(), End: j.End.Unix(), RunS: int64(j.RunS),
		OOM:       j.OOM != "",
		Completed: j.State == jobstate.Completed || j.State == jobstate.Timeout, Analytic: j.Method == method.Analytic,
		EstMiB:  j.EstMiB,
		FullMiB: j.FullMiB}
	if j.figures.PeakHow == figure.Exact {
		r.PeakMiB, r.MeanMiB, r.Preallocated = j.PeakMiB, j.figures.MeanMiB, j.preallocated() != ""
	}
	if j.figures.SMActPct.Known() {
		r.SMActPct, r.Alone = float64(j.figures.SMActPct), j.figures.SMActHow == figure.Exact
	}
	return r
}

// writeHistory puts a new snapshot in the place of the old one, as a whole, and for
// the same readers; a first one is for the owner of its directory alone: its keys tell who
// has a script what others' runs of it took.
func writeHistory(path string, l *history.Learner, now int64) error {
	var before history.Snapshot
	if text, err := os.ReadFile(path); err == nil {
		// A spoiled snapshot is replaced, and the base is learned anew.
		before, _ = history.Parse(text)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the history before: %w", err)
	}
	order, values := l.Values()
	f, err := os.CreateTemp(filepath.Dir(path), ".history-*")
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(history.Make(order, values, l.Shifts(before, now)))
	if err := errors.Join(err, readersOf(path, f), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// readersOf gives a file the mode, the owner and the group of the one at path. A first
// file is its writer's alone, but root gives a first file to the directory's owner:
// SlurmUser is to read the file.
func readersOf(path string, f *os.File) error {
	root := os.Geteuid() == 0 // only root gives files away
	mode := fs.FileMode(0o600)
	info, err := os.Stat(path)
	if err == nil {
		mode = info.Mode().Perm()
	} else if errors.Is(err, fs.ErrNotExist) {
		if !root {
			return f.Chmod(mode)
		}
		info, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	if old, ok := info.Sys().(*syscall.Stat_t); ok {
		owner := -1
		if root {
			owner = int(old.Uid)
		}
		if err := f.Chown(owner, int(old.Gid)); err != nil {
			return err
		}
	}
	return f.Chmod(mode)
}

// history lists the lessons of earlier runs.
func (r *Report) history(ctx context.Context, out io.Writer) error {
	const shown = 1000
	l, scripts, err := learn(ctx, r.sources, r.sel)
	if err != nil {
		return err
	}
	return printHistory(out, l, scripts, &r.style, shown)
}

// WriteHistory makes the file from which job_submit learns what earlier runs teach.
func (r *Report) WriteHistory(ctx context.Context, path string) error {
	l, _, err := learn(ctx, r.sources, r.sel)
	if err != nil {
		return err
	}
	return writeHistory(path, l, r.style.time.Now.Unix())
}

// printHistory lists the known runs, the newest first.
func printHistory(w io.Writer, l *history.Learner, scripts map[history.Key]script, s *style, most int) error {
	order, values := l.Values()
	t := texttable.Table{Columns: texttable.Columns("KEY", "USER", "NAME", ">RUNS", ">PEAK", ">SPREAD",
		">BOOKED NEXT", ">MEAN", ">SMACT", ">RUN", ""),
	}
	memory := func(v int64) string { return string(s.appendText(nil, mib, num(v))) }
	for _, k := range order[:min(len(order), most)] {
		v, says := values[k], ""
		if v.Differ() {
			says = "the runs differ: " + history.TellApart
		}
		t.Rows = append(t.Rows, []string{k.String(), cmp.Or(scripts[k].user, unknownText),
			cmp.Or(scripts[k].name, unknownText), fmt.Sprint(v.Runs), memory(v.PeakMiB), memory(v.SpreadMiB),
			memory(v.Reserve()), memory(v.MeanMiB),
			string(s.appendText(nil, percent, measured(figure.Measured(v.SMActPct)))),
			string(appendClock(nil, float64(v.RunS))), says})
	}
	_, err := t.WriteTo(w)
	return err
}
