// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// good fails if an error about foreign text is not one of ours.
func good(t *testing.T, err error) {
	var line *lineError
	if err != nil && !errors.As(err, &line) {
		t.Fatalf("%T: %v", err, err)
	}
}

func FuzzReadTrace(f *testing.F) {
	for _, s := range []string{"arrival_s,job\n0,small\n3,large\n",
		"arrival_s,job,user,duration_s\n0,small,ann,7\n1e9,large,bob,0\n", "\ufeffarrival_s,job\n\"0\",\"small\"\n",
		"#x\narrival_s,job\n1,small\n0,small\n"} {
		f.Add(s)
	}
	jobs := jobTable(f)
	f.Fuzz(func(t *testing.T, text string) {
		for _, skip := range []bool{false, true} {
			w, err := ReadTrace("f", strings.NewReader(text), jobs, Limits{GPUsPerNode: 2, SkipBad: skip})
			good(t, err)
			if err != nil {
				continue
			}
			for i, s := range w.Trace {
				if s.ArrivalS < 0 || i > 0 && s.ArrivalS < w.Trace[i-1].ArrivalS || int(s.Job) >= len(jobs) ||
					!(w.Duration(&s) > 0) {
					t.Fatalf("submission %d: %+v", i, s)
				}
			}
		}
	})
}

func FuzzReadJobs(f *testing.F) {
	f.Add(table)
	f.Add("job,model,gpus,exec_min_thesis,mem_MB_rad_v1,smact_observed60,class\n" +
		"a,vgg16,1,10,8222.0,0.5,medium\nb,x,1,,,,\n")
	f.Fuzz(func(t *testing.T, text string) {
		jobs, err := ReadJobs("f", strings.NewReader(text), map[string]float64{"m": 10}, 0.9)
		good(t, err)
		for _, j := range jobs {
			if j.Name == "" || j.GPUs < 1 || !(j.DurationS > 0) || j.PeakMiB < 1 || j.SteadyMiB > j.PeakMiB ||
				!(j.SMActPct > 0 && j.SMActPct <= 100) {
				t.Fatalf("%+v", j)
			}
		}
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := WriteJobs(&b, jobs); err != nil {
			t.Fatal(err)
		}
	})
}

func fuzzRecords(f *testing.F, read func(text string, skip bool) ([]Record, int, error)) {
	f.Fuzz(func(t *testing.T, text string) {
		for _, skip := range []bool{false, true} {
			records, _, err := read(text, skip)
			good(t, err)
			for _, r := range records {
				if r.At < 0 || !(r.RunS > 0) || r.GPUs < 1 || r.GPUs > maxGPUs {
					t.Fatalf("%+v", r)
				}
			}
		}
	})
}

func FuzzReadSacct(f *testing.F) {
	f.Add("JobID|User|Submit|ElapsedRaw|NNodes|AllocTRES\n" +
		"10|ann|2026-01-02T10:00:00|3600|1|gres/gpu:a100=2,gres/gpu=2\n10.batch||Unknown|||\n")
	fuzzRecords(f, func(text string, skip bool) ([]Record, int, error) {
		return ReadSacct("f", strings.NewReader(text), skip)
	})
}

func FuzzReadPhilly(f *testing.F) {
	f.Add(`[{"user":"ann","submitted_time":"2017-10-07 01:00:00","attempts":[{"start_time":"2017-10-07 01:01:00","end_time":"2017-10-07 02:01:00","detail":[{"gpus":["gpu0","gpu1"]}]},{"start_time":"None","end_time":null}]}]`)
	fuzzRecords(f, func(text string, skip bool) ([]Record, int, error) {
		return ReadPhilly("f", strings.NewReader(text), skip)
	})
}

func FuzzReadRecords(f *testing.F) {
	f.Add("when,secs,n,who\n100,3600,2,ann\n2026-01-02T10:00:00,100,1,bob\n")
	fuzzRecords(f, func(text string, skip bool) ([]Record, int, error) {
		return ReadRecords("f", strings.NewReader(text), Columns{"when", "secs", "n", "who"}, skip)
	})
}

func FuzzParseMix(f *testing.F) {
	f.Add("light=65,medium=27,heavy=8")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMix(text)
		if err == nil && (len(m) == 0 || m.at(0.999999) == "" || m.at(0) == "") {
			t.Fatalf("%v", m)
		}
	})
}
