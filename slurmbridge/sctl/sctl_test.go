// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// client has commands that answer as Slurm 22.05.8 does and note how they were
// called.
func client(t *testing.T, scripts map[string]string) Client {
	t.Helper()
	dir := t.TempDir()
	for name, body := range scripts {
		text := "#!/bin/sh\necho \"$(basename \"$0\") $* conf=$SLURM_CONF\" >>" + dir + "/calls\n" + body
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Client{BinDir: dir, Conf: "/etc/slurm/other.conf"}
}

func calls(t *testing.T, c Client) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.BinDir, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// showRows prints rows of sinfo with the separator that it was called with in place of %.
func showRows(rows ...string) string {
	text := "s=${*##*--Format=}; s=${s#*:}; s=${s%%,*}\n"
	for _, row := range rows {
		text += "echo '" + row + "' | sed \"s/%/$s/g\"\n"
	}
	return text
}

func TestNode(t *testing.T) {
	const text = `{"carma1":40536,"rack":"x Gres=no"}`
	c := client(t, map[string]string{"scontrol": "exit 0", "sinfo": showRows(text+"%", text+"%")})
	got, err := c.Node(t.Context(), "n1")
	if err != nil || got != text {
		t.Errorf("got %q, %v", got, err)
	}
	if err := c.SetNodeExtra(t.Context(), "n1", text); err != nil {
		t.Error(err)
	}
	want := `^sinfo --all --Node --noheader --nodes=n1 --Format=Extra:@\w{32}@ conf=/etc/slurm/other.conf
scontrol update NodeName=n1 Extra=` + regexp.QuoteMeta(text) + ` conf=/etc/slurm/other.conf
$`
	if !regexp.MustCompile(want).MatchString(calls(t, c)) {
		t.Errorf("calls:\n%s", calls(t, c))
	}
	for _, none := range []string{"", "(null)", "N/A"} {
		if got, err := client(t, map[string]string{"sinfo": showRows(none + "%")}).Node(t.Context(), "n1"); err != nil ||
			got != "" {
			t.Errorf("%q: got %q, %v", none, got, err)
		}
	}
	for _, answer := range []string{"exit 0", "echo 1", "exit 1"} {
		if got, err := client(t, map[string]string{"sinfo": answer}).Node(t.Context(), "n1"); err == nil {
			t.Errorf("%s: got %q", answer, got)
		}
	}
}

func TestPartitionsOf(t *testing.T) {
	c := client(t, map[string]string{"sinfo": showRows("gpu*%", "hidden%")})
	got, err := c.PartitionsOf(t.Context(), "n1")
	if err != nil || !slices.Equal(got, []string{"gpu", "hidden"}) {
		t.Errorf("got %q, %v", got, err)
	}
	if want := `^sinfo --all --Node --noheader --nodes=n1 --Format=Partition:@\w{32}@ conf=/etc/slurm/other.conf
$`; !regexp.MustCompile(want).MatchString(calls(t, c)) {
		t.Errorf("calls:\n%s", calls(t, c))
	}
	for _, answer := range []string{"exit 0", "echo 1", "exit 1"} {
		if got, err := client(t, map[string]string{"sinfo": answer}).PartitionsOf(t.Context(), "n1"); err == nil {
			t.Errorf("%s: got %q", answer, got)
		}
	}
}

func TestSlotsInUse(t *testing.T) {
	for answer, want := range map[string]int{
		showRows("gpu:a100:3(IDX:0-1,5),carma:30720%", "gpu:a100:3(IDX:0-1,5),carma:30720%"): 3,
		showRows("gpu:a100:1(IDX:0),gpu:h100:2(IDX:4-5)%"):                                   3,
		showRows("gpu:0(IDX:N/A),carma:0%"):                                                  0,
		showRows("N/A%"):                                                                     0,
	} {
		c := client(t, map[string]string{"sinfo": answer})
		if got, err := c.SlotsInUse(t.Context(), "n1"); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", answer, got, err, want)
		}
	}
	for _, answer := range []string{"exit 0", "echo 1", "exit 1"} {
		if got, err := client(t, map[string]string{"sinfo": answer}).SlotsInUse(t.Context(), "n1"); err == nil {
			t.Errorf("%s: got %d", answer, got)
		}
	}
}

func TestCommandsThatChange(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "exit 0"})
	ctx := t.Context()
	at := time.Unix(1795257605, 0)
	one, task := Job{ID: 12}.Target(), Job{ID: 12, ArrayJobID: 10, ArrayTask: 3}.Target()
	for _, err := range []error{
		c.RequeueHold(ctx, task), c.Update(ctx, task, Change{Partition: "gpu-ex",
			TresPerNode: "gres/gpu:1,gres/carma:40536", Extra: "carma1>=40536|carma1u1001>=40536"}), c.Release(ctx, task),
		c.RequeueIncomplete(ctx, one), c.SetStart(ctx, one, at),
		c.Update(ctx, one, Change{AdminComment: `carma={"v":1} x`}), c.Update(ctx, one, Change{StartIn: 10 * time.Minute}),
		c.CheckCron(ctx, task),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := `scontrol requeuehold 10_3
scontrol update JobId=10_3 Partition=gpu-ex Gres=gres/gpu:1,gres/carma:40536 Extra=carma1>=40536|carma1u1001>=40536
scontrol release 10_3
scontrol requeue incomplete 12
scontrol update JobId=12 StartTime=uts1795257605
scontrol update JobId=12 AdminComment=carma={"v":1} x
scontrol update JobId=12 StartTime=now+600
scontrol update JobId=10_3 Requeue=1
`
	if got := strings.ReplaceAll(calls(t, c), " conf=/etc/slurm/other.conf", ""); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Slurm's words of 22.05.8 and 25.11.7 (slurm_errno.c).
func TestCheckCron(t *testing.T) {
	for said, want := range map[string]string{
		"Cannot modify scrontab jobs through scontrol for job 12":                                      ErrCron.Error(),
		"Job has already finished for job 12":                                                          "",
		"Job/step already completing or completed for job 12":                                          "",
		"Invalid job id specified for job 12":                                                          "",
		"Job update not available right now, the DB index is being set, try again in a bit for job 12": "",
		"Something new for job 12":                                                                     "Something new",
	} {
		c := client(t, map[string]string{"scontrol": "echo '" + said + "' >&2; exit 1"})
		err := c.CheckCron(t.Context(), Job{ID: 12}.Target())
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || Unanswered(err) {
			t.Errorf("%s: %v, unanswered %v", said, err, Unanswered(err))
		}
	}
}

// A lasting fault keeps its text, so that callers log the fault once.
func TestErrorsAreTheSame(t *testing.T) {
	const fails = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"
	c := client(t, map[string]string{"sinfo": fails, "squeue": fails, "sacct": fails})
	for name, ask := range map[string]func() error{
		"sinfo":  func() error { _, err := c.Node(t.Context(), "n1"); return err },
		"squeue": func() error { _, err := c.Job(t.Context(), 12); return err },
		"sacct": func() error {
			return Accounting(c).Accounted(t.Context(), AccountedFilter{Jobs: []uint32{12}}, func(Accounted) {})
		},
	} {
		first, second := ask(), ask()
		if first == nil || first.Error() != second.Error() || !strings.HasPrefix(first.Error(), name) {
			t.Errorf("%v\n%v", first, second)
		}
	}
}

func TestUnanswered(t *testing.T) {
	for said, want := range map[string]bool{
		"Unable to contact slurm controller (connect failure)":  true,
		"Unable to contact slurm controller (shutdown failure)": true,
		"Communication shutdown failure for job 12":             true,
		"Socket timed out on send/recv operation":               true,
		"Connection reset by peer for job 12":                   true,
		"Connection refused for job 12":                         true,
		"Connection timed out for job 12":                       true,
		"Broken pipe for job 12":                                true,
		"No route to host for job 12":                           true,
		"Unexpected missing socket error for job 12":            true,
		"Protocol authentication error for job 12":              true,
		"Unexpected message received for job 12":                true,
		"Slurm backup controller in standby mode for job 12":    true,
		"Rate limit exceeded, please retry momentarily":         true,
		"Invalid partition name specified":                      false,
		"Resource temporarily unavailable for job 12":           false,
		"Access/permission denied for job 12":                   false,
	} {
		c := client(t, map[string]string{"scontrol": "echo '" + said + "' >&2; exit 1"})
		for _, err := range []error{c.Release(t.Context(), Job{ID: 12}.Target()),
			c.CheckCron(t.Context(), Job{ID: 12}.Target())} {
			if err == nil || Unanswered(err) != want {
				t.Errorf("%s: %v, unanswered %v", said, err, Unanswered(err))
			}
		}
	}
	killed := client(t, map[string]string{"scontrol": "kill -9 $$"})
	if err := killed.Release(t.Context(), Job{ID: 12}.Target()); !Unanswered(err) {
		t.Errorf("killed: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	c := client(t, map[string]string{"scontrol": "exec sleep 60"})
	if err := c.Release(ctx, Job{ID: 12}.Target()); !Unanswered(err) {
		t.Errorf("a deadline: %v", err)
	}
}

func TestPartition(t *testing.T) {
	for text, want := range map[string]Partition{
		"PartitionName=x\n   State=UP TotalCPUs=64":                                       {Up: true},
		"PartitionName=x\n   State=DOWN TotalCPUs=64":                                     {},
		"PartitionName=x\n   State=INACTIVE":                                              {},
		"PartitionName=State=UP":                                                          {},
		"PartitionName=x\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n   State=UP": {Up: true},
		"PartitionName=x\n   AllowGroups=ml,root DenyAccounts=a,b AllowQos=ALL\n   State=UP": {Up: true,
			AllowGroups: []string{"ml", "root"}, DenyAccounts: []string{"a", "b"}},
		"PartitionName=x\n   AllowGroups=ALL AllowAccounts=a AllowQos=ALL\n   State=UP Other=x": {Up: true,
			AllowAccounts: []string{"a"}},
	} {
		if p, err := client(t, map[string]string{"scontrol": "cat <<'TEXT'\n" + text + "\nTEXT\n"}).Partition(t.Context(),
			"x"); err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	if _, err := client(t, map[string]string{"scontrol": "echo Partition x not found; exit 1"}).Partition(t.Context(),
		"x"); err == nil {
		t.Error("no such partition: no error")
	}
	if p := (Partition{AllowAccounts: []string{"a"}}); !p.Admits("a") || p.Admits("b") || p.Admits("") {
		t.Error("AllowAccounts")
	}
	if p := (Partition{DenyAccounts: []string{"a"}}); p.Admits("a") || !p.Admits("") {
		t.Error("DenyAccounts")
	}
}

func TestErrorsSayWhatSlurmSaid(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "echo 'Only batch jobs are accepted or processed for job 15' >&2; " +
		"exit 1"})
	if err := c.RequeueIncomplete(t.Context(), Job{ID: 15}.Target()); !errors.Is(err, ErrBatchOnly) {
		t.Errorf("got %v", err)
	}
	if err := c.Release(t.Context(), Job{ID: 15}.Target()); err == nil ||
		!strings.Contains(err.Error(), "scontrol release 15: exit status 1: Only batch jobs") {
		t.Errorf("got %v", err)
	}
}

func TestDeadline(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "sleep 60 & wait"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := c.Release(ctx, Job{ID: 1}.Target()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestVersion(t *testing.T) {
	for text, want := range map[string]Version{"slurm-wlm 22.05.8": {22, 5, 8}, "slurm 23.11.11": {23, 11, 11},
		"slurm 26.05.0-rc1": {26, 5, 0}} {
		if got, err := client(t, map[string]string{"scontrol": "echo " + text}).Version(t.Context()); err != nil ||
			got != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "slurm", "slurm new"} {
		if got, err := client(t, map[string]string{"scontrol": "echo " + text}).Version(t.Context()); err == nil {
			t.Errorf("%q: got %v", text, got)
		}
	}
	for v, want := range map[Version]bool{{22, 5, 8}: false, {23, 11, 4}: false, {24, 5, 9}: false, {24, 11, 0}: true,
		{26, 5, 3}: true} {
		if v.Publishes() != want {
			t.Errorf("%+v publishes: %v", v, !want)
		}
	}
	if v := (Version{22, 5, 8}); !v.Before(23, 2) || v.Before(22, 5) || v.Before(21, 8) {
		t.Error("Before is wrong")
	}
}

func TestCredExpire(t *testing.T) {
	for config, want := range map[string]time.Duration{
		"AuthInfo                = socket=/run/munge/s,cred_expire=10": 10 * time.Second,
		"AuthInfo                = (null)":                             120 * time.Second,
		"AuthAltParameters       = cred_expire=3":                      120 * time.Second,
		"": 120 * time.Second,
	} {
		if got, err := credExpireOf(config); err != nil || got != want {
			t.Errorf("%q: %v, %v", config, got, err)
		}
	}
	silent := `case $1 in --version) echo slurm 22.05.8;; *) exit 1;; esac`
	if got, err := client(t, map[string]string{"scontrol": silent}).SafeStart(t.Context()); err == nil {
		t.Errorf("%v and no error without slurmctld", got)
	}
}
