// SPDX-License-Identifier: Apache-2.0

package records

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"carma/db"
	"carma/slurmbridge/slurmconf"
)

func TestReadersOf(t *testing.T) {
	for text, want := range map[string]db.Readers{
		"PrivateData             = none\nSlurmUser               = slurm(64030)\n":   {Operator: 64030},
		"PrivateData             = cloud,events,reservations\nSlurmUser = root(0)\n": {},
		"PrivateData             = jobs\nSlurmUser               = slurm(64030)\n":   {Private: true, Operator: 64030},
		"PrivateData             = accounts,nodes\nSlurmUser = slurm(64030)\n": {Private: true, NoGPUs: true,
			Operator: 64030},
		"PrivateData             = Usage\n":                                               {Private: true},
		"PrivateData             = nodes,users\nSlurmUser = a(b(7)\n":                     {Private: true, NoGPUs: true},
		"PrivateData             = (null)\nSlurmUser = slurm(99999999999)\n":              {},
		"SlurmUser               = slurm(64030)\n":                                        nobodyElse,
		"slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)": nobodyElse,
	} {
		if got := readersOf(slurmconf.Running(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

type slurmctld func() (string, error)

func (s slurmctld) ShowConfig(context.Context) (string, error) { return s() }

// Records are private until slurmctld says otherwise.
func TestPublishAsksFirst(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		err    error
		want   []string
	}{
		"open":    {"PrivateData = none\nSlurmUser = slurm(64030)\n", nil, []string{"all.db"}},
		"away":    {"", errors.New("slurmctld is away"), []string{"1000.db"}},
		"private": {"PrivateData = jobs\nSlurmUser = slurm(64030)\n", nil, []string{"1000.db", "all.db"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "carma.db")
			d, err := db.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := d.Put(t.Context(), db.Attempt{JobID: 1, UID: 1000, Start: time.Unix(1, 0),
				End: time.Unix(2, 0)}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan bool)
			go func() {
				Publish(ctx, path, slurmctld(func() (string, error) { return c.answer, c.err }),
					slog.New(slog.NewTextHandler(io.Discard, nil)))
				close(done)
			}()
			published := func(name string) bool {
				_, err := os.Stat(filepath.Join(db.PublicDir(path), name))
				return err == nil
			}
			// The samples are published when the records are.
			for begin := time.Now(); !published("gpus.db") &&
				time.Since(begin) < 5*time.Minute; time.Sleep(10 * time.Millisecond) {
			}
			cancel()
			<-done
			var got []string
			for _, name := range []string{"1000.db", "all.db"} {
				if published(name) {
					got = append(got, name)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
