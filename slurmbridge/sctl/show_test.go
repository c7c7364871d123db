// SPDX-License-Identifier: Apache-2.0

package sctl

import "testing"

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
