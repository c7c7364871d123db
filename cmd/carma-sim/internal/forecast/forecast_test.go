// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"carma/cmd/carma-sim/internal/model"
	"carma/cmd/carma-sim/internal/replay"
	"carma/cmd/carma-sim/internal/workload"
	"carma/db"
	"carma/db/figure"
	"carma/slurmbridge/policy"
)

func at(s float64) time.Time { return time.Unix(0, int64((1.7e9+s)*1e9)) }

// record is a job that was alone on GPUs of its node.
func record(id uint32, submit, start, end float64, uuids ...string) db.Attempt {
	gpuS := (end - start) * float64(len(uuids))
	return db.Attempt{Cluster: "c", JobID: id, Node: "n1", User: "alice", UID: 1001, Name: "train", Partition: "gpu",
		Submit: at(submit), Start: at(start), End: at(end), State: "COMPLETED", FullMiB: 40536,
		Total: db.Total{UUIDs: uuids, PeakMiB: 10000, MeanMiB: 9000, SMActPct: 40, EnergyJ: figure.Measured(gpuS * 174),
			EnergyHow: figure.Exact, LeaseS: gpuS, HeldS: gpuS, AloneS: figure.Measured(gpuS)}}
}

// describe says what a plan is made of.
func describe(p *Plan) string {
	var b strings.Builder
	for _, pool := range p.Pools {
		fmt.Fprintf(&b, "%s:", pool.Name())
		for _, k := range pool.Kinds {
			fmt.Fprintf(&b, " %dx%dx%d", k.Nodes, k.GPUs, k.GPUMemMiB)
			for _, s := range k.Work.Trace {
				j := k.Work.Jobs[s.Job]
				fmt.Fprintf(&b, " %s@%g+%g/%d %.0f%% %d-%dMiB", j.Name, s.ArrivalS, j.DurationS, j.GPUs, j.SMActPct, j.SteadyMiB,
					j.PeakMiB)
				if j.BookMiB > 0 {
					fmt.Fprintf(&b, " books %d", j.BookMiB)
				}
				if j.Alone {
					b.WriteString(" alone")
				}
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestPlan(t *testing.T) {
	with := func(a db.Attempt, change func(*db.Attempt)) db.Attempt { change(&a); return a }
	one := record(1, 0, 10, 110, "a")
	for _, c := range []struct {
		name string
		add  [][]db.Attempt
		size Size
		want string
		left Unknown
	}{
		{"one job", [][]db.Attempt{{one}}, Size{}, "gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB\n", Unknown{}},
		{"a size of its own", [][]db.Attempt{{one}}, Size{3, 8, 81920},
			"gpu: 3x8x81920 1@0+100/1 40% 9000-10000MiB\n", Unknown{}},
		{"too small a size", [][]db.Attempt{{one}, {record(2, 0, 0, 360, "a", "b")}}, Size{GPUs: 1},
			"gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB\n", Unknown{TooLarge: Count{1, 0.2}}},
		{"no samples: alone, with the mean activity", [][]db.Attempt{{one}, {with(record(2, 5, 5, 365, "b"),
			func(a *db.Attempt) { a.Total.PeakMiB, a.Total.SMActPct = 0, figure.Unknown })}}, Size{},
			"gpu: 1x2x40536 1@0+100/1 40% 9000-10000MiB 2@5+360/1 40% 1-1MiB alone\n", Unknown{NoSamples: Count{1, 0.1}}},
		{"no figure that can be", [][]db.Attempt{{one}, {with(record(2, 5, 5, 365, "b"),
			func(a *db.Attempt) { a.Total.SMActPct = figure.Measured(math.Inf(1)); a.Total.MeanMiB = -5 })}}, Size{},
			"gpu: 1x2x40536 1@0+100/1 40% 9000-10000MiB 2@5+360/1 40% 9200-10000MiB alone\n",
			Unknown{NoSamples: Count{1, 0.1}}},
		{"two nodes: a part each", [][]db.Attempt{{one}, {record(2, 5, 5, 365, "b"), with(record(2, 5, 5, 365, "c"),
			func(a *db.Attempt) { a.Node = "n2" })}}, Size{},
			"gpu: 2x2x40536 1@0+100/1 40% 9000-10000MiB 2@5+360/1 40% 9000-10000MiB alone " +
				"2@5+360/1 40% 9000-10000MiB alone\n", Unknown{SeveralNodes: Count{1, 0.2}}},
		{"two partitions of one node, and another", [][]db.Attempt{{one},
			{with(record(2, 5, 5, 365, "b"), func(a *db.Attempt) { a.Partition = "long" })},
			{with(record(3, 6, 6, 16, "c"), func(a *db.Attempt) { a.Partition, a.Node = "test", "n3" })}}, Size{},
			"gpu,long: 1x2x40536 1@0+100/1 40% 9000-10000MiB 2@5+360/1 40% 9000-10000MiB\n" +
				"test: 1x1x40536 3@6+10/1 40% 9000-10000MiB\n", Unknown{}},
		{"as one partition of four nodes", [][]db.Attempt{{one},
			{with(record(3, 6, 6, 16, "c"), func(a *db.Attempt) { a.Partition, a.Node = "test", "n3" })}},
			Size{Nodes: 4}, "gpu,test: 4x1x40536 1@0+100/1 40% 9000-10000MiB 3@6+10/1 40% 9000-10000MiB\n", Unknown{}},
		{"requeued: the last attempt", [][]db.Attempt{{one, with(record(1, 0, 200, 300, "b"),
			func(a *db.Attempt) { a.Restart = 1 })}}, Size{}, "gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB\n",
			Unknown{Earlier: 1}},
		{"it shared: half as fast, so twice as active alone", [][]db.Attempt{{with(one,
			func(a *db.Attempt) { a.Total.SharedS, a.Total.HeldS, a.Total.AloneS = 100, 50, 50 })}}, Size{},
			"gpu: 1x1x40536 1@0+50/1 80% 9000-10000MiB\n", Unknown{}},
		{"it shared with an estimate: what was booked", [][]db.Attempt{{with(one, func(a *db.Attempt) {
			a.Mode, a.EstMiB, a.ReserveMiB = "shared", 12000, 13000
		})}}, Size{}, "gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB books 13000\n", Unknown{}},
		{"advised: what sharing would book", [][]db.Attempt{{with(one, func(a *db.Attempt) {
			a.Mode, a.EstMiB, a.ReserveMiB, a.AdvisedMiB = "exclusive", 12000, 40536, 13000
		})}}, Size{}, "gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB books 13000\n", Unknown{}},
		{"advised, without an estimate", [][]db.Attempt{{with(one, func(a *db.Attempt) {
			a.Mode, a.ReserveMiB, a.AdvisedMiB = "exclusive", 40536, 40536
		})}}, Size{}, "gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB\n", Unknown{}},
		{"exclusive, with an estimate: a partition that does not share", [][]db.Attempt{{with(one, func(a *db.Attempt) {
			a.Mode, a.EstMiB, a.ReserveMiB = "exclusive", 12000, 40536
		})}}, Size{}, "gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB\n", Unknown{}},
		{"times that cannot be", [][]db.Attempt{{one}, {record(2, 0, 20, 10, "a")}, {record(3, 0, 0, 9e9, "a")},
			{with(one, func(a *db.Attempt) { a.JobID, a.End = 4, time.Time{} })},
			{with(one, func(a *db.Attempt) { a.JobID, a.Total.UUIDs = 5, nil })},
			{with(one, func(a *db.Attempt) { a.JobID, a.Submit = 6, time.Time{} })}}, Size{},
			"gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB 6@10+100/1 40% 9000-10000MiB\n",
			Unknown{NoTimes: 3, NoGPUs: 1, NoSubmit: Count{1, 100. / 3600}}},
	} {
		var r Records
		for _, list := range c.add {
			r.Add(list)
		}
		p, err := r.Plan(nil, c.size, model.Default())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := describe(p); got != c.want || p.Unknown != c.left {
			t.Errorf("%s:\n%s%+v\nwant\n%s%+v", c.name, got, p.Unknown, c.want, c.left)
		}
	}
}

// Jobs that waited when the period began were submitted then, jobs that ran had begun.
func TestPeriod(t *testing.T) {
	r := Records{From: at(100), To: at(300)}
	failed := record(9, 0, 5, 95, "a")
	failed.State, failed.Total.PeakMiB = "FAILED", 30000
	r.Add([]db.Attempt{failed})                      // teaches nothing
	r.Add([]db.Attempt{record(1, 0, 10, 90, "a")})   // had ended
	r.Add([]db.Attempt{record(2, 0, 90, 150, "a")})  // ran
	r.Add([]db.Attempt{record(3, 0, 150, 200, "a")}) // waited
	r.Add([]db.Attempt{record(4, 200, 290, 400, "a")})
	r.Add([]db.Attempt{record(5, 200, 400, 500, "a")}) // began afterwards
	meters := []db.Meter{{Node: "n1", TotalMiB: 81920, At: at(350)}, {Node: "n1", TotalMiB: 81920, At: at(350)},
		{Node: "n1", TotalMiB: 40536, At: at(50)}, {Node: "n2", TotalMiB: 81920, At: at(50)}}
	p, err := r.Plan(meters, Size{}, model.Default())
	if err != nil {
		t.Fatal(err)
	}
	const want = "gpu: 1x2x81920 2@0+60/1 40% 9000-10000MiB 3@10+50/1 40% 9000-10000MiB " +
		"4@110+110/1 40% 9000-10000MiB\n"
	if got := describe(p); got != want {
		t.Errorf("got %s", got)
	}
	past := workload.Past{Runs: 1, PeakMiB: 10000, SMActPct: 40}
	if j := p.Pools[0].Kinds[0].Work.Jobs[2]; j.Past != past || p.Scripts != 0 {
		t.Errorf("past %+v, %d scripts", j.Past, p.Scripts)
	}
	c := p.Recorded
	got := fmt.Sprintf("%.2f GPU s, %.0f s, wait %.2f s, p95 %.0f s, slowdown %g, %g, OOM %d", 3600*c.GPUHours,
		c.MakespanS, c.WaitS, c.P95WaitS, c.P50Slowdown, c.P95Slowdown, c.OOM)
	if got != "220.00 GPU s, 310 s, wait 46.67 s, p95 90 s, slowdown 1, 1, OOM 0" {
		t.Errorf("recorded: %s", got)
	}
}

func TestNothing(t *testing.T) {
	two, none := record(2, 0, 1, 2, "a"), record(1, 0, 10, 110, "a")
	two.Cluster, none.Total.SMActPct = "d", figure.Unknown
	bare := record(3, 0, 10, 110, "a")
	bare.FullMiB = 0
	for _, c := range []struct {
		add  []db.Attempt
		size Size
		want string
	}{
		{nil, Size{}, "no job with GPUs has a record in this time; see --starttime"},
		{[]db.Attempt{none}, Size{}, "memory and SM activity were measured of none of the jobs"},
		{[]db.Attempt{record(1, 0, 10, 110, "a"), two}, Size{}, "several clusters; choose one with --clusters"},
		{[]db.Attempt{bare}, Size{}, "memory the GPUs of node n1 have; give --gpu-mem"},
		{[]db.Attempt{record(1, 0, 10, 110, "a")}, Size{GPUMemMiB: 2000}, "no job fits on nodes of this size"},
	} {
		var r Records
		for _, a := range c.add {
			r.Add([]db.Attempt{a})
		}
		if _, err := r.Plan(nil, c.size, model.Default()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}

// The node of a meter is as that of a record, whose texts are clean.
func TestHostileNode(t *testing.T) {
	a := record(1, 0, 10, 110, "a")
	a.Node, a.FullMiB = "n?[31m", 0
	var r Records
	r.Add([]db.Attempt{a})
	_, err := r.Plan([]db.Meter{{Node: "n\x1b[31m", At: at(50)}}, Size{}, model.Default())
	if err == nil || !strings.Contains(err.Error(), "memory the GPUs of node n?[31m have; give --gpu-mem") {
		t.Errorf("%q", err)
	}
	p, err := r.Plan([]db.Meter{{Node: "n\x1b[31m", TotalMiB: 40536, At: at(50)}}, Size{}, model.Default())
	if err != nil {
		t.Fatal(err)
	}
	if got := describe(p); got != "gpu: 1x1x40536 1@0+100/1 40% 9000-10000MiB\n" || p.Unknown.IdleNodes > 0 {
		t.Errorf("got %s%+v", got, p.Unknown)
	}
}

// Three runs of one script on one GPU, worked out by hand: alone one after the other; with
// sharing the first teaches the others, which then run side by side, each at rate U/sum(u) =
// (1-0.6*0.6)/0.8 = 0.8.
func TestByHand(t *testing.T) {
	var r Records
	r.Add([]db.Attempt{record(1, 0, 0, 3600, "a")})
	r.Add([]db.Attempt{record(2, 3700, 3700, 7300, "a")})
	r.Add([]db.Attempt{record(3, 3700, 7300, 10900, "a")})
	p, err := r.Plan(nil, Size{}, model.Default())
	if err != nil {
		t.Fatal(err)
	}
	s := replay.Default()
	s.Model.Job.StartupS, s.Model.Job.SpikeS, s.Model.Job.DurationJitterPct = model.Range{}, model.Range{}, 0
	s.Model.Slurm.LaunchS, s.Model.Slurm.ReleaseS, s.Model.Slurm.PublishS, s.Model.Slurm.PublishEveryS = 0, 0, 0, 0
	s.Model.Slurm.SampleS, s.Thresholds.SMActMaxPct, s.Thresholds.Settle = 0.01, 100, 0
	s.Model.GPU.Law = "propu" // the equal law, for equals, without measured mixes
	s.Estimator, s.Record = replay.History, true
	k := p.Pools[0].Kinds[0]
	s.Nodes, s.GPUs, s.GPUMemMiB = k.Nodes, k.GPUs, k.GPUMemMiB
	for _, c := range []struct {
		policy                                       policy.Name
		gpuHours, makespanS, waitS, slowdown, slow95 float64
		kWh                                          float64
	}{
		// 163 W at 35 % and 204 W at 50 %: 176.67 W at 40 %; 232 W at 65 %: 230.13 W at 64 %.
		{policy.Exclusive, 3, 10900, 1200, 1, 1, 3*0.17667 + 100*0.058/3600},
		{policy.Carma, 2.25, 8200, 0, 1.25, 1.25, 0.17667 + 1.25*0.23013 + (0.75+100./3600)*0.058},
	} {
		s.Policy = c.policy
		res, err := replay.Run(s, &k.Work)
		if err != nil {
			t.Fatal(err)
		}
		o := k.Of(&s, &res)
		f := Sum([][]*Outcome{{&o}}, []float64{10900})
		for _, v := range []struct {
			name      string
			got, want float64
		}{
			{"GPU hours", f.GPUHours.Mean, c.gpuHours}, {"makespan", f.MakespanS.Mean, c.makespanS},
			{"wait", f.WaitS.Mean, c.waitS}, {"slowdown", f.P50Slowdown.Mean, c.slowdown},
			{"p95", f.P95Slowdown.Mean, c.slow95}, {"kWh", f.EnergyJ.Mean / 3.6e6, c.kWh}, {"OOM", f.OOM.Mean, 0},
		} {
			if math.Abs(v.got-v.want) > 2e-4*max(v.want, 1) {
				t.Errorf("%s: %s %g, want %g", c.policy, v.name, v.got, v.want)
			}
		}
	}
}

// Jobs of seconds that have their GPUs to themselves run as long as alone: what a launch takes
// is a part of a record's run time.
func TestAlone(t *testing.T) {
	var r Records
	for i := range 20 {
		s := float64(i)
		r.Add([]db.Attempt{record(uint32(i+1), s, 4*s, 4*s+2, "a")})
	}
	p, err := r.Plan(nil, Size{}, model.Default())
	if err != nil {
		t.Fatal(err)
	}
	s := replay.Default()
	s.Model = p.Model(s.Model)
	s.Policy, s.Estimator, s.Record = policy.Exclusive, replay.History, true
	k := p.Pools[0].Kinds[0]
	s.Nodes, s.GPUs, s.GPUMemMiB = k.Nodes, k.GPUs, k.GPUMemMiB
	res, err := replay.Run(s, &k.Work)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range res.Jobs {
		if math.Abs(j.Slowdown-1) > 1e-6 {
			t.Errorf("job %s: slowdown %g", j.Job, j.Slowdown)
		}
	}
}
