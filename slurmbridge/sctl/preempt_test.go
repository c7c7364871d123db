// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"fmt"
	"testing"
	"time"

	"carma/slurmbridge/schedule"
)

func TestSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"30 sec": 30 * time.Second, "0": 0, "00:01:05": 65 * time.Second,
		"1-00:00:00": 24 * time.Hour, "": 0, "NONE": 0} {
		if got := seconds(text); got != want {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// What slurmctld and slurmdbd say is read as it stands; where priorities decide, too, or an
// answer is not understood, nobody preempts.
func TestPreemption(t *testing.T) {
	const partitions = "PartitionName=high AllowGroups=ALL QoS=N/A GraceTime=0 PriorityTier=10 PreemptMode=REQUEUE\n" +
		"PartitionName=low QoS=part GraceTime=90 PriorityTier=1 PreemptMode=CANCEL\n"
	const qos = "normal||cluster|00:00:00|\nurgent|normal,part|requeue|00:00:00|\npart||cancel|00:01:30|00:10:00\n"
	tiers := map[string]schedule.PreemptRule{"high": {Tier: 10, Mode: "REQUEUE"},
		"low": {Tier: 1, Mode: "CANCEL", Grace: 90 * time.Second}}
	qosOf := map[string]string{"high": "N/A", "low": "part"}
	exempt := map[string]time.Duration{"normal": 0, "urgent": 0, "part": 10 * time.Minute}
	byTier := schedule.Preemption{ByPartition: true, KillWait: 30 * time.Second, Exempt: 5 * time.Minute, Rules: tiers,
		QOSOf: qosOf}
	withQOS := byTier
	withQOS.ExemptIn = exempt
	for _, c := range []struct {
		name, kind, mode, parameters, accounting, qos string
		want                                          schedule.Preemption
		fails                                         bool
	}{
		{"off", "partition_prio", "OFF", "", "none", "", schedule.Preemption{}, false},
		{"none", "none", "REQUEUE", "", "none", "", schedule.Preemption{}, false},
		{"tiers", "partition_prio", "REQUEUE", "youngest_first", "none", "", byTier, false},
		{"tiers and exempt times of QOS", "partition_prio", "REQUEUE", "", "slurmdbd", qos, withQOS, false},
		{"QOS", "qos", "REQUEUE", "", "slurmdbd", qos, schedule.Preemption{ByQOS: true, KillWait: 30 * time.Second,
			Exempt: 5 * time.Minute,
			Rules: map[string]schedule.PreemptRule{"normal": {Mode: "REQUEUE"},
				"urgent": {Mode: "REQUEUE", Preempts: []string{"normal", "part"}},
				"part":   {Mode: "CANCEL", Grace: 90 * time.Second}}, QOSOf: qosOf, ExemptIn: exempt}, false},
		{"QOS without slurmdbd", "qos", "REQUEUE", "", "none", "", schedule.Preemption{}, false},
		{"by priority", "partition_prio", "PRIORITY,REQUEUE", "", "none", "", schedule.Preemption{}, false},
		{"high priorities are exempt", "partition_prio", "REQUEUE", "youngest_first,min_exempt_priority=100", "none", "",
			schedule.Preemption{}, false},
		{"an answer of another form", "qos", "REQUEUE", "", "slurmdbd", "normal|x\n", schedule.Preemption{}, true},
		{"slurmdbd does not answer", "partition_prio", "REQUEUE", "", "slurmdbd", "", schedule.Preemption{}, true},
	} {
		sacctmgr := "cat <<'TEXT'\n" + c.qos + "TEXT\n"
		if c.qos == "" {
			sacctmgr = "exit 1\n"
		}
		got, err := client(t, map[string]string{
			"scontrol": "case \"$*\" in *partition*) cat <<'TEXT'\n" + partitions +
				"TEXT\n;; *) cat <<'TEXT'\nPreemptType             = preempt/" + c.kind +
				"\nPreemptMode             = " + c.mode + "\nPreemptParameters       = " + c.parameters +
				"\nPreemptExemptTime       = 00:05:00\nKillWait                = 30 sec\n" +
				"AccountingStorageType   = accounting_storage/" + c.accounting + "\nTEXT\n;; esac\n",
			"sacctmgr": sacctmgr,
		}).Preemption(t.Context())
		if (err != nil) != c.fails || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", c.name, err, got, c.want)
		}
	}
}
