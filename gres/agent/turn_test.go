// SPDX-License-Identifier: Apache-2.0

//go:build go1.25

package agent

import (
	"slices"
	"testing"
	"testing/synctest" // not in Go 1.24, with which CARMA builds
	"time"

	"carma/gres"
	"carma/gres/lease"
	"carma/slurmbridge/jobenv"
)

// A user's daemon does not answer, and the user's last job there ends; the next user's Prolog leases the GPU and pokes
// the agent. The agent looks once a second besides. The Prolog does not wait for the answer.
func TestNextUserWaitsForNoAnswer(t *testing.T) {
	of := func(job, uid uint32) []gres.Lease {
		return []gres.Lease{{Job: jobenv.JobKey{JobID: job}, UID: uid, UUID: "a", Daemon: "a"}}
	}
	left := []gres.Process{{PID: 1, MPS: true}} // of a job that has ended
	for _, c := range []struct {
		name          string
		before, after []gres.Lease
		processes     []gres.Process
		has           int64
		want          []string
	}{
		{"asked for a fault", of(7, 1000), of(8, 2000), nil, 2000, []string{"starts a"}},
		{"asked to end a client", nil, of(8, 2000), left, 2000, []string{"starts a"}},
		{"another job of the user", of(7, 1000), of(8, 1000), nil, 1000, []string{"kills a", "starts a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, d := &ledger{}, &daemons{silent: "a", has: map[gres.Daemon]int64{"a": 1000}}
				m := looksAfter(d, l, owners{1: {JobID: 99}})
				look := func(leases []gres.Lease, check bool) {
					l.meanwhile = lease.Snapshot{Leases: leases}
					sample := gres.Sample{GPU: gres.GPU{UUID: "a"}, Processes: c.processes}
					m.check(t.Context(), view{samples: []gres.Sample{sample}, snapshot: l.meanwhile}, check)
				}
				look(c.before, true)
				synctest.Wait() // the agent asks
				begin := time.Now()
				user := int64(-1)
				for range 20 {
					look(c.after, false)
					synctest.Wait()
					if user, _ = d.Tenant("a"); user == 2000 {
						break
					}
					time.Sleep(time.Second)
				}
				took := time.Since(begin)
				if c.has == 2000 && took > 0 {
					t.Errorf("the next user has waited %v for a daemon", took)
				}
				m.work.Wait()
				if got := d.called(); user != c.has || !slices.Equal(got, c.want) {
					t.Errorf("the daemon is user %d's; %v", user, got)
				}
			})
		})
	}
}
