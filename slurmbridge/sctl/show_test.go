// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"maps"
	"testing"
	"time"
)

func TestParseNodeStatus(t *testing.T) {
	got := parseNodeStatus(`NodeName=n1 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:16,carma:50776
   State=MIXED+DRAIN+INVALID_REG ThreadsPerCore=1 TmpDisk=0
   Reason=gres/carma count changed [so to say] and jobs are using them (162144 != 50776) [root@2026-11-21T13:00:00]
`)
	want := NodeStatus{"MIXED+DRAIN+INVALID_REG",
		"gres/carma count changed [so to say] and jobs are using them (162144 != 50776)", "gpu:16,carma:50776"}
	if got != want {
		t.Errorf("got %+v", got)
	}
	if got := parseNodeStatus(""); got != (NodeStatus{}) {
		t.Errorf("got %+v", got)
	}
}

func TestTime(t *testing.T) {
	m := sdiagTime().FindStringSubmatch("*****\nsdiag output at Sat Nov 21 13:00:00 2026 (1795266000)\nData since")
	if m == nil || m[1] != "1795266000" {
		t.Errorf("got %v", m)
	}
}

func TestFederation(t *testing.T) {
	for text, want := range map[string]string{
		`printf 'Federation: sites\nSelf:       a:127.0.0.1:6817 ID:1 FedState:ACTIVE Features:\n'`: "sites",
		"true": "", // nothing is printed where there is none
	} {
		got, err := client(t, map[string]string{"scontrol": text}).Federation(t.Context())
		if err != nil || got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestSafeStart(t *testing.T) {
	const config = `echo 'AuthInfo = socket=/x,cred_expire=10'`
	for _, c := range []struct {
		version, config string
		want            time.Duration
	}{
		{"22.05.8", config, 15 * time.Second},
		{"23.02.0", config, 2 * time.Second},
		{"25.11.7", "exit 1", 2 * time.Second}, // it is not asked for what does not matter
	} {
		slurm := client(t, map[string]string{"scontrol": `case "$*" in --version) echo slurm ` + c.version + ` ;; *) ` +
			c.config + ` ;; esac`})
		if d, err := slurm.SafeStart(t.Context()); err != nil || d != c.want {
			t.Errorf("%s: %v, %v", c.version, d, err)
		}
	}
	if _, err := client(t, map[string]string{"scontrol": `case "$*" in --version) echo slurm 22.05.8 ;; *) exit 1 ;; esac`}).SafeStart(t.Context()); err == nil {
		t.Error("no configuration: no error")
	}
	if _, err := client(t, map[string]string{"scontrol": "exit 1"}).SafeStart(t.Context()); err == nil {
		t.Error("scontrol failed: no error")
	}
}

func TestReservations(t *testing.T) {
	const shown = `printf '%s\n' "ReservationName=course StartTime=2026-11-30T10:00:00 EndTime=2026-11-30T11:00:00 Nodes=n1 ` +
		`NodeCnt=1 CoreCnt=64 Features=(null) PartitionName=plain Flags=IGNORE_JOBS,SPEC_NODES TRES=cpu=128 Users=a" ` +
		`"ReservationName=maint Nodes=n2 PartitionName=(null) Flags=MAINT,SPEC_NODES,ALL_NODES Comment=PartitionName=x"`
	got, err := Reservations(t.Context(), client(t, map[string]string{"scontrol": shown}))
	if want := map[string]string{"course": "plain"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	got, err = Reservations(t.Context(), client(t, map[string]string{"scontrol": "echo No reservations in the system"}))
	if err != nil || len(got) != 0 {
		t.Errorf("none: %v, %v", got, err)
	}
}
