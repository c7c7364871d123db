// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// truthOfGPUs are the simulated GPUs' counters, read again and again beside the agents.
type truthOfGPUs struct {
	c        *cluster
	quit     chan struct{}
	readers  sync.WaitGroup
	once     sync.Once
	lock     sync.Mutex
	readings map[string][]reading // by the GPU's UUID
	node     map[string]string    // of a GPU
}

// reading is a moment of a GPU.
type reading struct {
	at, joules, smact float64 // seconds since 1970, of real time; 0 to 1
	mib               int64
	uids              []int
}

// counted is a GPU's count in a time.
type counted struct{ joules, smactS float64 }

func (n counted) plus(m counted) counted { return counted{n.joules + m.joules, n.smactS + m.smactS} }

func now() float64 { return float64(time.Now().UnixMicro()) / 1e6 }

// follow reads the GPUs of all nodes until stop.
func follow(c *cluster) *truthOfGPUs {
	f := &truthOfGPUs{c: c, quit: make(chan struct{}), readings: map[string][]reading{}, node: map[string]string{}}
	for _, n := range observedNodes {
		f.readers.Add(1)
		go func() {
			defer f.readers.Done()
			for start := time.Now(); f.read(n); start = time.Now() {
				every := 250 * time.Millisecond
				if underUML { // the cluster has more to do
					every = max(every, 2*time.Since(start))
				}
				select {
				case <-f.quit:
					return
				case <-time.After(every):
				}
			}
		}()
	}
	return f
}

func (f *truthOfGPUs) stop() {
	f.once.Do(func() { close(f.quit) })
	f.readers.Wait()
}

func (f *truthOfGPUs) read(node string) bool {
	var s struct {
		GPUs []struct {
			Index   int
			UUID    string
			EnergyJ float64 `json:"energy_j"`
			SMAct   float64
		}
		Processes []struct {
			GPU, UID  int
			MemoryMiB int64 `json:"memory_mib"`
		}
	}
	cmd := exec.Command(filepath.Join(f.c.dir, "bin", "simgpu"), "show", "--json")
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+f.c.dir+"/simgpu/"+node)
	before := now()
	out, err := cmd.Output()
	at := (before + now()) / 2
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		f.c.t.Errorf("simgpu show: %v", err)
		return false
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	for _, g := range s.GPUs {
		r := reading{at: at, joules: g.EnergyJ / observeScale, smact: g.SMAct}
		for _, p := range s.Processes {
			if p.GPU == g.Index {
				r.mib += p.MemoryMiB
				r.uids = append(r.uids, p.UID)
			}
		}
		f.node[g.UUID], f.readings[g.UUID] = node, append(f.readings[g.UUID], r)
	}
	return true
}

// counted is a GPU's count between two times.
func (f *truthOfGPUs) counted(uuid string, from, to float64) (n counted) {
	readings := f.readings[uuid]
	for i := 1; i < len(readings); i++ {
		a, b := readings[i-1], readings[i]
		if start, end := max(a.at, from), min(b.at, to); start < end {
			part := (end - start) / (b.at - a.at)
			n = n.plus(counted{(b.joules - a.joules) * part, (a.smact + b.smact) / 2 * (end - start)})
		}
	}
	return n
}

// pause is the longest time between two readings of a GPU around or between two times.
func (f *truthOfGPUs) pause(uuid string, from, to float64) (longest float64) {
	readings := f.readings[uuid]
	for i := 1; i < len(readings); i++ {
		if a, b := readings[i-1], readings[i]; b.at > from && a.at < to {
			longest = max(longest, b.at-a.at)
		}
	}
	return longest
}

// used are the peak of a GPU's memory and the users of processes there between two times.
func (f *truthOfGPUs) used(uuid string, from, to float64) (mib int64, uids []int) {
	for _, r := range f.readings[uuid] {
		if from <= r.at && r.at <= to {
			mib = max(mib, r.mib)
			uids = append(uids, r.uids...)
		}
	}
	slices.Sort(uids)
	return mib, slices.Compact(uids)
}

// span is a time in which an agent had a job in the ledger.
type span struct{ seen, gone float64 }

var jobLine = regexp.MustCompile(`time=(\S+) .*msg="(job seen|job has ended) on this node" job="?(\d+)`)

// spans are a job's on a node, a span for each attempt, by the log of the node's agents.
func (c *observed) spans(node string, job uint32) (list []span) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "log", "agent."+node+".log"))
	if err != nil {
		c.t.Fatal(err)
	}
	open := false
	for _, m := range jobLine.FindAllStringSubmatch(string(text), -1) {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			c.t.Fatal(err)
		}
		when := float64(at.UnixMicro()) / 1e6
		switch {
		case m[3] != strconv.FormatUint(uint64(job), 10):
		case m[2] == "job has ended":
			if open {
				list[len(list)-1].gone, open = when, false
			}
		case !open:
			list, open = append(list, span{seen: when}), true
		}
	}
	return list
}

// checkSeen compares the record of a job with what the job did.
func (c *observed) checkSeen(id string, s seen, records map[string]account) {
	c.t.Helper()
	a, ok := records[id]
	if s.gpus == 0 {
		if ok {
			c.t.Errorf("a job without a GPU has a record: %+v", a)
		}
		return
	}
	peak := int64(0)
	if a.PeakMiB != nil {
		peak = *a.PeakMiB
	}
	state := cmp.Or(s.recorded, s.state)
	switch {
	case !ok || a.State != state || a.OOM != (state == "OUT_OF_MEMORY") || a.User != s.user || len(a.GPUs) != s.gpus ||
		a.Attempts != max(1, s.attempts):
		c.t.Errorf("job %s (%s %s, %s): record %+v\n%s", id, s.interactive, s.options, s.script, a, c.story(id))
		return
	case s.mib < 0 && peak < 30000, s.mib >= 0 && peak != s.mib:
		c.t.Errorf("job %s: peak %d MiB, used %d", id, peak, s.mib)
	case a.ReserveMiB < 40000:
		c.t.Errorf("job %s: %d MiB requested", id, a.ReserveMiB)
	case a.Start == 0 || a.Submit == 0 || a.End < a.Start:
		c.t.Errorf("job %s: %+v", id, a)
	case s.idle && !c.idle[strconv.FormatUint(uint64(a.JobID), 10)]:
		c.t.Errorf("job %s (%s): carma-node status has not shown it as idle", id, s.script)
	}
	if s.note != "" {
		if page := c.sh("", "carma-report -j "+id); !strings.Contains(page, s.note) {
			c.t.Errorf("job %s: no %q in\n%s", id, s.note, page)
		}
	}
	c.checkCounted(id, s, a)
}

// lookS is the pause between two looks of an agent, and between two readings of the test, together, in seconds. Under
// user-mode-linux the pauses of the test are longer, and so are the agents' own.
const lookS = 0.6

// checkCounted compares a record with the counters of the job's own GPUs, from the moment at which the agent noted the
// job up to a moment between the job's end and the agent's note of the end.
func (c *observed) checkCounted(id string, s seen, a account) {
	c.t.Helper()
	uid, _ := strconv.Atoi(c.uid(s.user))
	var least, most counted
	late, unseen, look := 0.0, 0.0, lookS
	for _, uuid := range a.GPUs {
		spans := c.spans(c.truth.node[uuid], a.JobID)
		if len(spans) != max(1, s.attempts) && s.attempts == 0 {
			c.t.Errorf("job %s on %s: noted %v", id, uuid, spans)
		}
		if s.attempts > 1 { // the GPUs of the attempts before are not in the record
			return
		}
		for _, at := range spans {
			end := min(a.End, at.gone)
			if underUML {
				look = max(look, 2*c.truth.pause(uuid, at.seen, at.gone))
			}
			for _, g := range c.gaps {
				if g.node != c.truth.node[uuid] || g.gone < at.seen || end < g.seen {
					continue
				}
				unseen += g.gone - g.seen
				if end < g.gone+1 { // ended in the gap: the last look is the end of the figures
					end = g.seen - look
				}
			}
			least = least.plus(c.truth.counted(uuid, at.seen, end))
			most = most.plus(c.truth.counted(uuid, at.seen, at.gone))
			late = max(late, at.seen-a.Start)
			if mib, uids := c.truth.used(uuid, at.seen, end); len(uids) > 1 || len(uids) == 1 && uids[0] != uid {
				c.t.Errorf("job %s on %s: users %v, of the job %d, %d MiB", id, uuid, uids, uid, mib)
			}
		}
	}
	smactS := 0.0
	if a.SMActPct != nil {
		smactS = *a.SMActPct / 100 * a.LeaseS
	}
	n := float64(len(a.GPUs))
	atEnd(c.t, "job %-5s %-9s %d GPUs, seen after %4.1f s: %6.0f J of %6.0f to %6.0f; SM activity %5.1f s of %5.1f to %5.1f",
		id, a.State, len(a.GPUs), late, *a.EnergyJ, least.joules, most.joules, smactS, least.smactS, most.smactS)
	within := func(got, low, high, slack float64) bool { return got > 0.98*low-slack && got < 1.02*high+slack }
	if !within(*a.EnergyJ, least.joules, most.joules, look*n*watts(s.smact/100)) {
		c.t.Errorf("job %s (%s): %.0f J, its GPUs counted %.0f to %.0f J", id, s.script, *a.EnergyJ, least.joules,
			most.joules)
	}
	// The mean says nothing of a time without an agent.
	if !within(smactS, least.smactS, most.smactS, (look*n+unseen)*max(s.smact/100, 0.01)) {
		c.t.Errorf("job %s (%s): SM activity of %.1f s, its GPUs counted %.1f to %.1f s", id, s.script, smactS,
			least.smactS, most.smactS)
	}
	// An agent spends 1/20 of its time on questions about single jobs: where a question takes longer than 0.6 s, the
	// agent sees jobs later.
	if !s.older && late > max(float64(12+c.pace.late), 20*c.slowest) {
		c.t.Errorf("job %s: seen %.1f s after its start; squeue took %.1f s at most", id, late, c.slowest)
	}
}
