// SPDX-License-Identifier: Apache-2.0

//go:build integration

package devcluster_test

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base32"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// textFields are the fields of a request that hold text of its user, as
// testdata/request.c names them, with what stands before the forged lines so that
// slurmctld may take them.
var textFields = map[string]string{
	"account": "ml", "name": "x", "comment": "x", "wckey": "x", "features": "", "reservation": "", "work_dir": "/tmp",
	"std_out": "out", "std_err": "err", "partition": "gpu", "qos": "normal", "mcs_label": "x", "network": "x",
	"licenses":   "",
	"dependency": "", "req_nodes": "n1", "exc_nodes": "n9", "burst_buffer": "x", "admin_comment": "x", "array": "0",
	"tres_per_node": "gres:gpu:x", "tres_per_job": "gres:gpu:x", "tres_per_task": "gres:gpu:x",
	"tres_per_socket": "gres:gpu:x",
}

// forged are lines as Slurm's commands print them of job own, which make other jobs
// of it: tasks of an array, or a waiting job that books what its nodes do not have.
func (c *cluster) forged(own string, targets ...string) string {
	uid := c.uid(alice)
	list := "0," + strings.Join(targets, ",")
	var text string
	for _, id := range targets {
		text += forgedGRES(id)
	}
	for _, line := range []string{
		fmt.Sprintf("%s %s %s RUNNING gpu TimeLimit 1 %s", own, own, list, uid),
		fmt.Sprintf("%s|%s|%s|RUNNING|gpu|TimeLimit|1|%s", own, own, list, uid),
		fmt.Sprintf("%s|%s|%s|RUNNING|gpu|ml|TimeLimit|1|%s|gres:gpu:1|x", own, own, list, uid),
	} {
		text += "\n" + line
	}
	return text
}

// forgedGRES is a line of the queue of a waiting job that names its node; behind
// "gres:gpu:x" it is a type of GPU, with requests that slurmctld takes.
func forgedGRES(id string) string {
	return "\n" + id + "|PENDING|gpu|Resources|1|N/A|N/A|N/A||n1||" + id +
		"|N/A|(null)|gpu,gres:carma:99999"
}

// forgery submits jobs with forged texts.
type forgery struct {
	*cluster
	request, script string
	last            int // the newest job id
	ids             map[string]string
}

// newForgery is one with a script, which need not have #SBATCH lines.
func newForgery(c *cluster, script string) *forgery {
	c.t.Helper()
	f := &forgery{cluster: c, request: c.client("request"), ids: map[string]string{}}
	f.script = c.file(alice, fmt.Sprintf("forgery%d.sh", time.Now().UnixNano()), script)
	f.last, _ = strconv.Atoi(c.sh(alice, "sbatch --parsable -p plain -H --wrap true"))
	return f
}

// submit submits a held job of alice; an error is what the request was refused with.
func (f *forgery) submit(what string, fields ...string) (id string, err error) {
	command := f.request + " submit " + f.script + " hold=1 std_err=e." + strconv.Itoa(f.last)
	gpu := " tres_per_node=gres:gpu:1"
	for _, field := range fields {
		if strings.HasPrefix(field, "tres_per_") {
			gpu = ""
		}
		command += " " + quote(field)
	}
	out, stderr, err := f.run(alice, command+gpu)
	if err != nil {
		return "", fmt.Errorf("%s", strings.TrimSpace(stderr))
	}
	id = strings.TrimSpace(out)
	f.last, _ = strconv.Atoi(id)
	f.ids[id] = what
	return id, nil
}

// atSubmit submits a job whose field says forged lines of its own id, which is the
// next one; without an id it was refused.
func (f *forgery) atSubmit(what, field string, text func(own string) string, more ...string) (id string) {
	f.t.Helper()
	for range 5 {
		own := strconv.Itoa(f.last + 1)
		id, err := f.submit(what, append(more, field+"="+textFields[field]+text(own))...)
		if err != nil {
			attacked(f.t, what, "refused: "+err.Error())
			return ""
		}
		if id == own {
			attacked(f.t, what, "accepted as job "+id)
			return id
		}
		f.sh("", "scancel "+id)
		delete(f.ids, id)
	}
	f.t.Errorf("%s: other jobs take the ids", what)
	return ""
}

// byUpdate does so by a change of a job that waits.
func (f *forgery) byUpdate(what, field string, text func(own string) string, more ...string) {
	f.t.Helper()
	id, err := f.submit(what, more...)
	if err != nil {
		f.t.Fatal(what, err)
	}
	f.change(id, field, textFields[field]+text(id))
}

// change changes a field of a job of alice, as its submission was called.
func (f *forgery) change(id, field, text string) {
	if _, stderr, err := f.run(alice, f.request+" update "+id+" "+quote(field+"="+text)); err != nil {
		attacked(f.t, f.ids[id], "refused: "+strings.TrimSpace(stderr))
	} else {
		attacked(f.t, f.ids[id], "accepted as job "+id)
	}
}

// Whatever a user writes into a request, at submission or by an update, other jobs
// stay as they are: running ones, waiting ones and arrays, of others and of the same
// user, in partitions of ours and in one that is not. The jobs ask for recovery, so
// that root looks at them and acts.
func TestAttackText(t *testing.T) {
	c := up(t, "--nodes", "1", "--gpu-model", "h100", "--time-scale", "20")
	attackText(t, c)
	c.noDrain()
}

// slurmctld with slurmdbd takes other accounts and names; a test of its own, for a subtest would start last.
func TestAttackTextWithSlurmdbd(t *testing.T) {
	needsMySQL(t)
	c := up(t, "--nodes", "1", "--gpu-model", "h100", "--time-scale", "20", "--slurmdbd")
	attackText(t, c)
	attackRecords(t, c)
	c.noDrain()
}

func attackText(t *testing.T, c *cluster) {
	before, common, own := victims(c, 2*len(textFields)+8, "")
	// The first task has ended when the second runs out of memory: squeue then
	// prints the first one's name before it comes to the second.
	f := newForgery(c, "#!/bin/bash\n#CARMA mem=2G\n[ \"$SLURM_ARRAY_TASK_ID\" != 0 ] || exit 0\n"+
		"sleep 2\necho '"+oomText+"' >&2\nexit 1\n")
	aims := map[string]string{} // at which victim of its own an attack aims
	target := func(what, field string) func(string) string {
		targets := append([]string{own[0]}, common...)
		aims[own[0]], own = what, own[1:]
		if strings.HasPrefix(field, "tres_per_") {
			return func(string) string { return forgedGRES(common[1]) }
		}
		return func(id string) string { return c.forged(id, targets...) }
	}
	attack := func(what, field string, more ...string) {
		f.atSubmit(what+" at submission", field, target(what+" at submission", field), more...)
		f.byUpdate(what+" by update", field, target(what+" by update", field), more...)
	}
	for _, field := range slices.Sorted(maps.Keys(textFields)) {
		attack(field, field)
	}
	for _, field := range []string{"account", "name", "comment", "wckey"} {
		attack(field+" of an array", field, "array=0-1")
	}
	var ids []string
	for id := range f.ids {
		ids = append(ids, id)
	}
	c.run(alice, "scontrol release "+strings.Join(ids, " "))
	c.ended(ids)
	// The steward has looked at the queue, and agents at what is requeued.
	time.Sleep(6 * time.Second)
	c.unchanged(func(victim string) string { return "forged lines in " + cmp.Or(aims[victim], "any field") }, before)
	c.run(alice, "scancel "+strings.Join(ids, " "))
}

// ended waits until each job has ended, or has been requeued once, or cannot start.
func (c *cluster) ended(ids []string) {
	c.t.Helper()
	never := "Dependency|Reservation|BadConstraints|Licenses|Held|Nodes?Required|PartitionNodeLimit|Invalid|BurstBuffer"
	still := `awk -F'|' 'BEGIN { split("` + strings.Join(ids, " ") + `", list, " "); for (i in list) ours[list[i]] = 1 }
		NF == 5 && ours[$5 + 0] && ($2 ~ /RUNNING|COMPLETING|CONFIGURING/ ||
			$2 ~ /PENDING/ && $4 + 0 == 0 && $3 !~ /` + never + `/)'`
	c.empties(func() string {
		return c.sh("", "squeue -h -t all -r -O 'JobID:|,State:|,Reason:|,RestartCnt:|,ArrayJobID:' | "+still)
	})
}

// victims are jobs that nobody may touch: common ones, and as many running ones as
// there are attacks, so that it shows which one hit.
func victims(c *cluster, attacks int, options string) (before map[string]string, common, own []string) {
	sleeps := func(user, more string) string {
		return c.sh(user, "sbatch --parsable -o /dev/null -p plain "+options+" "+more+" --wrap 'exec sleep 1h'")
	}
	tasks := min(attacks+1, 60) // CPUs of a node, less those of the others
	// Few at a time: of a launch that a busy slurmd answers late slurmctld requeues the job, minutes later.
	many := sleeps(bob, fmt.Sprintf("--array=1-%d%%1", tasks))
	for n := 1; n < tasks; {
		n = min(n+8, tasks)
		c.sh("", fmt.Sprintf("scontrol update JobId=%s ArrayTaskThrottle=%d", many, n))
		c.eventually(func() string { return c.sh("", "squeue -h -r -t R -o %r -j "+many+" | grep -cx None || true") },
			fmt.Sprintf("^%d$", n))
	}
	running := sleeps(bob, "")
	waits := c.sbatch(bob, "--begin=now+10hours -o /dev/null "+options, shares("4G"))
	array := sleeps(bob, "--array=0-3%1")
	second := sleeps(alice, "")
	onGPU := c.sbatch(bob, "-o /dev/null "+options, shares("4G"))
	common = []string{running, waits, array, second, onGPU}
	c.waiting([]string{running, second, onGPU}, "%T %r", "RUNNING None")
	c.waiting([]string{waits}, "%r", "BeginTime")
	// Any of the array: slurmctld may have requeued one.
	c.eventually(func() string { return c.sh("", "squeue -h -r -j "+array+" -o '%T %r' | sort | uniq -c") },
		`^ *3 PENDING JobArrayTaskLimit\n *1 RUNNING None$`)
	// All tasks still run beside the other jobs.
	c.eventually(func() string { return c.sh("", "squeue -h -r -t R -o %r -j "+many+" | grep -cx None || true") },
		fmt.Sprintf("^%d$", tasks))
	// A number that is the array's too means all of it.
	own = strings.Fields(c.sh("", "squeue -h -t R -j "+many+" -o %A | grep -vx "+many))
	return c.shown(append(slices.Clone(own), common...)...), common, own
}

// A name or an account makes no record of another user's job, changes none, and keeps
// none from slurmdbd.
func attackRecords(t *testing.T, c *cluster) {
	f := newForgery(c, "#!/bin/bash\n#CARMA mem=2G\nsleep 1\n")
	record := func() (id string) {
		id = c.sbatch(bob, "-o /dev/null", strings.ReplaceAll(shares("4G"), "10h", "10s"))
		c.eventually(func() string { return c.sh("", "sacct -n -P -X -S now-1day -j "+id+" -o AdminComment") }, "carma1:")
		return id
	}
	known := record()
	unknown := c.sh(bob, "sbatch --parsable -o /dev/null -p plain --wrap true")
	ours := func() string {
		var said []string
		for id, a := range c.accounts("--from slurmdbd") {
			if s := strconv.Itoa(int(id)); s == known || s == unknown {
				said = append(said, fmt.Sprintf("%s: %+v", s, plain(a)))
			}
		}
		slices.Sort(said)
		return strings.Join(said, "\n")
	}
	before := ours()
	var ids []string
	for _, victim := range []string{known, unknown} {
		for _, field := range []string{"name", "account", "wckey", "comment"} {
			for _, end := range []string{"", "\x1fcarma1:" + forgedRecord(t, victim) + "\n"} {
				line := strings.Join([]string{"carma", victim, victim, "carma-bob", "ml", "gpu", "COMPLETED", "x"}, "\x1f") + end
				what := field + " as a record of job " + victim
				id, err := f.submit(what, field+"=x\n"+line)
				if err != nil {
					attacked(t, what, "refused: "+err.Error())
					continue
				}
				attacked(t, what, "accepted as job "+id)
				ids = append(ids, id)
			}
		}
	}
	if len(ids) > 0 {
		c.sh(alice, "scontrol release "+strings.Join(ids, " "))
		c.ended(ids)
	}
	record() // comes to slurmdbd after those
	if after := ours(); after != before {
		t.Errorf("records of another user's jobs\nbefore %s\nafter  %s", before, after)
	}
}

// forgedRecord is a record as it stands in a comment (db/comment.go), as short as the
// 255 bytes of a name in slurmdbd need.
func forgedRecord(t *testing.T, job string) string {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	now := time.Now().UTC().Format(time.RFC3339)
	if _, err := fmt.Fprintf(z, `[{"job":%s,"node":"n9","uid":1,"state":"FAILED","end":%q}]`, job, now); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(packed.Bytes()))
}
