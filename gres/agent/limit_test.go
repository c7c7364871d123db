// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/confine"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// driver keeps the limits that it was told.
type driver struct {
	calls []string
	fail  error
}

func (d *driver) Set(group, uuid string, mib int64) error {
	d.calls = append(d.calls, fmt.Sprint(group, " ", uuid, " ", mib))
	return d.fail
}

// take returns the calls since the last one.
func (d *driver) take() []string {
	calls := d.calls
	d.calls = nil
	return calls
}

// cgroups stand for those of jobs.
type cgroups struct {
	scope  string
	groups map[uint32][]confine.Group
	err    error
}

func (c *cgroups) Scope() (string, error)                     { return c.scope, c.err }
func (c *cgroups) Groups(job uint32) ([]confine.Group, error) { return c.groups[job], c.err }

func limiting(t *testing.T, log io.Writer) (*MemoryLimits, *driver, *cgroups) {
	d, c := &driver{}, &cgroups{"/scope", map[uint32][]confine.Group{}, nil}
	return &MemoryLimits{Log: slog.New(slog.NewTextHandler(log, nil)), RunDir: t.TempDir(), Driver: d, Cgroups: c}, d, c
}

// Where the driver takes no limit, no job gets one, and Prologs do not count on it. slurmd may
// come later than the agent.
func TestProbeLimits(t *testing.T) {
	var log bytes.Buffer
	m, d, c := limiting(t, &log)
	s := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "m", MIG: true}}, {GPU: gres.GPU{UUID: "a"}}},
		Leases: []gres.Lease{{Job: jobenv.JobKey{JobID: 7}, UUID: "a", ReserveMiB: 10240}}}
	c.groups[7] = []confine.Group{{Dir: t.TempDir(), Inode: 1}}
	c.scope, d.fail = "", errors.New("not supported")
	m.keep(t.Context(), s)
	if calls := d.take(); calls != nil {
		t.Errorf("before slurmd: %q", calls)
	}
	c.scope = "/scope"
	m.keep(t.Context(), s)
	m.keep(t.Context(), s)
	if calls := d.take(); !slices.Equal(calls, []string{"/scope a 0"}) ||
		!strings.Contains(log.String(), "not supported") {
		t.Errorf("not supported: %q\n%s", calls, &log)
	}
	if _, limited := confine.LimitedSince(m.RunDir); limited {
		t.Error("Prologs count on limits")
	}
	if why := confine.UnlimitedBy(m.RunDir); why == nil || why.Error() != "not supported" {
		t.Errorf("the doctor says %v", why)
	}
	d.fail = nil
	again, _, _ := limiting(t, &log)
	again.RunDir, again.Driver, again.Cgroups = m.RunDir, d, c
	s.Leases[0].Age = time.Hour
	again.keep(t.Context(), s)
	if calls := d.take(); !slices.Equal(calls, []string{"/scope a 0"}) {
		t.Errorf("a job that is older than the limits: %q", calls)
	}
	since, limited := confine.LimitedSince(m.RunDir)
	if !limited || confine.UnlimitedBy(m.RunDir) != nil {
		t.Error("Prologs do not count on limits")
	}
	third, _, _ := limiting(t, &log)
	third.RunDir, third.Driver, third.Cgroups = m.RunDir, d, c
	third.keep(t.Context(), s)
	if since != third.from {
		t.Errorf("another agent counts from %v, not %v", third.from, since)
	}
}

func TestLimitMemory(t *testing.T) {
	var log bytes.Buffer
	m, d, c := limiting(t, &log)
	groups := c.groups
	s := lease.Snapshot{Readings: []gres.Reading{{GPU: gres.GPU{UUID: "a"}}, {GPU: gres.GPU{UUID: "b"}},
		{GPU: gres.GPU{UUID: "m", MIG: true}}}}
	holds := func(job uint32, uuid string, mib int64) gres.Lease {
		return gres.Lease{Job: jobenv.JobKey{JobID: job}, UUID: uuid, ReserveMiB: mib}
	}
	look := func(name string, want ...string) {
		t.Helper()
		m.keep(t.Context(), s)
		if got := d.take(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	look("first", "/scope a 0")
	whole := holds(8, "b", 40536)
	whole.Exclusive = true
	s.Leases = []gres.Lease{holds(7, "a", 10240), whole, holds(9, "m", 5120)}
	look("no cgroup yet")
	seven := t.TempDir()
	groups[7] = []confine.Group{{Dir: seven, Inode: 1}}
	groups[8], groups[9] = []confine.Group{{Dir: "/job_8", Inode: 2}}, []confine.Group{{Dir: "/job_9", Inode: 3}}
	look("the job alone that shares", seven+" a 10240")
	look("once")
	groups[7][0].Inode = 4
	look("another cgroup of that name; the former may still be there", seven+" a 0", seven+" a 10240")
	c.err = errors.New("no cgroup.conf")
	look("what cannot be seen stays")
	c.err = nil
	s.Leases = append(s.Leases, holds(7, "b", 10240))
	look("on two GPUs", seven+" b 10240")
	s.Leases = nil
	m.keep(t.Context(), s)
	if got := d.take(); len(got) != 2 || !slices.Contains(got, seven+" a 0") || !slices.Contains(got, seven+" b 0") {
		t.Errorf("after the lease: %q", got)
	}
	look("once")

	s.Leases, d.fail = []gres.Lease{holds(7, "a", 10240)}, errors.New("not supported")
	look("refused", seven+" a 10240")
	look("refused again", seven+" a 10240")
	d.fail = nil
	look("not refused", seven+" a 10240")
	look("once")
	d.fail, groups[7][0].Dir = errors.New("not found"), "/none"
	look("a job that has ended", seven+" a 0", "/none a 10240")
	if n := strings.Count(log.String(), "does not hold jobs"); n != 2 ||
		!strings.Contains(log.String(), "not supported") {
		t.Errorf("said %d times, not twice:\n%s", n, &log)
	}
}
