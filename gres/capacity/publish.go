// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"carma/db/file"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/extra"
)

// minInterval keeps a node from updating slurmctld's node table more often, on
// average.
const minInterval = time.Second

// longestRest is the longest pause between two updates that slurmctld refuses or does not answer: the node may be
// unknown there, or munge may reject the node's clock, for days.
const longestRest = 30 * time.Second

// Slurm is what publishing needs of slurmctld.
type Slurm interface {
	Node(ctx context.Context, node string) (extra string, err error)
	SetNodeExtra(ctx context.Context, node, text string) error
}

// Publisher publishes for a node. The agent and every Epilog have their own; a
// lock file and the ledger keep them from talking over each other.
type Publisher struct {
	Node       string
	RunDir     string
	Slurm      Slurm
	Book       *lease.Ledger
	Policy     choose.Policy
	IdleOnly   bool // config.Placement.IdleOnly
	Thresholds choose.Thresholds
	FullMiB    []int64       // sizes of GPUs in carma.toml
	GPUs       []int         // of a node, by partition; empty: any number
	StaleAfter time.Duration // readings of such an age offer nothing; 0: readings of any age offer
	UserKey    string        // config.Slurm.UserKey

	rested time.Duration // PublishIf: until then slurmctld, which took no update, is left alone
	rest   time.Duration // PublishIf: how long; 0: slurmctld knows the counts
	due    due           // of CompareIf, called by a single loop
	nodes  int           // of the cluster, as CompareIf noted it in the ledger
}

// ErrTooSoon means that slurmctld has been told too much in the last seconds.
var ErrTooSoon = errors.New("the last updates were too recent")

// Publish tells slurmctld the node's capacity if the capacity differs from the one last told, and before the agent
// has looked at a GPU that a job has left, only what is lower. The error is ErrTooSoon if the caller should come
// again. The agent begins: where slurmctld was told nothing, as by an agent that compares no counts, Publish tells
// slurmctld nothing.
func (p *Publisher) Publish(ctx context.Context) error {
	return p.publish(ctx, false)
}

// PublishIf publishes if s, which may be a moment old, says that slurmctld was
// last told something else, or nothing: so nothing is locked, and read again, every second. After an error PublishIf
// rests, ever longer; the error is ErrTooSoon then.
func (p *Publisher) PublishIf(ctx context.Context, s lease.Snapshot) error {
	text, _, ok, err := p.Book.Published(ctx)
	if err != nil {
		return err
	}
	counts, err := p.countsOf(s)
	if err != nil {
		return err
	}
	if told, ok := noted(text, ok); ok && maps.Equal(told, counts) {
		p.rest, p.rested = 0, 0
		return nil
	}
	if lease.Now() < p.rested {
		return ErrTooSoon
	}
	switch err = p.publish(ctx, true); {
	case err == nil:
		p.rest = 0
	case !errors.Is(err, ErrTooSoon):
		p.rest = min(max(2*p.rest, minInterval), longestRest)
		p.rested = lease.Now() + p.rest
	}
	return err
}

func (p *Publisher) publish(ctx context.Context, begins bool) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	text, wait, ok, err := p.Book.Published(ctx)
	if err != nil {
		return err
	}
	told, ok := noted(text, ok)
	if !ok && !begins {
		return nil
	}
	counts, s, err := p.counts(ctx)
	if err != nil {
		return err
	}
	if !ok {
		return p.tell(ctx, counts)
	}
	if isBehind(s) {
		counts = lower(told, counts)
	}
	if maps.Equal(told, counts) {
		return nil
	}
	if wait > 0 {
		return ErrTooSoon
	}
	if counts, err = p.bounded(ctx, told, counts); err != nil {
		return err
	}
	if maps.Equal(told, counts) {
		return ErrTooSoon
	}
	return p.tell(ctx, counts)
}

// agentStops is the age of its last look from which on the agent is not expected to look again.
const agentStops = 3 * time.Second

// isBehind tells whether a job has left its GPUs since the agent looked at the GPUs, and the agent will look again: the
// Epilog wakes the agent. By the readings of before, a part of such a GPU is free, and a job that came later and needs
// no more would pass the first job, which waits for all of the GPU.
func isBehind(s lease.Snapshot) bool { return s.EndAge < s.AgentAge && s.AgentAge < agentStops }

// compare asks slurmctld what stands in the node's Extra and tells it the counts again if these are not what
// they should be: who else writes there may have overwritten them. It
// returns the Extra and whether the counts were right. While the question is on its way others publish: an
// answer of before that tells nothing.
func (p *Publisher) compare(ctx context.Context) (text string, same bool, err error) {
	before, _, _, err := p.Book.Published(ctx)
	if err != nil {
		return "", false, err
	}
	if text, err = p.Slurm.Node(ctx, p.Node); err != nil {
		return "", false, err
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return "", false, err
	}
	defer unlock()
	now, _, _, err := p.Book.Published(ctx)
	if err != nil || now != before {
		return text, false, err
	}
	counts, s, err := p.counts(ctx)
	if err != nil || isBehind(s) {
		return text, false, err
	}
	should, err := merged(text, counts)
	if err != nil {
		return "", false, err
	}
	was, err := extra.Counts(text)
	if err != nil {
		return "", false, err
	}
	if is, err := extra.Counts(should); err != nil || !maps.Equal(was, is) {
		return text, false, cmp.Or(err, p.tell(ctx, counts))
	}
	noteText, err := note(counts)
	if err != nil {
		return "", false, err
	}
	return text, true, p.Book.SetPublished(ctx, noteText, 0)
}

// merged puts counts into the node's Extra. The count by which the steward sends a job here that preempts is not
// ours: it stays as long as the hold with which it came.
func merged(text string, counts map[string]int64) (string, error) {
	h, _ := steward.HoldIn(text)
	return extra.SetCounts(text, h.With(counts))
}

// tell writes the counts into the node's Extra. What stands there is read for each update: others write there,
// too.
func (p *Publisher) tell(ctx context.Context, counts map[string]int64) error {
	// A ledger that cannot be written must not let each look update slurmctld, nor leave it with counts
	// that nobody has noted.
	last, _, ok, err := p.Book.Published(ctx)
	if err == nil && ok {
		err = p.Book.SetPublished(ctx, last, 0)
	}
	if err == nil {
		err = p.edit(ctx, func(text string) (string, error) { return merged(text, counts) })
	}
	if err != nil {
		return err
	}
	text, err := note(counts)
	if err != nil {
		return err
	}
	return p.Book.SetPublished(ctx, text, minInterval)
}

// edit changes the node's Extra: what stands there is read and written at once.
func (p *Publisher) edit(ctx context.Context, change func(text string) (string, error)) error {
	before, err := p.Slurm.Node(ctx, p.Node)
	if err != nil {
		return err
	}
	after, err := change(before)
	if err != nil || after == before {
		return err
	}
	return p.Slurm.SetNodeExtra(ctx, p.Node, after)
}

// SetWords puts words into the node's Extra, by their keys, or takes them out (empty).
func (p *Publisher) SetWords(ctx context.Context, words map[string]string) error {
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	text, _, ok, err := p.Book.Published(ctx)
	if err != nil {
		return err
	}
	told, ok := noted(text, ok)
	return p.edit(ctx, func(text string) (string, error) {
		text, err := steward.SetWords(text, words)
		if err != nil || !ok {
			return text, err
		}
		return merged(text, told)
	})
}

func (p *Publisher) counts(ctx context.Context) (counts map[string]int64, s lease.Snapshot, err error) {
	if s, err = p.Book.Snapshot(ctx); err == nil {
		counts, err = p.countsOf(s)
	}
	return counts, s, err
}

func (p *Publisher) countsOf(s lease.Snapshot) (map[string]int64, error) {
	tags, err := extra.ReadTags(p.UserKey, os.ReadFile)
	if err != nil {
		return nil, err
	}
	isWhole := p.willBeWhole(s) // old readings pass, and a Prolog returns such a job
	s = p.withoutStale(s)
	counts := keyed(p.offers(s), choose.ShareableSets(p.Policy, s.Readings, s.Leases, p.Thresholds), tags)
	if counts[extra.All] = 0; isWhole {
		counts[extra.All] = int64(len(s.Readings))
	}
	return counts, nil
}

// willBeWhole tells whether the node has all its GPUs and none is broken, so that it can give them all to
// one job when others have gone. What passes within seconds does not count: slurmctld plans such a job by the
// memory that jobs consume, and looks at no node that does not satisfy the constraint.
func (p *Publisher) willBeWhole(s lease.Snapshot) bool {
	broken := func(r gres.Reading) bool { return r.Unreadable != "" || r.Quarantined != "" }
	return len(s.Readings) > 0 && p.complete(s) && !slices.ContainsFunc(s.Readings, broken)
}

// withoutStale is the snapshot with those GPUs closed that a Prolog would close. Others read s, too.
func (p *Publisher) withoutStale(s lease.Snapshot) lease.Snapshot {
	if p.StaleAfter > 0 {
		s.Readings = slices.Clone(s.Readings)
		choose.CloseStale(s.Readings, p.StaleAfter)
	}
	return s
}

// complete tells whether the node has as many GPUs as nodes of some partition have.
func (p *Publisher) complete(s lease.Snapshot) bool {
	return len(p.GPUs) == 0 || slices.Contains(p.GPUs, len(s.Readings))
}

// offers is what each GPU can give.
func (p *Publisher) offers(s lease.Snapshot) []Offer {
	gpus := make([]Offer, len(s.Readings))
	for i, r := range s.Readings {
		g := &gpus[i]
		g.MiB, _ = choose.Offer(p.IdleOnly, r, s.Leases, p.Thresholds)
		g.UID, g.Own = choose.Owner(p.Policy, r, s.Leases, p.Thresholds)
		g.GPUs = r.HeldGPUs
		g.MiB = Grain(g.MiB, r.GPU, p.fullMiB(r.GPU))
	}
	return gpus
}

// offersAll tells whether the node offers as many GPUs as a node has, whole and to everybody.
func (p *Publisher) offersAll(s lease.Snapshot) bool {
	s = p.withoutStale(s)
	if len(s.Readings) == 0 || !p.complete(s) {
		return false
	}
	for i, g := range p.offers(s) {
		if g.MiB < s.Readings[i].TotalMiB && g.MiB != p.fullMiB(s.Readings[i].GPU) || g.Own || g.GPUs > 0 {
			return false
		}
	}
	return true
}

// fullMiB is the size that carma.toml gives the GPU, for jobs book that: a cluster may
// have GPUs of several sizes.
func (p *Publisher) fullMiB(g gres.GPU) int64 {
	for _, mib := range p.FullMiB {
		if g.Whole(mib) {
			return mib
		}
	}
	return g.TotalMiB
}

// lock takes the node's publication lock, waiting for it until ctx ends.
func (p *Publisher) lock(ctx context.Context) (unlock func(), err error) {
	f, err := file.Lock(ctx, filepath.Join(p.RunDir, "publish.lock"))
	if err != nil {
		return nil, fmt.Errorf("lock publication: %w", err)
	}
	return func() { f.Close() }, nil
}
