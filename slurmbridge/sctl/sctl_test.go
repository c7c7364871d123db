// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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

const showNode = `cat <<'TEXT'
NodeName=n1 Arch=x86_64 CoresPerSocket=1
   ActiveFeatures=(null)
   Gres=gpu:a100:16(S:0-63),carmau0:10K,carma2:40536
   NodeAddr=127.0.0.1 NodeHostName=localhost Port=41002 Version=22.05.8
   Comment=x Gres=no
TEXT
`

func TestNode(t *testing.T) {
	c := client(t, map[string]string{"scontrol": showNode})
	got, comment, err := c.Node(t.Context(), "n1")
	if err != nil || got != "gpu:a100:16(S:0-63),carmau0:10K,carma2:40536" || comment != "x Gres=no" {
		t.Errorf("got %q, %q, %v", got, comment, err)
	}
	if err := c.SetNodeGres(t.Context(), "n1", "gpu:16,carmau0:5"); err != nil {
		t.Error(err)
	}
	if want := "scontrol show node n1 conf=/etc/slurm/other.conf\nscontrol update NodeName=n1 Gres=gpu:16,carmau0:5 conf=/etc/slurm/other.conf\n"; calls(t, c) != want {
		t.Errorf("calls:\n%s", calls(t, c))
	}
	if _, _, err := client(t, map[string]string{"scontrol": "echo NodeName=n1"}).Node(t.Context(), "n1"); err == nil {
		t.Error("no Gres line: no error")
	}
}

func TestExit(t *testing.T) {
	for squeue, want := range map[string]string{
		"echo '12|1:0'":                        "1 0 <nil>",
		"echo '11|1:0'; echo '12|0:9'":         "0 9 <nil>",
		"echo '11|1:0'":                        "0 0 no such job",
		"echo '12|'":                           `0 0 squeue: "" is no exit status of job 12`,
		"echo 'Invalid job id' >&2; exit 1; #": "0 0 squeue",
	} {
		code, signal, err := client(t, map[string]string{"squeue": squeue}).Exit(t.Context(), 12)
		if got := fmt.Sprint(code, signal, err); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s", squeue, got, want)
		}
	}
}

func TestEligibility(t *testing.T) {
	for squeue, want := range map[string]string{
		"echo '12|3 |1795257600 |1795257605 '":      "3 1795257605 1795257600 <nil>",
		"echo '11|1|1|1'; echo '12|0|2|1795257605'": "0 1795257605 2 <nil>",
		"echo '12|1|2|N/A'":                         "1 0 2 <nil>", // held, or its dependencies are not there
		"echo '11|1|2|1795257605'":                  "0 0 0 no such job",
		"echo '12|N/A|2|1795257605'":                `0 0 0 squeue: "N/A|2|1795257605" is no count of restarts and no time of job 12`,
		"echo 'Invalid job id' >&2; exit 1; #":      "0 0 0 squeue",
	} {
		e, err := client(t, map[string]string{"squeue": squeue}).Eligibility(t.Context(), 12)
		if got := fmt.Sprint(e.Restarts, " ", max(e.At.Unix(), 0), " ", max(e.Submitted.Unix(), 0), " ", err); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s", squeue, got, want)
		}
	}
}

func TestJob(t *testing.T) {
	for _, c := range []struct {
		name, squeue string
		want         Job
		target       string
	}{
		{"plain", "echo '12|12|N/A|RUNNING|gpu|ml|None|1|1001|gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240|a|b'",
			Job{ID: 12, State: "RUNNING", Partition: "gpu", Account: "ml", Reason: "None", Nodes: 1, UID: 1001, TresPerNode: "gres:gpu:1,gres:carmau0:10240,gres:carmatotal:10240", Name: "a|b"}, "12"},
		{"array", "echo '11|10|0|COMPLETING|gpu|(null)|None|1|1001|gres:gpu:1|x'; echo '12|10|3|PENDING|gpu|(null)|BeginTime|1|1001|gres:gpu:1|x'",
			Job{ID: 12, ArrayJobID: 10, ArrayTask: "3", State: "PENDING", Partition: "gpu", Reason: "BeginTime", Nodes: 1, UID: 1001, TresPerNode: "gres:gpu:1", Name: "x"}, "10_3"},
	} {
		got, err := client(t, map[string]string{"squeue": c.squeue}).Job(t.Context(), 12)
		if err != nil || got != c.want || got.Target() != c.target {
			t.Errorf("%s: got %+v, %s, %v", c.name, got, got.Target(), err)
		}
	}
	for name, squeue := range map[string]string{
		"purged":    "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
		"nothing":   "",
		"others":    "echo '13|13|N/A|RUNNING|gpu|ml|None|1|1001|x|y'",
		"nonsense":  "echo 12",
		"bad lines": "echo 'x|12|N/A|RUNNING|gpu|ml|None|1|1001|x|y'",
	} {
		if j, err := client(t, map[string]string{"squeue": squeue}).Job(t.Context(), 12); !errors.Is(err, ErrNoJob) {
			t.Errorf("%s: got %+v, %v", name, j, err)
		}
	}
	if _, err := client(t, map[string]string{"squeue": "echo Unable to contact slurm controller >&2; exit 1"}).Job(t.Context(), 12); err == nil || errors.Is(err, ErrNoJob) {
		t.Errorf("slurmctld away: %v", err)
	}
}

func TestCommandsThatChange(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "exit 0"})
	ctx := t.Context()
	at := time.Unix(1795257605, 0)
	for _, err := range []error{
		c.RequeueHold(ctx, "10_3"), c.Update(ctx, "10_3", Change{Partition: "gpu-ex", TresPerNode: "gres:gpu:1,gres:carmau0:40536,gres:carmatotal:40536"}), c.Release(ctx, "10_3"),
		c.RequeueIncomplete(ctx, "12"), c.SetStart(ctx, "12", at),
		c.Update(ctx, "12", Change{AdminComment: `carma={"v":1} x`}), c.Update(ctx, "12", Change{StartIn: 10 * time.Minute}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	want := `scontrol requeuehold 10_3
scontrol update JobId=10_3 Partition=gpu-ex Gres=gres:gpu:1,gres:carmau0:40536,gres:carmatotal:40536
scontrol release 10_3
scontrol requeue incomplete 12
scontrol update JobId=12 StartTime=uts1795257605
scontrol update JobId=12 AdminComment=carma={"v":1} x
scontrol update JobId=12 StartTime=now+600
`
	if got := strings.ReplaceAll(calls(t, c), " conf=/etc/slurm/other.conf", ""); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// As squeue of Slurm 22.05.8 prints it.
func TestRequeueing(t *testing.T) {
	for line, want := range map[string]Requeueing{
		`12|N/A|N/A|1|carma={"v":1,"mode":"shared"} a|b`: {Allowed: true, AdminComment: `carma={"v":1,"mode":"shared"} a|b`},
		"12|11|1|0|(null)  ":                             {Leader: 11, Component: "11+1"},
		"12 |0 |N/A |1 |":                                {Allowed: true},
	} {
		c := client(t, map[string]string{"squeue": "cat <<'TEXT'\n11|11|0|1|of another\nno fields\n" + line + "\nTEXT\n"})
		if got, err := c.Requeueing(t.Context(), 12); err != nil || got != want {
			t.Errorf("%q: got %+v, %v", line, got, err)
		}
	}
	if _, err := client(t, map[string]string{"squeue": "echo '13|N/A|N/A|1|'"}).Requeueing(t.Context(), 12); !errors.Is(err, ErrNoJob) {
		t.Errorf("another job: %v", err)
	}
}

func TestPartition(t *testing.T) {
	for text, want := range map[string]Partition{
		"PartitionName=x\n   State=UP TotalCPUs=64":                                             {Up: true},
		"PartitionName=x\n   State=DOWN TotalCPUs=64":                                           {},
		"PartitionName=x\n   State=INACTIVE":                                                    {},
		"PartitionName=State=UP":                                                                {},
		"PartitionName=x\n   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL\n   State=UP":       {Up: true},
		"PartitionName=x\n   AllowGroups=ml,root DenyAccounts=a,b AllowQos=ALL\n   State=UP":    {Up: true, AllowGroups: []string{"ml", "root"}, DenyAccounts: []string{"a", "b"}},
		"PartitionName=x\n   AllowGroups=ALL AllowAccounts=a AllowQos=ALL\n   State=UP Other=x": {Up: true, AllowAccounts: []string{"a"}},
	} {
		if p, err := client(t, map[string]string{"scontrol": "cat <<'TEXT'\n" + text + "\nTEXT\n"}).Partition(t.Context(), "x"); err != nil || !reflect.DeepEqual(p, want) {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	}
	if _, err := client(t, map[string]string{"scontrol": "echo Partition x not found; exit 1"}).Partition(t.Context(), "x"); err == nil {
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
	c := client(t, map[string]string{"scontrol": "echo 'Only batch jobs are accepted or processed for job 15' >&2; exit 1"})
	if err := c.RequeueIncomplete(t.Context(), "15"); !errors.Is(err, ErrBatchOnly) {
		t.Errorf("got %v", err)
	}
	if err := c.Release(t.Context(), "15"); err == nil || !strings.Contains(err.Error(), "scontrol release 15: exit status 1: Only batch jobs") {
		t.Errorf("got %v", err)
	}
}

func TestDeadline(t *testing.T) {
	c := client(t, map[string]string{"scontrol": "sleep 60 & wait"})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := c.Release(ctx, "1"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestVersion(t *testing.T) {
	for text, want := range map[string]Version{"slurm-wlm 22.05.8": {22, 5, 8}, "slurm 23.11.11": {23, 11, 11}, "slurm 26.05.0-rc1": {26, 5, 0}} {
		if got, err := client(t, map[string]string{"scontrol": "echo " + text}).Version(t.Context()); err != nil || got != want {
			t.Errorf("%s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "slurm", "slurm new"} {
		if got, err := client(t, map[string]string{"scontrol": "echo " + text}).Version(t.Context()); err == nil {
			t.Errorf("%q: got %v", text, got)
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
		c := client(t, map[string]string{"scontrol": "echo '" + config + "'"})
		if got, err := c.CredExpire(t.Context()); err != nil || got != want {
			t.Errorf("%q: %v, %v", config, got, err)
		}
	}
	if _, err := client(t, map[string]string{"scontrol": "exit 1"}).CredExpire(t.Context()); err == nil {
		t.Error("no error without slurmctld")
	}
}
