// SPDX-License-Identifier: Apache-2.0

package annotate

import (
	"testing"

	"carma/estimator"
	"carma/estimator/history"
	"carma/estimator/method"
	"carma/slurmbridge/config"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/jobenv"
)

func TestHistory(t *testing.T) {
	const full = 40536
	key := func(script string) history.Key {
		return history.KeyOf(history.Ask{UID: 1000, Script: []byte(script), GPUs: 1, FullMiB: full})
	}
	on, user, summary, plain, big := "#CARMA on\na\n", "#CARMA mem=4G\nb\n", "#CARMA| Linear\nc\n", "d\n", "#CARMA on\ne\n"
	values := map[history.Key]history.Value{}
	var order []history.Key
	for script, peak := range map[string]int64{on: 10000, user: 9000, summary: 1000, plain: 5000, big: 39000} {
		order = append(order, key(script))
		values[key(script)] = history.Value{PeakMiB: peak, SMActPct: 33.4, Runs: 3}
	}
	v := values[key(on)]
	v.SpreadMiB = 5001
	values[key(on)] = v
	h, err := history.Parse(history.Make(order, values, []history.Shift{{FullMiB: full, MiB: 50, Jobs: 9},
		{FullMiB: full, Own: true, UID: 1000, MiB: 100, Jobs: 9}}))
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Partition = map[string]config.Partition{"gpu": {Default: true, Share: true, GPUsPerNode: 4, GPUMemMiB: full}}
	s := NewSite(c, "gres:")
	s.History = h
	var spec estimator.Spec
	s.Estimate = func(_ string, asked estimator.Spec) (estimator.Estimate, error) {
		spec = asked
		return estimator.Estimate{FloorMiB: 3000, MiB: 4000, ReserveMiB: 5000}, nil
	}
	for _, c := range []struct {
		name, script string
		method       string
		mode         jobenv.Mode
		est, reserve int64
		smact        int
	}{
		{"#CARMA on is enough", on, method.History, jobenv.ModeShared, 10000, 10500, 33},
		{"the user's word wins", user, method.User, jobenv.ModeShared, 4096, 4096, 33},
		{"never below the floor", summary, method.History, jobenv.ModeShared, 1000, 3000, 33},
		{"no #CARMA line", plain, method.None, jobenv.ModeExclusive, 0, full, 33},
		{"no other job would fit", big, method.History, jobenv.ModeExclusive, 39000, full, 33},
		{"not seen before", "#CARMA on\nx\n", method.None, jobenv.ModeExclusive, 0, full, 0},
		{"not seen, with a summary", "#CARMA| x\nx\n", "analytic", jobenv.ModeShared, 4000, 5000, 0},
		{"off", "#CARMA off\na\n", method.History, jobenv.ModeOff, 10000, full, 33},
		{"smact= wins", "#CARMA on smact=70\na\n", method.History, jobenv.ModeShared, 10000, 10500, 70},
	} {
		a, err := s.Annotate(Job{UID: 1000, Script: []byte(c.script), TRES: TRES{PerNode: "gres:gpu:1"}, MinNodes: NoVal,
			Tasks: NoVal, TasksPerNode: NoVal, SocketsPerNode: NoVal})
		if err != nil || a.Method != c.method || a.Mode != c.mode || a.EstMiB != c.est || a.ReserveMiB != c.reserve ||
			a.SMActPct != c.smact {
			t.Errorf("%s: %+v, %v", c.name, a, err)
		}
		const differ = "its runs differ, 4999 to 10000 MiB, and the largest is booked: vars= or job= tells them apart"
		if (a.Note == differ) != (a.Method == method.History && a.EstMiB == 10000) {
			t.Errorf("%s: note %q", c.name, a.Note)
		}
	}
	if base := estimator.DefaultBase(); spec.Base.CuDNNMiB != base.CuDNNMiB+100 ||
		spec.Base.CuBLASMiB != base.CuBLASMiB+100 {
		t.Errorf("base %+v", spec.Base)
	}
}

// What was learned about the default base does not lower a base that carma.toml gives: the runs
// that taught it were estimated by the default.
func TestShiftOfGivenBase(t *testing.T) {
	const full = 143155
	normal := estimator.DefaultBase()
	for _, c := range []struct {
		shift, given int64
		want         estimator.Base
	}{
		{-1000, 0, estimator.Base{CuBLASMiB: normal.CuBLASMiB - 1000, CuDNNMiB: normal.CuDNNMiB - 1000}},
		{-1000, 800, estimator.Base{CuBLASMiB: normal.CuBLASMiB - 1000, CuDNNMiB: 800}},
		{90, 800, estimator.Base{CuBLASMiB: normal.CuBLASMiB + 90, CuDNNMiB: 890}},
	} {
		own := history.Shift{FullMiB: full, Own: true, UID: 7, MiB: c.shift, Jobs: 9}
		h, err := history.Parse(history.Make(nil, nil, []history.Shift{own}))
		if err != nil {
			t.Fatal(err)
		}
		s, part := Site{History: h.For(7)}, config.Partition{GPUMemMiB: full, BaseCuDNNMiB: c.given}
		if got := s.SpecOf(directive.Directive{}, 1, part).Base; got != c.want {
			t.Errorf("shift %d, base %d: got %+v, want %+v", c.shift, c.given, got, c.want)
		}
	}
}
