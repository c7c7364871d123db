// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// rows is a squeue that prints rows with the separator that it is asked for.
func rows(rows ...[]string) string {
	b := strings.Builder{}
	b.WriteString("sep=${SQUEUE_FORMAT2#*:}; sep=${sep%%,*}\n")
	for _, row := range rows {
		for _, f := range row {
			b.WriteString("printf '%s%s' '" + strings.ReplaceAll(f, "'", `'\''`) + "' \"$sep\"\n")
		}
		b.WriteString("echo\n")
	}
	return b.String()
}

// How long a job has been suspended follows from what squeue counts as used.
func TestSuspended(t *testing.T) {
	for _, c := range []struct {
		state, used  string
		ago, atLeast time.Duration
		none         bool
	}{
		{"RUNNING", "1:00", 100 * time.Second, 40 * time.Second, false},
		{"RUNNING", "1:01:05", 2 * time.Hour, 3535 * time.Second, false},
		{"RUNNING", "2-01:00:00", 50 * time.Hour, time.Hour, false},
		{"RUNNING", "INVALID", time.Hour, 0, true},
		{"RUNNING", "2:00", 100 * time.Second, 0, true}, // clocks that differ
		{"SUSPENDED", "1:00", time.Hour, 0, true},
		{"PENDING", "0:00", -time.Hour, 0, true},
	} {
		j, err := parseJob(fields(map[int]string{6: c.state, 18: fmt.Sprint(time.Now().Add(-c.ago).Unix()), 20: c.used}))
		if err != nil || j.Suspended < c.atLeast || c.none != (j.Suspended == 0) {
			t.Errorf("%+v: %s, %v", c, j.Suspended, err)
		}
	}
}

// fields are those of identity, of a job that is nothing special.
func fields(change map[int]string) []string {
	f := []string{"12", "1001", "12", "N/A", "N/A", "N/A", "RUNNING", "gpu", "1", "1", "0", "1795257605", "0:0", "None",
		"1795257600", "OK",
		"n[1-2]", "normal", "1795257606", "maintenance", "N/A", "1795261206", "4294901759"}
	for i, s := range change {
		f[i] = s
	}
	return f
}

var plainJob = Job{ID: 12, UID: 1001, State: "RUNNING", Partition: "gpu", Reason: "None", Nodes: 1, Requeue: true,
	Eligible: time.Unix(1795257605, 0), Submitted: time.Unix(1795257600, 0), NodeList: "n[1-2]", QOS: "normal",
	Start:       time.Unix(1795257606, 0),
	End:         time.Unix(1795261206, 0),
	Reservation: "maintenance", Priority: 4294901759}

func TestJob(t *testing.T) {
	with := func(change func(*Job)) Job {
		j := plainJob
		change(&j)
		return j
	}
	for name, c := range map[string]struct {
		rows                      [][]string
		want                      Job
		target, leader, component string
	}{
		"plain": {[][]string{fields(nil)}, plainJob, "12", "12", "12"},
		"a task of an array, beside others": {[][]string{fields(map[int]string{0: "11", 2: "10", 3: "0"}),
			fields(map[int]string{2: "10", 3: "3"}), fields(map[int]string{0: "10", 2: "10", 3: "4-9"})},
			with(func(j *Job) { j.ArrayJobID, j.ArrayTask = 10, 3 }), "10_3", "10_3", "10_3"},
		"tasks that wait under one id": {[][]string{fields(map[int]string{3: "0-9%2"})},
			with(func(j *Job) { j.ArrayJobID, j.Unsplit = 12, true }), "", "", ""},
		"a component": {[][]string{fields(map[int]string{4: "11", 5: "1"})},
			with(func(j *Job) { j.HetJobID, j.HetOffset = 11, 1 }), "12", "11", "11+1"},
		"not heterogeneous, in words of other releases": {[][]string{fields(map[int]string{4: "0", 5: "0"})}, plainJob, "12",
			"12", "12"},
		"has the node to itself": {[][]string{fields(map[int]string{15: "NO"})},
			with(func(j *Job) { j.WholeNode = true }), "12", "12", "12"},
		"may not return to the queue, has been back, is held": {[][]string{fields(map[int]string{9: "0", 10: "3", 11: "N/A",
			13: "JobHeldUser"})},
			with(func(j *Job) { j.Requeue, j.Restarts, j.Eligible, j.Reason = false, 3, time.Time{}, "JobHeldUser" }), "12",
			"12", "12"},
		"runs nowhere": {[][]string{fields(map[int]string{16: "(null)"})},
			with(func(j *Job) { j.NodeList = "" }), "12", "12", "12"},
		"failed": {[][]string{fields(map[int]string{12: "1:9"})},
			with(func(j *Job) { j.ExitCode, j.ExitSignal = 1, 9 }), "12", "12", "12"},
		"failed, as wait(2) says it": {[][]string{fields(map[int]string{12: "256"})},
			with(func(j *Job) { j.ExitCode = 1 }), "12", "12", "12"},
		"a large uid": {[][]string{fields(map[int]string{1: "-2"})},
			with(func(j *Job) { j.UID = 4294967294 }), "12", "12", "12"},
		"no exit status yet": {[][]string{fields(map[int]string{12: ""})}, plainJob, "12", "12", "12"},
		"killed, as wait(2) says it": {[][]string{fields(map[int]string{12: "9"})},
			with(func(j *Job) { j.ExitSignal = 9 }), "12", "12", "12"},
		"a reason that reads as a line": {[][]string{fields(map[int]string{13: "x\n99|99|N/A"})},
			with(func(j *Job) { j.Reason = "x\n99|99|N/A" }), "12", "12", "12"},
	} {
		got, err := client(t, map[string]string{"squeue": rows(c.rows...)}).Job(t.Context(), 12)
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
		if got := []string{got.Target().String(), got.Leader().String(), got.Component().String()}; !slices.Equal(got,
			[]string{c.target, c.leader, c.component}) {
			t.Errorf("%s: targets %q", name, got)
		}
	}
}

// A job of a federation is one that may not be requeued.
func TestFederated(t *testing.T) {
	for id, want := range map[string]bool{"67108863": true, "67108864": false, "201326593": false} {
		if j, err := parseJob(fields(map[int]string{0: id, 2: id})); err != nil || j.Requeue != want {
			t.Errorf("job %s may be requeued: %v, %v", id, j.Requeue, err)
		}
	}
}

func TestJobRefused(t *testing.T) {
	for name, squeue := range map[string]string{
		"two rows":        rows(fields(nil), fields(nil)),
		"a uid by name":   rows(fields(map[int]string{1: "alice"})),
		"no uid":          rows(fields(map[int]string{1: ""})),
		"a sign":          rows(fields(map[int]string{1: "+1001"})),
		"too large":       rows(fields(map[int]string{1: "4294967296"})),
		"no offset":       rows(fields(map[int]string{4: "11"})),
		"no state":        rows(fields(map[int]string{6: ""})),
		"a line break":    rows(fields(map[int]string{7: "gpu\n13"})),
		"a field less":    rows(fields(nil)[1:]),
		"no separators":   "echo '12|1001|12|N/A|N/A|N/A|RUNNING|gpu|1|1|0|1|0:0|None|1'",
		"text behind":     rows(fields(nil)) + "\necho and more",
		"slurmctld away":  "echo Unable to contact slurm controller >&2; exit 1",
		"no exit status":  rows(fields(map[int]string{12: "x"})),
		"no restarts":     rows(fields(map[int]string{10: "N/A"})),
		"a foreign field": rows(fields(map[int]string{7: "a=b"})),
	} {
		if j, err := client(t, map[string]string{"squeue": squeue}).Job(t.Context(), 12); err == nil ||
			errors.Is(err, ErrNoJob) {
			t.Errorf("%s: got %+v, %v", name, j, err)
		}
	}
	for name, squeue := range map[string]string{
		"purged":  "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
		"nothing": "",
		"others":  rows(fields(map[int]string{0: "13"})),
	} {
		if j, err := client(t, map[string]string{"squeue": squeue}).Job(t.Context(), 12); !errors.Is(err, ErrNoJob) {
			t.Errorf("%s: got %+v, %v", name, j, err)
		}
	}
}

func TestWords(t *testing.T) {
	for want, row := range map[Words][]string{
		{Name: "a|b\n13|x", Account: "ml", TresPerNode: "gres:gpu:1", TresPerJob: "gres:gpu:5",
			AdminComment: `carma={"v":1} a|b`}: {"12", "a|b\n13|x", "ml", "gres:gpu:1", `carma={"v":1} a|b`, "gres:gpu:5"},
		{Name: "N/A"}: {"12", "N/A", "(null)", "N/A", "(null)", "N/A"},
	} {
		c := client(t, map[string]string{"squeue": rows([]string{"11", "of", "another", "task", "", ""}, row)})
		if got, err := c.Words(t.Context(), 12); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", row, got, err)
		}
	}
	if _, err := client(t, map[string]string{"squeue": rows()}).Words(t.Context(), 12); !errors.Is(err, ErrNoJob) {
		t.Errorf("another job: %v", err)
	}
}

// Nothing is done without a job, and no text of a user becomes an argument.
func TestChangesRefused(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "", "scancel": ""})
	ctx, j := t.Context(), Job{ID: 12}.Target()
	for what, err := range map[string]error{
		"requeuehold":   c.RequeueHold(ctx, Target{}),
		"requeue":       c.RequeueIncomplete(ctx, Target{}),
		"release":       c.Release(ctx, Target{}),
		"cron":          c.CheckCron(ctx, Target{}),
		"cancel":        c.Cancel(ctx, Target{}),
		"update":        c.Update(ctx, Target{}, Change{Partition: "gpu"}),
		"start":         c.SetStart(ctx, Target{}, time.Now()),
		"partition":     c.Update(ctx, j, Change{Partition: "gpu JobId=13"}),
		"GRES":          c.Update(ctx, j, Change{TresPerNode: "gres:gpu:x\n1"}),
		"extra":         c.Update(ctx, j, Change{Extra: "carma1>=1 JobId=13"}),
		"admin comment": c.Update(ctx, j, Change{AdminComment: "x\ny"}),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if err := c.Cancel(ctx, j); err != nil || calls(t, c) != "scancel 12 conf=/etc/slurm/other.conf\n" {
		t.Errorf("%v, calls:\n%s", err, calls(t, c))
	}
}

// The separator is another one each time, and stands in no argument.
func TestSeparatorIsSecret(t *testing.T) {
	c := client(t, map[string]string{"squeue": `echo "$SQUEUE_FORMAT2" >>` + "$(dirname $0)/formats; exit 1"})
	seen := map[string]bool{}
	for range 3 {
		if _, err := c.Job(t.Context(), 12); err == nil || strings.Contains(err.Error(), "@") {
			t.Errorf("got %v", err)
		}
	}
	if text := calls(t, c); strings.Contains(text, "@") || strings.Contains(text, "ormat") {
		t.Errorf("arguments: %s", text)
	}
	text, err := os.ReadFile(filepath.Join(c.BinDir, "formats"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); len(line) < 15*34 || seen[line] {
			t.Errorf("format %q", line)
		}
		seen[line] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d formats", len(seen))
	}
}

// An answer that was cut short is none.
func TestCutShort(t *testing.T) {
	const sep = separator("@1@")
	for text, want := range map[string]int{"": 0, "a@1@b@1@\n": 1, "a@1@b@1@\nc@1@d@1@\n": 2, "a@1@\n": -1,
		"a@1@b@1@\nc": -1, "text": -1} {
		rows, err := sep.cut(text, 2)
		if (err != nil) != (want < 0) || len(rows) != max(want, 0) {
			t.Errorf("%q: %q, %v", text, rows, err)
		}
	}
}

// Never a job that was not asked for, whatever stands in the fields.
func FuzzJob(f *testing.F) {
	f.Add("gpu", "None", "RUNNING", "N/A")
	f.Add("gpu\n13|13", "x\n99|99", "RUNNING\n", "0,7")
	f.Add("", "@", "@@", "4294967296")
	f.Fuzz(func(t *testing.T, partition, reason, state, task string) {
		sep := newSeparator()
		var b strings.Builder
		for _, row := range [][]string{fields(map[int]string{0: "11"}),
			fields(map[int]string{2: "10", 3: task, 6: state, 7: partition, 13: reason})} {
			for _, s := range row {
				b.WriteString(s + string(sep))
			}
			b.WriteByte('\n')
		}
		got, err := sep.cut(b.String(), len(identity))
		if err != nil || len(got) != 2 {
			t.Fatalf("%d rows, %v", len(got), err)
		}
		n := 0
		if _, err := sep.scan(strings.NewReader(b.String()), len(identity), func(r []string) {
			if n < 2 && !slices.Equal(r, got[n]) {
				t.Errorf("%q as it comes, %q at hand", r, got[n])
			}
			n++
		}); err != nil || n != 2 {
			t.Fatalf("%d rows, %v", n, err)
		}
		rows, err := single(got, map[string]uint32{"12": 12, "99": 99})
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		j, err := parseJob(rows[12])
		if err != nil {
			return
		}
		if j.Unsplit && j.Target() == (Target{}) {
			return
		}
		allowed := []string{"12", fmt.Sprintf("10_%d", j.ArrayTask)}
		if j.UID != 1001 || j.ID != 12 || j.Target().String() != allowed[0] &&
			(j.ArrayJobID != 10 || j.Target().String() != allowed[1]) {
			t.Errorf("%+v, %s", j, j.Target())
		}
	})
}
