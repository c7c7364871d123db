// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"carma/gres"
	"carma/gres/choose"
	"carma/gres/lease"
	"carma/slurmbridge/config"
	"carma/slurmbridge/jobenv"
)

func TestCounts(t *testing.T) {
	for _, c := range []struct {
		gpus     []Offer
		together [][]int
		want     []int64 // users 0 to 7, then jobs on 2, 3, ... GPUs
	}{
		{nil, nil, nil},
		{[]Offer{{MiB: 100}, {MiB: 100}, {MiB: 100}, {MiB: 100}}, [][]int{{0, 1, 2, 3}},
			[]int64{100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100}},
		{[]Offer{{MiB: 20}, {MiB: 100}, {MiB: 0}, {MiB: 50}}, [][]int{{0, 1, 2, 3}},
			[]int64{100, 100, 100, 100, 100, 100, 100, 100, 50, 20, 0}},
		{[]Offer{{MiB: 20}, {MiB: 100}, {MiB: 30}, {MiB: 50}}, [][]int{{0, 1}, {2, 3}},
			[]int64{100, 100, 100, 100, 100, 100, 100, 100, 30, 0, 0}},
		{[]Offer{{MiB: 20}, {MiB: 100}}, nil, []int64{100, 100, 100, 100, 100, 100, 100, 100, 0}},
		{[]Offer{{MiB: 20}}, nil, []int64{20, 20, 20, 20, 20, 20, 20, 20}},
		{[]Offer{{20, 1003, true, 0}, {100, 1006, true, 0}, {MiB: 10}}, [][]int{{0, 2}, {1, 2}},
			[]int64{10, 10, 10, 20, 10, 10, 100, 10, 10, 0}},
		{[]Offer{{20, 1003, true, 0}, {100, 3, true, 0}}, nil, []int64{0, 0, 0, 100, 0, 0, 0, 0, 0}},
		// Kept for a job on one GPU, two and three.
		{[]Offer{{100, 1003, true, 1}, {MiB: 10}}, [][]int{{0, 1}}, []int64{10, 10, 10, 100, 10, 10, 10, 10, 0}},
		{[]Offer{{100, 1003, true, 2}, {90, 1003, true, 2}, {MiB: 10}, {MiB: 20}}, [][]int{{0, 1, 2, 3}},
			[]int64{20, 20, 20, 20, 20, 20, 20, 20, 90, 0, 0}},
		{[]Offer{{100, 1003, true, 3}, {90, 1003, true, 3}, {80, 1003, true, 3}}, [][]int{{0, 1, 2}},
			[]int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 80}},
	} {
		if got := Counts(c.gpus, c.together); !slices.Equal(got, c.want) {
			t.Errorf("Counts(%v) = %v, want %v", c.gpus, got, c.want)
		}
	}
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

// users is the counts of the users' parts, all the same.
func users(mib int) string {
	var words []string
	for n := range 8 {
		words = append(words, fmt.Sprintf("carmau%d:no_consume:%d", n, mib))
	}
	return strings.Join(words, ",")
}

func TestText(t *testing.T) {
	for _, c := range []struct{ is, want string }{
		{"gpu:a100:16(S:0-1),carmau3:40536,carma2:40536", "gpu:a100:16," + users(7) + ",carma2:no_consume:2"},
		{"gpu:16,carmatotal:162144", "gpu:16,carmatotal:162144," + users(7) + ",carma2:no_consume:2"},
		{"(null)", users(7) + ",carma2:no_consume:2"},
		{"gpu:1K,x:3,carma4:9", "gpu:1024,x:3," + users(7) + ",carma2:no_consume:2"},
	} {
		if got := Text(c.is, []int64{7, 7, 7, 7, 7, 7, 7, 7, 0}); got != c.want {
			t.Errorf("%q: got %q, want %q", c.is, got, c.want)
		}
	}
	if got := Text("gpu:1", nil); got != "gpu:1" {
		t.Errorf("without GPUs: %q", got)
	}
	if !Same("gpu:1,carmau0:7,carma2:0", "carmau0:7,gpu:2") || Same("carmau0:7", "carmau0:8") ||
		Same("carmau0:7", "carmau1:7") || !Same("carma2:5", "carmau0:no_consume:0,carma2:no_consume:5") {
		t.Error("Same is wrong")
	}
}

// fakeSlurm counts what it is told.
type fakeSlurm struct {
	gres    string
	updates []string
	err     error
}

func (f *fakeSlurm) Node(context.Context, string) (string, string, error) {
	return f.gres, "a comment", f.err
}

func (f *fakeSlurm) SetNodeGres(_ context.Context, node, gres string) error {
	f.gres = gres
	f.updates = append(f.updates, gres)
	return f.err
}

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

// GPUs that are kept for a job are offered once it can start, to those who ask for
// as many: a single one to its eighth of the users (1003, 1011 and 1019 are of one), several to all, as those counts
// know no users.
func TestPublishKept(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:a100:8,carmau0:81072,carma2:81072"}
	p := newPublisher(t, s)
	ctx := t.Context()
	for _, step := range []struct {
		do              func() error
		user3, all, two int
	}{
		{func() error { return p.Book.Hold(ctx, 7, 1003, 2, 0, []string{"GPU-0", "GPU-1"}) }, 2, 2, 3},
		{func() error { return p.Book.OpenHold(ctx, 7, 0) }, 2, 2, 40536},
		{func() error { return p.Book.DropHold(ctx, 7) }, 40536, 40536, 40536},
		{func() error { return p.Book.Hold(ctx, 8, 1003, 1, 0, []string{"GPU-0"}) }, 40536, 40536, 3},
		{func() error { return p.Book.Hold(ctx, 9, 1011, 1, 0, []string{"GPU-1"}) }, 2, 2, 3},
		{func() error { return p.Book.OpenHold(ctx, 9, 0) }, 40536, 2, 3},
		{func() error { return p.Book.OpenHold(ctx, 8, 0) }, 40536, 2, 3},
		// One of the two is another's.
		{func() error { return p.Book.DropHold(ctx, 9) }, 40536, 40536, 3},
		{func() error { return p.Book.Hold(ctx, 10, 1019, 2, 0, []string{"GPU-0", "GPU-1"}) }, 40536, 2, 3},
		{func() error { return p.Book.DropHold(ctx, 8) }, 40536, 40536, 3},
		{func() error { return p.Book.OpenHold(ctx, 10, 0) }, 40536, 40536, 40536},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if _, err := p.compareNow(ctx); err != nil {
			t.Fatal(err)
		}
		want := strings.ReplaceAll("gpu:a100:8,"+users(step.all), fmt.Sprintf("carmau3:no_consume:%d", step.all),
			fmt.Sprintf("carmau3:no_consume:%d", step.user3))
		want += fmt.Sprintf(",carma2:no_consume:%d", step.two)
		if s.gres != want {
			t.Errorf("%s, want\n%s", s.gres, want)
		}
	}
}

func TestPublish(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:a100:8,carmau0:81072,carma2:81072"}
	p := newPublisher(t, s)
	ctx := t.Context()
	if err := p.Publish(ctx); err != nil || s.gres != "gpu:a100:8,"+users(40536)+",carma2:no_consume:40536" {
		t.Fatalf("first: %v, %s", err, s.gres)
	}
	if err := p.Publish(ctx); err != nil || len(s.updates) != 1 {
		t.Errorf("nothing has changed: %v, %d updates", err, len(s.updates))
	}
	grant(t, p.Book, 7, 10240)
	// carma: an idle GPU; carma2: what is left beside the job,
	// 40503 - 10240 - 2048 in steps of 256. One more update may follow at once.
	if err := p.Publish(ctx); err != nil || s.gres != "gpu:a100:8,"+users(40536)+",carma2:no_consume:28160" {
		t.Errorf("after a grant: %v, %s", err, s.gres)
	}
	if err := p.Book.Release(ctx, jobenv.JobKey{JobID: 7}); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(ctx); !errors.Is(err, ErrTooSoon) || len(s.updates) != 2 {
		t.Errorf("a third within a second: %v, %d updates", err, len(s.updates))
	}
	time.Sleep(minInterval)
	if err := p.Publish(ctx); err != nil || s.gres != "gpu:a100:8,"+users(40536)+",carma2:no_consume:40536" {
		t.Errorf("after a release: %v, %s", err, s.gres)
	}
}

// However many jobs start and end in a second, slurmctld is told once a second,
// and once more; in the end it knows what is true.
func TestPublishRate(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:a100:8,carmau0:81072,carma2:81072"}
	p := newPublisher(t, s)
	ctx := t.Context()
	begin, changes := time.Now(), 0
	publish := func() (told bool) {
		err := p.Publish(ctx)
		if err != nil && !errors.Is(err, ErrTooSoon) {
			t.Fatal(err)
		}
		return err == nil
	}
	for id := uint32(1); time.Since(begin) < 2*time.Second; id++ {
		grant(t, p.Book, id, 10240)
		publish()
		if err := p.Book.Release(ctx, jobenv.JobKey{JobID: id}); err != nil {
			t.Fatal(err)
		}
		publish()
		changes += 2
		time.Sleep(10 * time.Millisecond)
	}
	if most := int(time.Since(begin).Seconds()) + 2; len(s.updates) > most || len(s.updates) < 2 || changes < 20 {
		t.Errorf("%d changes, slurmctld was told %d times, want at most %d", changes, len(s.updates), most)
	}
	for !publish() {
		time.Sleep(100 * time.Millisecond)
	}
	if want := "gpu:a100:8," + users(40536) + ",carma2:no_consume:40536"; s.gres != want {
		t.Errorf("at last %s, want %s", s.gres, want)
	}
}

// What slurmctld was told is compared with a snapshot that is at hand; only what
// seems to differ is looked at again.
func TestPublishIf(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:8,carmau0:81072,carma2:81072"}
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

func TestCompareRepairsWhatARestartLeft(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:8,carmau0:81072,carma2:81072"}
	p := newPublisher(t, s)
	for range 2 {
		if comment, err := p.compareNow(t.Context()); err != nil || comment != "a comment" ||
			s.gres != "gpu:8,"+users(40536)+",carma2:no_consume:40536" {
			t.Fatalf("got %v, %s", err, s.gres)
		}
	}
	if len(s.updates) != 1 {
		t.Errorf("%d updates, want 1", len(s.updates))
	}
	s.gres = "gpu:8,carmau0:81072,carma2:81072" // scontrol reconfigure
	if _, err := p.compareNow(t.Context()); err != nil || len(s.updates) != 2 {
		t.Errorf("after a reconfigure: %v, %d updates", err, len(s.updates))
	}
}

// slow is a slurmctld whose answer about the node takes until it is let go.
type slow struct {
	*fakeSlurm
	asked, goOn chan struct{}
}

func (s *slow) Node(ctx context.Context, node string) (gres, comment string, err error) {
	gres, comment, err = s.fakeSlurm.Node(ctx, node)
	s.asked <- struct{}{}
	<-s.goOn
	return gres, comment, err
}

// A slurmctld that takes its time to say what it counts keeps nobody from telling it, and
// its old answer does not undo that.
func TestPublishWhileComparing(t *testing.T) {
	s := &slow{&fakeSlurm{gres: "gpu:8,carmau0:81072,carma2:81072"}, make(chan struct{}), make(chan struct{})}
	p := newPublisher(t, s.fakeSlurm)
	ctx := t.Context()
	if err := p.Publish(ctx); err != nil {
		t.Fatal(err)
	}
	p.Slurm = s
	compared := make(chan error, 1)
	go func() {
		_, err := p.compareNow(ctx)
		compared <- err
	}()
	<-s.asked
	grant(t, p.Book, 7, 10240)
	const want = ",carma2:no_consume:28160"
	if err := p.Publish(ctx); err != nil || !strings.HasSuffix(s.gres, want) {
		t.Fatalf("while slurmctld is asked: %v, %s", err, s.gres)
	}
	close(s.goOn)
	if err := <-compared; err != nil || !strings.HasSuffix(s.gres, want) || len(s.updates) != 2 {
		t.Errorf("got %v, %s, %d updates", err, s.gres, len(s.updates))
	}
}

func TestPublishWithoutAnchor(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:8"}
	p := newPublisher(t, s)
	p.Floor = true
	grant(t, p.Book, 7, 40000)
	if err := p.Publish(t.Context()); err != nil || s.gres != "gpu:8,"+users(40536)+",carma2:no_consume:40536" {
		t.Errorf("got %v, %s", err, s.gres)
	}
}

// What slurmctld is told of all GPUs of a node: whether they can be given to one job at some time.
func TestPublishWhole(t *testing.T) {
	const lower, raised = ",carma2:no_consume:2", ",carma2:no_consume:3"
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
		s := &fakeSlurm{gres: "gpu:8"}
		p := newPublisher(t, s)
		p.GPUs = []int{2, 8}
		c.change(t, p)
		if err := p.Publish(t.Context()); err != nil || !strings.HasSuffix(s.gres, c.want) {
			t.Errorf("%s: got %v, %s, want %s", c.name, err, s.gres, c.want)
		}
	}
	s := &fakeSlurm{gres: "gpu:8"}
	p := newPublisher(t, s) // whose only GPU is all of the node
	read(t, p, 1, 0)
	grant(t, p.Book, 7, 40536)
	if err := p.Publish(t.Context()); err != nil || s.gres != "gpu:8,"+users(3) {
		t.Errorf("a node with one GPU: got %v, %s", err, s.gres)
	}
}

func TestPublishFails(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:8", err: errors.New("slurmctld is away")}
	p := newPublisher(t, s)
	if err := p.Publish(t.Context()); err == nil {
		t.Error("no error")
	}
	s.err = nil
	if err := p.Publish(t.Context()); err != nil || len(s.updates) != 1 {
		t.Errorf("after it came back: %v, %d updates", err, len(s.updates))
	}
}

// compareNow compares whenever it is called.
func (p *Publisher) compareNow(ctx context.Context) (comment string, err error) {
	comment, _, err = p.compare(ctx)
	return comment, err
}

// Where slurmctld picks GPUs itself, nothing tells it anything.
func TestForBySlurm(t *testing.T) {
	c := config.Default()
	c.Placement.Mode = "slurm"
	s := &fakeSlurm{}
	p := For(c, "n1", nil, s)
	compare := p.Compare
	_, asked, err := p.CompareIf(t.Context(), lease.Snapshot{}, 0, 1)
	err = errors.Join(err, compare(t.Context()), p.Publish(t.Context()), p.PublishIf(t.Context(), lease.Snapshot{}))
	if err != nil || asked || len(s.updates) > 0 {
		t.Errorf("%v, asked %v, told %v", err, asked, s.updates)
	}
}

// While the ledger cannot be written, slurmctld is told nothing: each look would tell it again.
func TestPublishWithoutALedger(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:a100:8,carmau0:81072,carma2:81072"}
	p := newPublisher(t, s)
	if err := p.Publish(t.Context()); err != nil || len(s.updates) != 1 {
		t.Fatal(err, s.updates)
	}
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

// Prologs close GPUs whose readings tell nothing any more, so slurmctld is told that they are closed.
func TestStaleReadingsOfferNothing(t *testing.T) {
	s := &fakeSlurm{gres: "gpu:a100:8,carmau0:81072,carma2:81072"}
	p := newPublisher(t, s)
	p.GPUs, p.StaleAfter = []int{2}, time.Minute
	for _, step := range []struct {
		age  time.Duration
		want string
	}{
		{time.Second, "gpu:a100:8," + users(40536) + ",carma2:no_consume:40536"},
		// Whole all the same: slurmctld would give up jobs for whole nodes (BadConstraints).
		{2 * time.Minute, "gpu:a100:8," + users(2) + ",carma2:no_consume:3"},
		{time.Second, "gpu:a100:8," + users(40536) + ",carma2:no_consume:40536"},
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
		if s.gres != step.want {
			t.Errorf("read %s ago: %s, want\n%s", step.age, s.gres, step.want)
		}
		snapshot, err := p.Book.Snapshot(t.Context())
		if stale := step.age > p.StaleAfter; err != nil || p.offersAll(snapshot) == stale {
			t.Errorf("read %s ago: offers all %v, %v", step.age, p.offersAll(snapshot), err)
		}
		if snapshot.Readings[0].Unreadable != "" {
			t.Error("the snapshot of others is changed")
		}
	}
}
