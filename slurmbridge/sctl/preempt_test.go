// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"fmt"
	"testing"
	"time"
)

func TestMay(t *testing.T) {
	now := time.Unix(1000, 0)
	tiers := Preemption{ByPartition: true, Rules: map[string]PreemptRule{
		"high": {Tier: 10, Mode: "REQUEUE"}, "low": {Tier: 1, Mode: "CANCEL", Grace: time.Minute}, "low2": {Tier: 1, Mode: "REQUEUE"},
		"safe": {Tier: 1, Mode: "OFF"}, "held": {Tier: 1, Mode: "GANG,SUSPEND"},
	}}
	exempt := tiers
	exempt.Exempt = 10 * time.Minute
	qos := Preemption{ByQOS: true, Rules: map[string]PreemptRule{"urgent": {Preempts: []string{"normal", "urgent"}, Mode: "REQUEUE"}, "normal": {Mode: "REQUEUE"}}}
	exemptQOS, byPriority := qos, tiers
	exemptQOS.ExemptIn = map[string]time.Duration{"normal": 10 * time.Minute}
	exemptPartition := tiers
	exemptPartition.ExemptIn, exemptPartition.QOSOf = exemptQOS.ExemptIn, map[string]string{"low": "normal"}
	byPriority.Rules = map[string]PreemptRule{"high": {Tier: 10, Mode: "PRIORITY,REQUEUE"}, "low": {Tier: 1, Mode: "CANCEL"}}
	at := func(partition, qos string) Preemptible {
		return Preemptible{Partition: partition, QOS: qos, Start: now.Add(-time.Minute)}
	}
	for _, c := range []struct {
		rules    Preemption
		by, from Preemptible
		want     Eviction
		ok       bool
	}{
		{tiers, at("high", ""), at("low", ""), Eviction{Cancel: true, Grace: time.Minute}, true},
		{tiers, at("high", ""), at("low2", ""), Eviction{}, true},
		{tiers, at("low", ""), at("low2", ""), Eviction{}, false},
		{tiers, at("low", ""), at("high", ""), Eviction{}, false},
		{tiers, at("high", ""), at("safe", ""), Eviction{}, false},
		{tiers, at("high", ""), at("held", ""), Eviction{}, false},
		{tiers, at("high", ""), at("unknown", ""), Eviction{}, false},
		{exempt, at("high", ""), at("low", ""), Eviction{}, false},
		{exemptPartition, at("high", ""), at("low", ""), Eviction{}, false},
		{tiers, at("high", ""), Preemptible{Partition: "low2", Reservation: "r"}, Eviction{}, false},
		{tiers, Preemptible{Partition: "high", Reservation: "r"}, at("low2", ""), Eviction{}, false},
		{tiers, Preemptible{Partition: "high", Reservation: "r"}, Preemptible{Partition: "low2", Reservation: "r"}, Eviction{}, true},
		{exemptPartition, at("high", ""), at("low2", ""), Eviction{}, true},
		{byPriority, at("high", ""), at("low", ""), Eviction{}, false},
		{qos, at("", "urgent"), at("", "normal"), Eviction{}, true},
		{exemptQOS, at("", "urgent"), at("", "normal"), Eviction{}, false},
		{qos, at("", "urgent"), at("", "urgent"), Eviction{}, false},
		{qos, at("", "normal"), at("", "urgent"), Eviction{}, false},
		{Preemption{}, at("high", "urgent"), at("low", "normal"), Eviction{}, false},
	} {
		if got, ok := c.rules.May(c.by, c.from, now); got != c.want || ok != c.ok {
			t.Errorf("%+v preempts %+v: %+v, %v", c.by, c.from, got, ok)
		}
	}
	if !tiers.Preempts(at("high", "")) || tiers.Preempts(at("low", "")) || !qos.Preempts(at("", "urgent")) || qos.Preempts(at("", "normal")) {
		t.Error("who may preempt any job")
	}
}

func TestSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"30 sec": 30 * time.Second, "0": 0, "00:01:05": 65 * time.Second, "1-00:00:00": 24 * time.Hour, "": 0, "NONE": 0} {
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
	tiers := map[string]PreemptRule{"high": {Tier: 10, Mode: "REQUEUE"}, "low": {Tier: 1, Mode: "CANCEL", Grace: 90 * time.Second}}
	qosOf := map[string]string{"high": "N/A", "low": "part"}
	exempt := map[string]time.Duration{"normal": 0, "urgent": 0, "part": 10 * time.Minute}
	byTier := Preemption{ByPartition: true, KillWait: 30 * time.Second, Exempt: 5 * time.Minute, Rules: tiers, QOSOf: qosOf}
	withQOS := byTier
	withQOS.ExemptIn = exempt
	for _, c := range []struct {
		name, kind, mode, parameters, accounting, qos string
		want                                          Preemption
		fails                                         bool
	}{
		{"off", "partition_prio", "OFF", "", "none", "", Preemption{}, false},
		{"none", "none", "REQUEUE", "", "none", "", Preemption{}, false},
		{"tiers", "partition_prio", "REQUEUE", "youngest_first", "none", "", byTier, false},
		{"tiers and exempt times of QOS", "partition_prio", "REQUEUE", "", "slurmdbd", qos, withQOS, false},
		{"QOS", "qos", "REQUEUE", "", "slurmdbd", qos, Preemption{ByQOS: true, KillWait: 30 * time.Second, Exempt: 5 * time.Minute,
			Rules: map[string]PreemptRule{"normal": {Mode: "REQUEUE"}, "urgent": {Mode: "REQUEUE", Preempts: []string{"normal", "part"}},
				"part": {Mode: "CANCEL", Grace: 90 * time.Second}}, QOSOf: qosOf, ExemptIn: exempt}, false},
		{"QOS without slurmdbd", "qos", "REQUEUE", "", "none", "", Preemption{}, false},
		{"by priority", "partition_prio", "PRIORITY,REQUEUE", "", "none", "", Preemption{}, false},
		{"high priorities are exempt", "partition_prio", "REQUEUE", "youngest_first,min_exempt_priority=100", "none", "", Preemption{}, false},
		{"an answer of another form", "qos", "REQUEUE", "", "slurmdbd", "normal|x\n", Preemption{}, true},
		{"slurmdbd does not answer", "partition_prio", "REQUEUE", "", "slurmdbd", "", Preemption{}, true},
	} {
		sacctmgr := "cat <<'TEXT'\n" + c.qos + "TEXT\n"
		if c.qos == "" {
			sacctmgr = "exit 1\n"
		}
		got, err := client(t, map[string]string{
			"scontrol": "case \"$*\" in *partition*) cat <<'TEXT'\n" + partitions + "TEXT\n;; *) cat <<'TEXT'\nPreemptType             = preempt/" + c.kind +
				"\nPreemptMode             = " + c.mode + "\nPreemptParameters       = " + c.parameters + "\nPreemptExemptTime       = 00:05:00\nKillWait                = 30 sec\n" +
				"AccountingStorageType   = accounting_storage/" + c.accounting + "\nTEXT\n;; esac\n",
			"sacctmgr": sacctmgr,
		}).Preemption(t.Context())
		if (err != nil) != c.fails || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
			t.Errorf("%s: %v\n got %+v\nwant %+v", c.name, err, got, c.want)
		}
	}
}
