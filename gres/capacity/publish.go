// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"carma/db/file"
	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
)

// minInterval keeps a node from updating slurmctld's node table more often, on
// average.
const minInterval = time.Second

// Slurm is what publishing needs of slurmctld.
type Slurm interface {
	Node(ctx context.Context, node string) (gres, comment string, err error)
	SetNodeGres(ctx context.Context, node, gres string) error
}

// Publisher publishes for one node. The agent and every Epilog have one; a
// lock file and the ledger keep them from talking over each other. A nil one is of a node whose
// slurmctld counts by itself (placement.mode "slurm") and tells nothing.
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
	Floor      bool          // no anchor node: never publish less than a whole GPU
	StaleAfter time.Duration // readings of that age offer nothing; 0: they do at any age

	due   due // of CompareIf, which one loop calls
	nodes int // of the cluster, as CompareIf noted it in the ledger
}

// ErrTooSoon means that slurmctld has been told too much in the last seconds.
var ErrTooSoon = errors.New("the last updates were too recent")

// Publish tells slurmctld the node's capacity if it differs from what it was
// last told. The error is ErrTooSoon if the caller should come again.
func (p *Publisher) Publish(ctx context.Context) error {
	if p == nil {
		return nil
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	last, wait, told, err := p.Book.Published(ctx)
	if err != nil {
		return err
	}
	if !told {
		if last, _, err = p.Slurm.Node(ctx, p.Node); err != nil {
			return err
		}
	}
	counts, err := p.counts(ctx)
	if err != nil {
		return err
	}
	text := Text(last, counts)
	if told && Same(text, last) {
		return nil
	}
	if told && wait > 0 {
		return ErrTooSoon
	}
	if told {
		if counts, err = p.bounded(ctx, last, counts); err != nil {
			return err
		}
		if text = Text(last, counts); Same(text, last) {
			return ErrTooSoon
		}
	}
	return p.tell(ctx, text)
}

// PublishIf publishes if s, which may be a moment old, says that slurmctld was
// last told something else: so nothing is locked, and read again, every second.
func (p *Publisher) PublishIf(ctx context.Context, s lease.Snapshot) error {
	if p == nil {
		return nil
	}
	last, _, told, err := p.Book.Published(ctx)
	if err != nil {
		return err
	}
	if told && Same(Text(last, p.countsOf(s)), last) {
		return nil
	}
	return p.Publish(ctx)
}

// Compare is for a Prolog that returns a job: slurmctld is told the node's counts again if it has lost them, and
// the ledger has a note of that (lease.Ledger.Miscounted).
func (p *Publisher) Compare(ctx context.Context) error {
	if p == nil {
		return nil
	}
	_, _, err := p.compare(ctx)
	return err
}

// compare asks slurmctld what it counts and tells it again if that is not what
// it was told: a reconfigure or a restart put the counts of slurm.conf back. It
// returns the node's Comment, which comes with the same answer, and whether the counts were
// right. While the question is on its way others publish: an answer of before that tells nothing.
func (p *Publisher) compare(ctx context.Context) (comment string, same bool, err error) {
	before, _, _, err := p.Book.Published(ctx)
	if err != nil {
		return "", false, err
	}
	counted, comment, err := p.Slurm.Node(ctx, p.Node)
	if err != nil {
		return "", false, err
	}
	unlock, err := p.lock(ctx)
	if err != nil {
		return "", false, err
	}
	defer unlock()
	told, _, ok, err := p.Book.Published(ctx)
	if err != nil || told != before {
		return comment, false, err
	}
	if ok && !Same(counted, told) {
		if err := p.Book.SetMiscounted(ctx); err != nil {
			return comment, false, err
		}
	}
	counts, err := p.counts(ctx)
	if err != nil {
		return "", false, err
	}
	text := Text(counted, counts)
	if Same(counted, text) {
		return comment, true, p.Book.SetPublished(ctx, text, 0)
	}
	return comment, false, p.tell(ctx, text)
}

func (p *Publisher) tell(ctx context.Context, text string) error {
	// A ledger that cannot be written must not let each look update slurmctld, nor leave it with counts
	// that nobody has noted.
	last, _, noted, err := p.Book.Published(ctx)
	if err == nil && noted {
		err = p.Book.SetPublished(ctx, last, 0)
	}
	if err == nil {
		err = p.Slurm.SetNodeGres(ctx, p.Node, text)
	}
	if err != nil {
		return err
	}
	return p.Book.SetPublished(ctx, text, minInterval)
}

func (p *Publisher) counts(ctx context.Context) ([]int64, error) {
	s, err := p.Book.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return p.countsOf(s), nil
}

func (p *Publisher) countsOf(s lease.Snapshot) []int64 {
	isWhole := p.willBeWhole(s) // old readings pass, and a Prolog returns such a job
	s = p.withoutStale(s)
	counts := Counts(p.offers(s), choose.ShareableSets(p.Policy, s.Readings, s.Leases, p.Thresholds))
	if isWhole {
		whole(counts, len(s.Readings))
	}
	return counts
}

// willBeWhole tells whether the node has all its GPUs and none is broken, so that it can give them all to
// one job when others have gone. What passes within seconds does not count: while fewer nodes
// and anchors than a waiting job needs say so, slurmctld gives the job up (BadConstraints).
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
		if p.Floor {
			g.MiB, g.Own, g.GPUs = r.TotalMiB, false, 0
		}
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
