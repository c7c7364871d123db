// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"testing"
	"time"
)

func TestMay(t *testing.T) {
	now := time.Unix(1000, 0)
	tiers := Preemption{ByPartition: true, Rules: map[string]PreemptRule{
		"high": {Tier: 10, Mode: "REQUEUE"}, "low": {Tier: 1, Mode: "CANCEL", Grace: time.Minute},
		"low2": {Tier: 1, Mode: "REQUEUE"},
		"safe": {Tier: 1, Mode: "OFF"}, "held": {Tier: 1, Mode: "GANG,SUSPEND"},
	}}
	exempt := tiers
	exempt.Exempt = 10 * time.Minute
	qos := Preemption{ByQOS: true, Rules: map[string]PreemptRule{"urgent": {Preempts: []string{"normal", "urgent"},
		Mode: "REQUEUE"}, "normal": {Mode: "REQUEUE"}}}
	exemptQOS, byPriority := qos, tiers
	exemptQOS.ExemptIn = map[string]time.Duration{"normal": 10 * time.Minute}
	exemptPartition := tiers
	exemptPartition.ExemptIn, exemptPartition.QOSOf = exemptQOS.ExemptIn, map[string]string{"low": "normal"}
	byPriority.Rules = map[string]PreemptRule{"high": {Tier: 10, Mode: "PRIORITY,REQUEUE"},
		"low": {Tier: 1, Mode: "CANCEL"}}
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
		{tiers, Preemptible{Partition: "high", Reservation: "r"}, Preemptible{Partition: "low2", Reservation: "r"},
			Eviction{}, true},
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
	if !tiers.Preempts(at("high", "")) || tiers.Preempts(at("low", "")) || !qos.Preempts(at("", "urgent")) ||
		qos.Preempts(at("", "normal")) {
		t.Error("who may preempt any job")
	}
}
