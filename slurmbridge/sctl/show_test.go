// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"testing"
	"time"
)

func TestParseNodeStatus(t *testing.T) {
	got := parseNodeStatus(`NodeName=n1 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:16,carmau0:50776
   State=MIXED+DRAIN+INVALID_REG ThreadsPerCore=1 TmpDisk=0
   Reason=gres/carma count changed [so to say] and jobs are using them (162144 != 50776) [root@2026-11-21T13:00:00]
`)
	want := NodeStatus{"MIXED+DRAIN+INVALID_REG", "gres/carma count changed [so to say] and jobs are using them (162144 != 50776)", "gpu:16,carmau0:50776"}
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

func TestSafeStart(t *testing.T) {
	for version, want := range map[string]time.Duration{"22.05.8": 15 * time.Second, "23.02.0": 2 * time.Second, "25.11.7": 2 * time.Second} {
		c := client(t, map[string]string{"scontrol": `case "$*" in --version) echo slurm ` + version + ` ;; *) echo 'AuthInfo = socket=/x,cred_expire=10' ;; esac`})
		if d, err := c.SafeStart(t.Context()); err != nil || d != want {
			t.Errorf("%s: %v, %v", version, d, err)
		}
	}
	if _, err := client(t, map[string]string{"scontrol": "exit 1"}).SafeStart(t.Context()); err == nil {
		t.Error("scontrol failed: no error")
	}
}
