// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/gres/steward"
	"carma/slurmbridge/extra"
	"carma/slurmbridge/jobenv"
	"carma/slurmbridge/policy"
)

func TestCounts(t *testing.T) {
	any := func(mib ...int64) map[string]int64 {
		counts := map[string]int64{}
		for i, n := range mib {
			counts[extra.Key(i+1)] = n
		}
		return counts
	}
	and := func(counts map[string]int64, more ...userCount) map[string]int64 {
		for _, m := range more {
			counts[extra.UserKey(m.k, m.user)] = m.mib
		}
		return counts
	}
	for _, c := range []struct {
		gpus     []Offer
		together [][]int
		want     map[string]int64
	}{
		{nil, nil, any()},
		{[]Offer{{MiB: 100}, {MiB: 100}, {MiB: 100}, {MiB: 100}}, [][]int{{0, 1, 2, 3}}, any(100, 100, 100, 100)},
		{[]Offer{{MiB: 20}, {MiB: 100}, {MiB: 0}, {MiB: 50}}, [][]int{{0, 1, 2, 3}}, any(100, 50, 20, 0)},
		{[]Offer{{MiB: 20}, {MiB: 100}, {MiB: 30}, {MiB: 50}}, [][]int{{0, 1}, {2, 3}}, any(100, 30, 0, 0)},
		{[]Offer{{MiB: 20}, {MiB: 100}}, nil, any(100, 0)},
		{[]Offer{{MiB: 20}}, nil, any(20)},
		// Each owner's own beside what is anybody's.
		{[]Offer{{20, 1003, true, 0}, {100, 1006, true, 0}, {MiB: 10}}, [][]int{{0, 2}, {1, 2}},
			and(any(10, 0, 0), userCount{1, "1003", 20}, userCount{2, "1003", 10}, userCount{1, "1006", 100},
				userCount{2, "1006", 10})},
		{[]Offer{{20, 1003, true, 0}, {100, 3, true, 0}}, nil,
			and(any(0, 0), userCount{1, "1003", 20}, userCount{1, "3", 100})},
		{[]Offer{{20, 1003, true, 0}, {MiB: 100}, {MiB: 60}}, [][]int{{0, 1, 2}},
			and(any(100, 60, 0), userCount{3, "1003", 20})},
		{[]Offer{{20, 1003, true, 0}, {20, 1006, true, 0}, {MiB: 100}}, [][]int{{0, 1, 2}},
			and(any(100, 0, 0), userCount{2, "1003", 20}, userCount{2, "1006", 20})},
		{[]Offer{{20, 1003, true, 0}, {MiB: 100}, {MiB: 60}}, [][]int{{1, 2}}, any(100, 60, 0)}, // not together with his
		// Kept for a job on one GPU, two and three.
		{[]Offer{{100, 1003, true, 1}, {MiB: 10}}, [][]int{{0, 1}}, and(any(10, 0), userCount{1, "1003", 100})},
		{[]Offer{{100, 1003, true, 2}, {90, 1003, true, 2}, {MiB: 10}, {MiB: 20}}, [][]int{{0, 1, 2, 3}},
			and(any(20, 10, 0, 0), userCount{2, "1003", 90})},
		{[]Offer{{100, 1003, true, 2}, {MiB: 10}, {MiB: 20}}, [][]int{{0, 1, 2}},
			and(any(20, 10, 0), userCount{2, "1003", 20})},
		{[]Offer{{100, 1003, true, 3}, {90, 1003, true, 3}, {80, 1003, true, 3}}, [][]int{{0, 1, 2}},
			and(any(0, 0, 0), userCount{3, "1003", 80})},
		{[]Offer{{100, 1003, true, 2}, {90, 1003, true, 0}}, [][]int{{0, 1}},
			and(any(0, 0), userCount{1, "1003", 90}, userCount{2, "1003", 90})},
		{[]Offer{{0, 1003, true, 2}, {0, 1003, true, 2}}, [][]int{{0, 1}}, any(0, 0)}, // not offered yet
	} {
		if got := keyed(c.gpus, c.together, extra.Tags{}); !maps.Equal(got, c.want) {
			t.Errorf("Counts(%v) = %v, want %v", c.gpus, got, c.want)
		}
	}
	tags := extra.Tags{Secret: []byte("0123456789abcdef")}
	if got := keyed([]Offer{{20, 1003, true, 0}}, nil, tags); len(got) != 2 ||
		got[extra.UserKey(1, tags.Of(1003))] != 20 {
		t.Errorf("with a secret: %v", got)
	}
}

// userCount is what k GPUs can give a user.
type userCount struct {
	k    int
	user string
	mib  int64
}

func TestGrain(t *testing.T) {
	g := gres.GPU{TotalMiB: 40503}
	for mib, want := range map[int64]int64{40503: 40536, 40502: 40448, 1000: 768, 255: 0, 0: 0} {
		if got := Grain(mib, g, 40536); got != want {
			t.Errorf("Grain(%d) = %d, want %d", mib, got, want)
		}
	}
	if got := Grain(40503, g, 81559); got != 40503 {
		t.Errorf("a GPU of another size counts %d", got)
	}
}

// fakeSlurm counts what it is told.
type fakeSlurm struct {
	extra   string
	updates []string
	err     error
	asked   int
}

func (f *fakeSlurm) Node(context.Context, string) (string, error) {
	f.asked++
	return f.extra, f.err
}

func (f *fakeSlurm) SetNodeExtra(_ context.Context, node, text string) error {
	f.extra = text
	f.updates = append(f.updates, text)
	return f.err
}

// says checks what stands in the node's Extra.
func (f *fakeSlurm) says(t *testing.T, when string, want string) {
	t.Helper()
	if f.extra != want {
		t.Errorf("%s: got %s, want %s", when, f.extra, want)
	}
}

// idle is the Extra of a node with two idle GPUs.
const idle = `{"carma1":40536,"carma2":40536,"carmaall":2}`

func newPublisher(t *testing.T, s *fakeSlurm) *Publisher {
	t.Helper()
	dir := t.TempDir()
	book, err := lease.Open(dir, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { book.Close() })
	var readings []gres.Reading
	for i := range 2 {
		readings = append(readings, gres.Reading{GPU: gres.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, TotalMiB: 40503}})
	}
	if err := book.PutReadings(t.Context(), readings); err != nil {
		t.Fatal(err)
	}
	return &Publisher{Node: "n1", RunDir: dir, Slurm: s, Book: book, FullMiB: []int64{81920, 40536},
		Thresholds: choose.Thresholds{SMActMaxPct: 80, MarginMiB: 2048, MaxJobs: 4, CrossUser: true}}
}

// publishFirst publishes as an agent does that starts.
func publishFirst(t *testing.T, p *Publisher) {
	t.Helper()
	if err := p.publish(t.Context(), true); err != nil {
		t.Fatal(err)
	}
}

func grant(t *testing.T, b *lease.Ledger, id uint32, mib int64) {
	t.Helper()
	job := lease.Job{JobKey: jobenv.JobKey{JobID: id}, UID: 1000}
	_, err := b.Acquire(t.Context(), job, gres.Request{GPUs: 1, ReserveMiB: mib, UID: 1000},
		func([]gres.Reading, []gres.Lease, string) ([]string, gres.Daemon) { return []string{"GPU-0"}, "GPU-0" })
	if err != nil {
		t.Fatal(err)
	}
}

// read has the node read so many GPUs, the last with processes of no job.
func read(t *testing.T, p *Publisher, gpus, foreign int) {
	t.Helper()
	var readings []gres.Reading
	for i := range gpus {
		readings = append(readings, gres.Reading{GPU: gres.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, TotalMiB: 40536}})
	}
	readings[gpus-1].Foreign = foreign
	if err := p.Book.PutReadings(t.Context(), readings); err != nil {
		t.Fatal(err)
	}
}

// GPUs that are kept for a job are offered once it can start, to its user, who asks for as many.
func TestPublishKept(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	ctx := t.Context()
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return p.Book.Hold(ctx, 7, 1003, 2, 0, []string{"GPU-0", "GPU-1"}) }, `"carma1":0,"carma2":0`},
		{func() error { return p.Book.OpenHold(ctx, 7, 0) }, `"carma1":0,"carma2":0,"carma2u1003":40536`},
		{func() error { return p.Book.DropHold(ctx, 7) }, `"carma1":40536,"carma2":40536`},
		{func() error { return p.Book.Hold(ctx, 8, 1003, 1, 0, []string{"GPU-0"}) }, `"carma1":40536,"carma2":0`},
		{func() error { return p.Book.Hold(ctx, 9, 1011, 1, 0, []string{"GPU-1"}) }, `"carma1":0,"carma2":0`},
		{func() error { return p.Book.OpenHold(ctx, 9, 0) }, `"carma1":0,"carma1u1011":40536,"carma2":0`},
		{func() error { return p.Book.OpenHold(ctx, 8, 0) },
			`"carma1":0,"carma1u1003":40536,"carma1u1011":40536,"carma2":0`},
		{func() error { return p.Book.DropHold(ctx, 9) }, `"carma1":40536,"carma2":0`},
		// One of the two is another's.
		{func() error { return p.Book.Hold(ctx, 10, 1019, 2, 0, []string{"GPU-0", "GPU-1"}) },
			`"carma1":0,"carma1u1003":40536,"carma2":0`},
		{func() error { return p.Book.DropHold(ctx, 8) }, `"carma1":40536,"carma2":0`},
		{func() error { return p.Book.OpenHold(ctx, 10, 0) }, `"carma1":40536,"carma2":0,"carma2u1019":40536`},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.compareNow(ctx); err != nil {
			t.Fatal(err)
		}
		s.says(t, "kept", "{"+step.want+`,"carmaall":2}`)
	}
}

func TestPublish(t *testing.T) {
	s := &fakeSlurm{extra: `{"rack":4}`}
	p := newPublisher(t, s)
	ctx := t.Context()
	if err := p.Publish(ctx); err != nil || len(s.updates) != 0 {
		t.Fatalf("an Epilog where no agent publishes: %v, %s", err, s.extra)
	}
	begin := time.Now()
	publishFirst(t, p)
	s.says(t, "first", `{"carma1":40536,"carma2":40536,"carmaall":2,"rack":4}`)
	if err := p.Publish(ctx); err != nil || len(s.updates) != 1 {
		t.Errorf("nothing has changed: %v, %d updates", err, len(s.updates))
	}
	grant(t, p.Book, 7, 10240)
	s.extra = `{"rack":5}` // somebody else's, who has overwritten the counts
	// carma1: an idle GPU; carma2: what is left beside the job,
	// 40503 - 10240 - 2048 in steps of 256. One more update may follow at once.
	if err := p.Publish(ctx); err != nil {
		t.Error(err)
	}
	s.says(t, "after a grant", `{"carma1":40536,"carma2":28160,"carmaall":2,"rack":5}`)
	if err := p.Book.Release(ctx, jobenv.JobKey{JobID: 7}); err != nil {
		t.Fatal(err)
	}
	err := p.Publish(ctx)
	if time.Since(begin) < minInterval && (!errors.Is(err, ErrTooSoon) || len(s.updates) != 2) {
		t.Errorf("a third within a second: %v, %d updates", err, len(s.updates))
	}
	time.Sleep(minInterval)
	if err := p.Publish(ctx); err != nil {
		t.Error(err)
	}
	s.says(t, "after a release", `{"carma1":40536,"carma2":40536,"carmaall":2,"rack":5}`)
}

// What is no JSON object is another's: it is said and stays.
func TestPublishForeign(t *testing.T) {
	s := &fakeSlurm{extra: "GPU node of group 7"}
	p := newPublisher(t, s)
	snapshot, err := p.Book.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.PublishIf(t.Context(), snapshot); !errors.Is(err, extra.ErrForeign) {
		t.Error(err)
	}
	if err := p.PublishIf(t.Context(), snapshot); !errors.Is(err, ErrTooSoon) { // at the next look
		t.Error(err)
	}
	if _, err := p.compareNow(t.Context()); !errors.Is(err, extra.ErrForeign) || len(s.updates) > 0 {
		t.Error(err, s.updates)
	}
}

// Without the secret that names users nothing is told: their uids would be.
func TestPublishWithoutTheSecret(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	p.UserKey = filepath.Join(p.RunDir, "none")
	if err := p.publish(t.Context(), true); err == nil || len(s.updates) > 0 {
		t.Error(err, s.updates)
	}
}

// The count of a job that is sent here to preempt stays with its hold.
func TestPublishBesideAPreemptor(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	publishFirst(t, p)
	var err error
	h := steward.Hold{JobID: 9, GPUs: 1, MiB: 40536, Since: time.Unix(5, 0), Preempts: "77"}
	if s.extra, err = steward.SetWords(s.extra, map[string]string{extra.Hold: h.String()}); err != nil {
		t.Fatal(err)
	}
	grant(t, p.Book, 7, 10240)
	if err := p.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	const beside = `{"carma1":40536,"carma1u77":40536,"carma2":28160,"carmaall":2,"carmahold":"9:1:40536:5:preempt:77"}`
	s.says(t, "a job has started", beside)
	if _, err := p.compareNow(t.Context()); err != nil || len(s.updates) != 2 {
		t.Error(err, s.updates)
	}
	if err := p.SetWords(t.Context(), map[string]string{extra.Hold: "", extra.Vain: "9:5"}); err != nil {
		t.Fatal(err)
	}
	s.says(t, "the hold has ended", `{"carma1":40536,"carma2":28160,"carmaall":2,"carmavain":"9:5"}`)
	err = p.SetWords(t.Context(), map[string]string{extra.Hold: "", extra.Vain: "9:5"})
	if err != nil || len(s.updates) != 3 {
		t.Error("nothing has changed", err, s.updates)
	}
}

// However many jobs start and end in a second, slurmctld is told once a second,
// and once more; in the end it knows what is true.
func TestPublishRate(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	begin, changes := time.Now(), 0
	publishFirst(t, p)
	ctx := t.Context()
	publish := func() (told bool) {
		err := p.Publish(ctx)
		if err != nil && !errors.Is(err, ErrTooSoon) {
			t.Fatal(err)
		}
		return err == nil
	}
	for id := uint32(1); time.Since(begin) < 2*time.Second || changes < 20; id++ {
		grant(t, p.Book, id, 10240)
		publish()
		if err := p.Book.Release(ctx, jobenv.JobKey{JobID: id}); err != nil {
			t.Fatal(err)
		}
		publish()
		changes += 2
		time.Sleep(10 * time.Millisecond)
	}
	if most := int(time.Since(begin).Seconds()) + 2; len(s.updates) > most || len(s.updates) < 2 {
		t.Errorf("%d changes, slurmctld was told %d times, want at most %d", changes, len(s.updates), most)
	}
	for !publish() {
		time.Sleep(100 * time.Millisecond)
	}
	s.says(t, "at last", idle)
}

// What slurmctld was told is compared with a snapshot that is at hand; only what
// seems to differ is looked at again.
func TestPublishIf(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	ctx := t.Context()
	before, err := p.Book.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.PublishIf(ctx, before); err != nil || len(s.updates) != 1 {
		t.Fatalf("nothing was told before: %v, %d updates", err, len(s.updates))
	}
	grant(t, p.Book, 7, 10240)
	if err := p.PublishIf(ctx, before); err != nil || len(s.updates) != 1 {
		t.Errorf("the snapshot of before: %v, %d updates", err, len(s.updates))
	}
	after, err := p.Book.Snapshot(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.PublishIf(ctx, after); err != nil || len(s.updates) != 2 {
		t.Errorf("after a grant: %v, %d updates", err, len(s.updates))
	}
	if err := p.PublishIf(ctx, before); err != nil || len(s.updates) != 2 {
		t.Errorf("an old snapshot must not be told: %v, %d updates", err, len(s.updates))
	}
}

func TestCompareRepairsWhatOthersWrote(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	for range 2 {
		if _, err := p.compareNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.says(t, "at first", idle)
	}
	if len(s.updates) != 1 {
		t.Errorf("%d updates, want 1", len(s.updates))
	}
	for _, others := range []string{"", `{"rack":4}`, `{"carma1":81072,"carma2":1,"carmaall":2}`,
		`{"carma1":40536,"carma2":40536,"carmaall":2,"carma1u5":50000}`, `{"carma1":40536,"carma2":40536}`} {
		s.extra, s.updates = others, nil
		text, err := p.compareNow(t.Context())
		counts, _ := extra.Counts(s.extra)
		if err != nil || len(s.updates) != 1 || text != others || !maps.Equal(counts,
			map[string]int64{"carma1": 40536, "carma2": 40536, "carmaall": 2}) {
			t.Errorf("%s became %s, %v, %d updates", others, s.extra, err, len(s.updates))
		}
	}
}

// slow is a slurmctld whose answer about the node takes until it is let go.
type slow struct {
	*fakeSlurm
	asked, goOn chan struct{}
}

func (s *slow) Node(ctx context.Context, node string) (string, error) {
	text, err := s.fakeSlurm.Node(ctx, node)
	s.asked <- struct{}{}
	<-s.goOn
	return text, err
}

// A slurmctld that takes its time to say what it counts keeps nobody from telling it, and
// its old answer does not undo that.
func TestPublishWhileComparing(t *testing.T) {
	s := &slow{&fakeSlurm{}, make(chan struct{}, 1), make(chan struct{})}
	p := newPublisher(t, s.fakeSlurm)
	ctx := t.Context()
	publishFirst(t, p)
	other := *p // an Epilog's
	p.Slurm = s
	compared := make(chan error, 1)
	go func() {
		_, err := p.compareNow(ctx)
		compared <- err
	}()
	<-s.asked
	grant(t, p.Book, 7, 10240)
	const want = `{"carma1":40536,"carma2":28160,"carmaall":2}`
	if err := other.Publish(ctx); err != nil {
		t.Fatal(err)
	}
	s.says(t, "while slurmctld is asked", want)
	close(s.goOn)
	if err := <-compared; err != nil || len(s.updates) != 2 {
		t.Errorf("got %v, %d updates", err, len(s.updates))
	}
	s.says(t, "then", want)
}

// What slurmctld is told of all GPUs of a node: whether they can be given to one job at some time.
func TestPublishWhole(t *testing.T) {
	const lower, raised = `"carmaall":0}`, `"carmaall":2}`
	for _, c := range []struct {
		name   string
		change func(t *testing.T, p *Publisher)
		want   string
	}{
		{"a job", func(t *testing.T, p *Publisher) { grant(t, p.Book, 7, 40000) }, raised},
		{"a process that outlives its job for a moment", func(t *testing.T, p *Publisher) { read(t, p, 2, 1) }, raised},
		{"a GPU that is kept", func(t *testing.T, p *Publisher) {
			if err := p.Book.Hold(t.Context(), 8, 1000, 1, 0, []string{"GPU-1"}); err != nil {
				t.Fatal(err)
			}
		}, raised},
		{"a broken GPU", func(t *testing.T, p *Publisher) {
			if _, err := p.Book.Quarantine(t.Context(), "GPU-1", "broken"); err != nil {
				t.Fatal(err)
			}
		}, lower},
		{"a GPU less", func(t *testing.T, p *Publisher) { p.GPUs = []int{3, 8}; grant(t, p.Book, 7, 40000) }, lower},
	} {
		s := &fakeSlurm{}
		p := newPublisher(t, s)
		p.GPUs = []int{2, 8}
		c.change(t, p)
		if publishFirst(t, p); !strings.HasSuffix(s.extra, c.want) {
			t.Errorf("%s: got %s, want %s", c.name, s.extra, c.want)
		}
	}
	s := &fakeSlurm{}
	p := newPublisher(t, s) // whose only GPU is all of the node
	read(t, p, 1, 0)
	grant(t, p.Book, 7, 40536)
	publishFirst(t, p)
	s.says(t, "a node with one GPU", `{"carma1":0,"carmaall":1}`)
}

func TestPublishFails(t *testing.T) {
	s := &fakeSlurm{err: errors.New("slurmctld is away")}
	p := newPublisher(t, s)
	if err := p.publish(t.Context(), true); err == nil {
		t.Error("no error")
	}
	s.err = nil
	if publishFirst(t, p); len(s.updates) != 1 {
		t.Errorf("after it came back: %d updates", len(s.updates))
	}
}

// A slurmctld that refuses, or does not answer, is asked more and more rarely until slurmctld takes the counts.
func TestPublishRests(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	snapshot, err := p.Book.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, is := range []struct {
		err  error
		rest []time.Duration // behind one attempt after the other
	}{
		{errors.New("slurmctld knows no partition with node n1"), []time.Duration{1, 2, 4, 8, 16, 30, 30}},
		{nil, []time.Duration{0, 0}},
		{errors.New("Protocol authentication error"), []time.Duration{1, 2}},
	} {
		s.err = is.err
		for _, seconds := range is.rest {
			asked := s.asked
			p.rested = 0 // the rest is over
			if err := p.PublishIf(t.Context(), snapshot); !errors.Is(err, is.err) {
				t.Errorf("%v: %v", is.err, err)
			}
			if p.rest != seconds*time.Second {
				t.Errorf("%v: a rest of %s, want %d s", is.err, p.rest, seconds)
			}
			if is.err == nil {
				continue
			}
			p.rested += time.Hour // on a slow machine too
			if err := p.PublishIf(t.Context(), snapshot); !errors.Is(err, ErrTooSoon) || s.asked != asked+1 {
				t.Errorf("%v: %v, and %d questions", is.err, err, s.asked-asked)
			}
		}
		if is.err != nil {
			continue
		}
		grant(t, p.Book, 7, 10240)
		if snapshot, err = p.Book.Snapshot(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// compareNow compares whenever it is called.
func (p *Publisher) compareNow(ctx context.Context) (text string, err error) {
	text, _, err = p.compare(ctx)
	return text, err
}

// A ledger that an earlier version has left, with counts of GRES, says nothing.
func TestEarlierLedger(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	if err := p.Book.SetPublished(t.Context(), "gpu:8,carma:40536", time.Minute); err != nil {
		t.Fatal(err)
	}
	publishFirst(t, p)
	s.says(t, "at first", idle)
}

// While the ledger cannot be written, slurmctld is told nothing: each look would tell it again.
func TestPublishWithoutALedger(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	publishFirst(t, p)
	db, err := sql.Open("sqlite3", filepath.Join(p.RunDir, "leases.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const full = "CREATE TRIGGER full BEFORE INSERT ON published BEGIN SELECT RAISE(FAIL, 'disk is full'); END"
	if _, err := db.Exec(full); err != nil {
		t.Fatal(err)
	}
	grant(t, p.Book, 1, 10240)
	if err := p.Publish(t.Context()); err == nil || len(s.updates) != 1 {
		t.Errorf("%v, told %v", err, s.updates)
	}
}

// By a reading of before a job's end a GPU has less room than is free: more is told after the agent's next look.
func TestPublishBeforeTheGPUIsReadAgain(t *testing.T) {
	const leased, left, free = `{"carma1":22016,"carma2":17920,"carmaall":2}`, `{"carma1":23040,"carma2":17920,"carmaall":2}`,
		`{"carma1":40536,"carma2":17920,"carmaall":2}`
	for _, c := range []struct {
		name   string
		agent  bool
		before string
	}{{"an agent", true, leased}, {"no agent", false, left}} {
		s := &fakeSlurm{}
		p := newPublisher(t, s)
		look := func(usedMiB int64) {
			var readings []gres.Reading
			for i, used := range []int64{usedMiB, 20 << 10} {
				readings = append(readings, gres.Reading{GPU: gres.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, TotalMiB: 40536},
					UsedMiB: used})
			}
			put := p.Book.PutReadings
			if c.agent {
				put = func(ctx context.Context, r []gres.Reading) error { return p.Book.Measure(ctx, r, nil) }
			}
			if err := put(t.Context(), readings); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		look(15 << 10)
		grant(t, p.Book, 7, 16<<10)
		publishFirst(t, p)
		s.says(t, c.name+" while the job runs", leased)
		if err := p.Book.Release(t.Context(), jobenv.JobKey{JobID: 7}); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := func(when string) {
			t.Helper()
			if !c.agent || time.Since(begin) < agentStops { // on a slow machine the agent has stopped by then
				s.says(t, c.name+when, c.before)
			}
		}
		before(" after the job's end")
		if _, _, err := p.compare(t.Context()); err != nil {
			t.Fatal(err)
		}
		before(" at the next comparison")
		time.Sleep(minInterval)
		look(0)
		if err := p.Publish(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.says(t, c.name+" after the next look", free)
	}
}

// Prologs close GPUs whose readings tell nothing any more, so slurmctld is told that they are closed.
func TestStaleReadingsOfferNothing(t *testing.T) {
	s := &fakeSlurm{}
	p := newPublisher(t, s)
	p.GPUs, p.StaleAfter = []int{2}, time.Minute
	for _, step := range []struct {
		age  time.Duration
		want string
	}{
		{time.Second, idle},
		// Whole all the same: old readings pass.
		{2 * time.Minute, `{"carma1":0,"carma2":0,"carmaall":2}`},
		{time.Second, idle},
	} {
		var readings []gres.Reading
		for i := range 2 {
			readings = append(readings, gres.Reading{GPU: gres.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, TotalMiB: 40536},
				Age: step.age})
		}
		if err := p.Book.PutReadings(t.Context(), readings); err != nil {
			t.Fatal(err)
		}
		if _, err := p.compareNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.says(t, fmt.Sprint("read ", step.age, " ago"), step.want)
		snapshot, err := p.Book.Snapshot(t.Context())
		if stale := step.age > p.StaleAfter; err != nil || p.offersAll(snapshot) == stale {
			t.Errorf("read %s ago: offers all %v, %v", step.age, p.offersAll(snapshot), err)
		}
		if snapshot.Readings[0].Unreadable != "" {
			t.Error("the snapshot of others is changed")
		}
	}
}

// What is published for a user and K GPUs is what a Prolog gives the user, to the grain: no less, and no more.
func TestCountsAgreeWithTheChoice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	th := choose.Thresholds{SMActMaxPct: 100, MarginMiB: 2048, MaxJobs: 4}
	const users, gpus = 3, 4
	given := 0
	for range 300 {
		th.CrossUser = rnd.IntN(2) == 0
		p := choose.Policy(policy.MAGM)
		if th.CrossUser {
			p = policy.Carma // which keeps users apart all the same
		}
		var s lease.Snapshot
		for i := range gpus {
			s.Readings = append(s.Readings, gres.Reading{GPU: gres.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, TotalMiB: 40536}})
		}
		request := func(uid uint32, k int, mib int64) gres.Request {
			return gres.Request{JobID: 99, UID: uid, GPUs: k, ReserveMiB: mib, MarginMiB: 2048, Exclusive: mib >= 40536}
		}
		for id := range uint32(rnd.IntN(8)) {
			r := request(rnd.Uint32N(users), 1+rnd.IntN(2), int64(1+rnd.IntN(16))<<10)
			d := choose.GPUs(p, choose.Input{Readings: s.Readings, Leases: s.Leases, Request: r, Thresholds: th})
			for _, uuid := range d.UUIDs {
				s.Leases = append(s.Leases, gres.Lease{Job: jobenv.JobKey{JobID: id}, UID: r.UID, UUID: uuid,
					ReserveMiB: r.ReserveMiB, Daemon: d.Daemon, Seen: true})
				for i := range s.Readings {
					if s.Readings[i].UUID == uuid {
						s.Readings[i].UsedMiB += r.ReserveMiB
					}
				}
			}
		}
		publisher := Publisher{Policy: p, Thresholds: th, FullMiB: []int64{40536}}
		counts, err := publisher.countsOf(s)
		if err != nil {
			t.Fatal(err)
		}
		for uid := range uint32(users) {
			for k := 1; k <= gpus; k++ {
				gives := func(mib int64) bool {
					in := choose.Input{Readings: s.Readings, Leases: s.Leases, Request: request(uid, k, mib), Thresholds: th}
					return choose.GPUs(p, in).UUIDs != nil
				}
				n := of(counts, extra.UserKey(k, fmt.Sprint(uid)))
				if n > 0 && !gives(n) || n < 40536 && gives(n+2*choose.StepMiB) {
					t.Fatalf("%s, user %d on %d GPUs: %d MiB of %v, with %+v", p, uid, k, n, counts, s.Leases)
				}
				if n > 0 {
					given++
				}
			}
		}
	}
	if given < 500 {
		t.Errorf("only %d offers", given)
	}
}
