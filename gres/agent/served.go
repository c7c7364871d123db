// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"carma/gres"
)

// served is what is known of a daemon. Daemons.lock guards busy to hush; the fields after hush belong to the
// goroutine that has set busy.
type served struct {
	due    atomic.Bool // a check is due
	busy   bool
	next   func()             // the work of a later look, the last of several looks
	leases []gres.Lease       // at the last look
	hush   context.CancelFunc // ends a question to the daemon; nil: none is asked
	failed bool               // to start, since the last check
	silent int                // unanswered questions in a row
	free   time.Duration      // since when no lease names the daemon; 0: a lease does, or none ever did
}

// serve works on a daemon. While other work on the daemon is being done, the new work waits for the end (later) or is
// left out. A Prolog pokes the agent once, and waits.
func (m *Daemons) serve(ctx context.Context, d gres.Daemon, later bool, do func(context.Context, *served)) {
	m.lock.Lock()
	defer m.lock.Unlock()
	s := m.known(d)
	run := func() {
		ctx, cancel := context.WithTimeout(ctx, mpsDeadline)
		defer cancel()
		if ctx.Err() == nil {
			do(ctx, s)
		}
	}
	switch {
	case s.busy && later:
		s.next = run
		return
	case s.busy:
		return
	}
	s.busy = true
	m.work.Add(1)
	go func() {
		defer m.work.Done()
		for run != nil {
			run()
			m.lock.Lock()
			run, s.next = s.next, nil
			s.busy = run != nil
			m.lock.Unlock()
		}
	}()
}

// known gives the state of a daemon, under the lock.
func (m *Daemons) known(d gres.Daemon) *served {
	if m.of == nil {
		m.of = map[gres.Daemon]*served{}
	}
	if m.of[d] == nil {
		m.of[d] = &served{}
	}
	return m.of[d]
}

// attend serves a daemon at a look. A question to the daemon ends where the daemon is to be another user's: no user's
// silence costs the next user time.
func (m *Daemons) attend(ctx context.Context, d gres.Daemon, check bool, leases []gres.Lease,
	do func(context.Context, *served)) {
	m.lock.Lock()
	s := m.known(d)
	s.leases = leases
	hush := s.hush
	m.lock.Unlock()
	if check {
		s.due.Store(true)
	}
	if hush != nil && m.passes(d, leases) {
		hush()
	}
	m.serve(ctx, d, true, do)
}

// passes tells whether a daemon is to be another user's, or its GPUs another daemon's.
func (m *Daemons) passes(d gres.Daemon, leases []gres.Lease) bool {
	user, _ := m.MPS.Tenant(d)
	others := false
	for _, l := range leases {
		if l.Daemon == d && int64(l.UID) == user {
			return false
		}
		others = others || d.Serves(l.UUID)
	}
	return others
}

// question is the time that a daemon has for its answer: none if the daemon is to be another user's by now.
func (m *Daemons) question(ctx context.Context, s *served, d gres.Daemon) (_ context.Context, over func()) {
	ctx, cancel := context.WithTimeout(ctx, askDeadline)
	m.lock.Lock()
	s.hush = cancel
	leases := s.leases // a look may have come since the work began
	m.lock.Unlock()
	if m.passes(d, leases) {
		cancel()
	}
	return ctx, func() {
		m.lock.Lock()
		defer m.lock.Unlock()
		s.hush = nil
		cancel()
	}
}

// forget drops what is known of sets that have ended.
func (m *Daemons) forget(known []gres.Daemon) {
	m.lock.Lock()
	defer m.lock.Unlock()
	for d, s := range m.of {
		if !s.busy && !slices.Contains(known, d) {
			delete(m.of, d)
		}
	}
}
