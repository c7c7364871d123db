// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"cmp"
	"io"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"carma/cmd/carma-sim/internal/model"
)

const table = `job,model,class,gpus,duration_s,smact_pct,peak_mib,steady_mib,horus_mib,faketensor_mib,gpumemnet_mib
small,resnet18,light,1,600,35,2000,1900,1500,1800,4000
large,gpt2,heavy,2,4000,83,27000,26000,,,
`

func jobTable(t testing.TB) []Job {
	jobs, err := ReadJobs("jobs.csv", strings.NewReader(table), nil, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	return jobs
}

func TestReadTraceRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "t.csv: it is empty; a header line with the names of the columns comes first"},
		{"header only", "arrival_s,job\n", "t.csv: no submissions in it"},
		{"no header", "0,small\n", `t.csv: line 1: there is no column "arrival_s"; the header must name arrival_s, job`},
		{"unsorted", "arrival_s,job\n5,small\n4,small\n",
			"t.csv: line 3: arrival_s: 4 comes after 5; sort the trace by arrival"},
		{"negative", "arrival_s,job\n-5,small\n", "t.csv: line 2: arrival_s: -5 is not between 0 and 1e+09"},
		{"no number", "arrival_s,job\nnan,small\n", `t.csv: line 2: arrival_s: "nan" is not a number`},
		{"no time", "arrival_s,job\n,small\n", "t.csv: line 2: arrival_s is empty"},
		{"unknown job", "arrival_s,job\n# note\n0,huge\n", `t.csv: line 3: job: "huge" is not in the job table`},
		{"too many GPUs", "arrival_s,job\n0,small\n1,large\n", "t.csv: line 3: job large requests 2 GPUs, but a node has 1"},
		{"bad duration", "arrival_s,job,duration_s\n0,small,x\n", `t.csv: line 2: duration_s: "x" is not a number`},
		{"quote", "arrival_s,job\n0,sm\"all\n", `t.csv: line 2: bare " in non-quoted-field`},
	} {
		_, err := ReadTrace("t.csv", strings.NewReader(c.text), jobTable(t), Limits{GPUsPerNode: 1})
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestSkipBad(t *testing.T) {
	text := "arrival_s,job\n0,small\nx,small\n5,small\n4,small\n6,huge\n7,la\"rge\n8,small\n"
	w, err := ReadTrace("t.csv", strings.NewReader(text), jobTable(t), Limits{GPUsPerNode: 1, SkipBad: true})
	if err != nil || w.Skipped != 4 || len(w.Trace) != 3 {
		t.Errorf("%d left out, %d kept: %v", w.Skipped, len(w.Trace), err)
	}
}

// zeros never ends, and has no line end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// repeat gives the same lines again and again, up to n bytes.
type repeat struct {
	line string
	n    int
	rest string
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.n <= 0 {
		return 0, io.EOF
	}
	if r.rest == "" {
		r.rest = r.line
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	r.n -= n
	return n, nil
}

func TestHugeFiles(t *testing.T) {
	head := "arrival_s,job\n0,small\n"
	_, err := ReadTrace("t.csv", io.MultiReader(strings.NewReader(head), zeros{}), jobTable(t),
		Limits{GPUsPerNode: 4, SkipBad: true})
	if want := "t.csv: line 3: longer than 1048576 bytes; is this a trace?"; err == nil || err.Error() != want {
		t.Errorf("a line without an end: %v", err)
	}
	gig := &repeat{line: strings.Repeat("7,small\n", 4096), n: 1 << 30}
	_, err = ReadTrace("t.csv", io.MultiReader(strings.NewReader(head), gig), jobTable(t),
		Limits{GPUsPerNode: 4, Submissions: 1e5})
	if want := "t.csv: line 100002: more than 100000 submissions"; err == nil || err.Error() != want {
		t.Errorf("1 GB: %v", err)
	}
}

func TestReadJobsRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "j.csv: it is empty; a header line with the names of the columns comes first"},
		{"no jobs", "job,gpus,duration_s,smact_pct,peak_mib\n", "j.csv: no jobs in it"},
		{"missing column", "job,gpus,duration_s,peak_mib\na,1,1,1\n",
			`j.csv: line 1: there is no column "smact_pct"; the header must name duration_s, smact_pct, peak_mib`},
		{"twice", "job,gpus,duration_s,smact_pct,peak_mib\na,1,10,50,100\na,1,10,50,100\n",
			"j.csv: line 3: job a is there twice"},
		{"no GPUs", "job,gpus,duration_s,smact_pct,peak_mib\na,0,10,50,100\n",
			"j.csv: line 2: gpus: 0 is not between 1 and 64"},
		{"empty field", "job,gpus,duration_s,smact_pct,peak_mib\na,1,10,,100\n", "j.csv: line 2: smact_pct is empty"},
	} {
		_, err := ReadJobs("j.csv", strings.NewReader(c.text), nil, 0.9)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: got %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestWriteAndReadAgain(t *testing.T) {
	jobs := jobTable(t)
	var b bytes.Buffer
	if err := WriteJobs(&b, jobs); err != nil || b.String() != table {
		t.Errorf("%v\n%s", err, b.String())
	}
	w := Workload{Name: "t", Jobs: jobs, Trace: []Submission{{0, 0, 1000, 0}, {3.5, 1, 1001, 77}}}
	b.Reset()
	if err := WriteTrace(&b, &w); err != nil {
		t.Fatal(err)
	}
	if want := "arrival_s,job,user,duration_s\n0,small,u1000,0\n3.5,large,u1001,77\n"; b.String() != want {
		t.Errorf("got\n%s", b.String())
	}
	again, err := ReadTrace("t.csv", &b, jobs, Limits{GPUsPerNode: 4})
	if err != nil || !reflect.DeepEqual(w, again) {
		t.Errorf("%v\n%+v\n%+v", err, w, again)
	}
}

// A trace of the second version is known by jobs that the first did not have, and
// has the run times of its own table.
func TestVersionOfPublishedTimes(t *testing.T) {
	const jobs = `job,model,gpus,gpu_resident_min_observed60,exec_min_thesis,exec_min_v2readme,mem_MB_rad_v1,mem_MB_rad_v2,smact_observed60
seen,m,1,10,11,12,5000,4000,0.5
told,m,1,,21,22,5000,4000,0.5
old,m,1,30,,,5000,,0.5
new,m,1,,,42,,4000,0.5
`
	table, err := ReadJobs("jobs.csv", strings.NewReader(jobs), nil, 0.9)
	if err != nil {
		t.Fatal(err)
	}
	for trace, want := range map[string][]float64{ // minutes
		"seen told old":     {10, 21, 30},
		"seen told old new": {12, 22, 30, 42},
		"new":               {42},
	} {
		text := "arrival_s,job\n0," + strings.ReplaceAll(trace, " ", "\n0,") + "\n"
		w, err := ReadTrace("t.csv", strings.NewReader(text), table, Limits{GPUsPerNode: 1})
		if err != nil {
			t.Fatal(err)
		}
		var got []float64
		for i := range w.Trace {
			got = append(got, w.Duration(&w.Trace[i])/60)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v minutes, want %v", trace, got, want)
		}
	}
}

// The published tables, where they are.
func TestPublishedTables(t *testing.T) {
	data := cmp.Or(os.Getenv("CARMA_DATA"), "../../../../data")
	dir := data + "/traces/"
	f, err := os.Open(dir + "jobs.csv")
	if err != nil {
		t.Skip("the published tables are not here: ", err)
	}
	defer f.Close()
	m := model.Default()
	jobs, err := ReadJobs("jobs.csv", f, m.SMActGuess, m.Job.SteadyShare)
	if err != nil {
		t.Fatal(err)
	}
	n, err := AttachSummaries(jobs, data+"/memory")
	if err != nil || n < 20 {
		t.Errorf("%d jobs have a summary: %v", n, err)
	}
	for name, want := range map[string]int{"trace60": 60, "trace90": 90, "trace_t1_v2": 60, "trace_t2_v2": 60} {
		f, err := os.Open(dir + name + ".csv")
		if err != nil {
			t.Fatal(err)
		}
		w, err := ReadTrace(name+".csv", f, jobs, Limits{GPUsPerNode: 4})
		f.Close()
		if err != nil || len(w.Trace) != want || w.Name != name {
			t.Errorf("%s: %d submissions: %v", name, len(w.Trace), err)
		}
	}
}

func TestImport(t *testing.T) {
	sacct := `JobID|User|Submit|ElapsedRaw|NNodes|AllocTRES
10|ann|2026-01-02T10:00:00|3600|1|billing=4,cpu=4,gres/gpu:a100=2,gres/gpu=2
10.batch|ann|2026-01-02T10:00:00|3600|1|cpu=4
11|bob|2026-01-02T10:00:30|100|1|cpu=4,gres/gpu=1
12|bob|2026-01-02T10:01:00|0|1|
13|bob|2026-01-02T10:01:00|50|2|gres/gpu=8
14|bob|2026-01-02T10:02:00|50|1|gres/gpu=1
`
	philly := `[{"status":"Pass","jobid":"a1","user":"ann","submitted_time":"2017-10-07 01:00:00",
 "attempts":[{"start_time":"2017-10-07 01:01:00","end_time":"2017-10-07 02:01:00","detail":[{"ip":"m1","gpus":["gpu0","gpu1"]}]}]},
{"status":"Killed","jobid":"a2","user":"bob","submitted_time":"2017-10-07 01:00:30",
 "attempts":[{"start_time":"2017-10-07 01:01:00","end_time":"2017-10-07 01:02:40","detail":[{"ip":"m1","gpus":["gpu2"]}]},{"start_time":"None","end_time":null,"detail":[]}]},
{"status":"Pass","jobid":"a3","user":"bob","submitted_time":"2017-10-07 01:01:00","attempts":[]},
{"status":"Pass","jobid":"a4","user":"bob","submitted_time":"2017-10-07 01:02:00",
 "attempts":[{"start_time":"2017-10-07 01:02:00","end_time":"2017-10-07 01:02:50","detail":[{"ip":"m1","gpus":["gpu2"]}]}]}]
`
	plain := "when,secs,n,who\n100,3600,2,ann\n130,100,1,bob\n220,50,1,bob\n"
	mix, err := ParseMix("light=60,heavy=40")
	if err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() ([]Record, int, error){
		"sacct":  func() ([]Record, int, error) { return ReadSacct("f", strings.NewReader(sacct), false) },
		"philly": func() ([]Record, int, error) { return ReadPhilly("f", strings.NewReader(philly), false) },
		"csv": func() ([]Record, int, error) {
			return ReadRecords("f", strings.NewReader(plain), Columns{"when", "secs", "n", "who"}, false)
		},
	} {
		records, skipped, err := read()
		if err != nil || skipped != 0 || len(records) != 3 {
			t.Errorf("%s: %d records, %d bad: %v", name, len(records), skipped, err)
			continue
		}
		w, err := Map("t", records, jobTable(t), Mapping{Mix: mix, KeepRunS: true})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := []Submission{{0, 1, 1000, 3600}, {30, 0, 1001, 100}, {120, 0, 1001, 50}}
		if !reflect.DeepEqual(w.Trace, want) {
			t.Errorf("%s: got %v\nwant %v", name, w.Trace, want)
		}
		w, err = Map("t", records, jobTable(t), Mapping{Mix: mix, FromS: records[1].At, WindowS: 60})
		if err != nil || len(w.Trace) != 1 || w.Trace[0].DurationS != 0 {
			t.Errorf("%s: window: %v %v", name, w.Trace, err)
		}
	}
}

func TestImportRefuses(t *testing.T) {
	for _, c := range []struct{ kind, text, want string }{
		{"sacct", "", "f: it is empty; a header line with the names of the columns comes first"},
		{"sacct", "JobID|Submit\n", `f: line 1: there is no column "ElapsedRaw"; the header must name JobID, Submit, ElapsedRaw, AllocTRES`},
		{"sacct", "JobID|Submit|ElapsedRaw|AllocTRES\n1|never|5|gres/gpu=1\n", `f: line 2: Submit: "never" is no time`},
		{"sacct", "JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-01-01T00:00:00|5|what\n",
			`f: line 2: AllocTRES: "what" is no list of TRES`},
		{"philly", "", "f: it is empty"},
		{"philly", "{}", "f: line 1: it begins with {, not with a list of jobs"},
		{"philly", "[\n{},\n", `f: line 2: submitted_time: "" is no time`},
		{"philly", "[\n{\"submitted_time\":\"2017-10-07 01:00:00\"},\n{", "f: line 3: the file ends in the middle"},
		{"philly", "[\n{\"submitted_time\":7}]",
			"f: line 2: json: cannot unmarshal number into Go struct field phillyJob.submitted_time of type string"},
		{"philly", "[]", "f: no job with GPUs in it"},
	} {
		var err error
		if c.kind == "sacct" {
			_, _, err = ReadSacct("f", strings.NewReader(c.text), false)
		} else {
			_, _, err = ReadPhilly("f", strings.NewReader(c.text), false)
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %q: got %v\nwant %s", c.kind, c.text, err, c.want)
		}
	}
}

func TestSynthesise(t *testing.T) {
	m := model.Default()
	mix, err := ParseMix("light=65,medium=27,heavy=8")
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := SynthesiseJobs(20, m.Synth, mix, m.Job.SteadyShare, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range ArrivalNames {
		s := Synthetic{Submissions: 20000, MeanGapS: 30, Arrivals: Arrivals(a), Mix: mix, Users: 3, Seed: 1}
		w, err := Synthesise("t", s, jobs)
		if err != nil {
			t.Fatal(err)
		}
		share := map[string]float64{}
		for _, sub := range w.Trace {
			share[jobs[sub.Job].Class] += 100 / float64(len(w.Trace))
		}
		mean := w.Trace[len(w.Trace)-1].ArrivalS / float64(len(w.Trace)-1)
		if math.Abs(share["light"]-65) > 1.5 || math.Abs(share["heavy"]-8) > 1.5 || a != string(Diurnal) &&
			math.Abs(mean-30) > 2 {
			t.Errorf("%s: mean gap %.1f s, mix %v", a, mean, share)
		}
	}
	for _, text := range []string{"", "light", "light=50", "light=50,heavy=51", "=100", "light=nan"} {
		if m, err := ParseMix(text); err == nil {
			t.Errorf("mix %q is %v", text, m)
		}
	}
}
