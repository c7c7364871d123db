// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"carma/slurmbridge/schedule"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// minExempt is a PreemptParameter by which some jobs of high priority are exempt.
const minExempt = "min_exempt_priority"

// Preemption asks slurmctld. Where nobody preempts, the question is a cheap RPC. With
// settings by which priorities decide, too, the answer is that nobody preempts:
// priorities change in the meantime.
func (c Client) Preemption(ctx context.Context) (schedule.Preemption, error) {
	out, err := c.ShowConfig(ctx)
	if err != nil {
		return schedule.Preemption{}, err
	}
	settings := map[string]string{}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(line, "="); ok {
			settings[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	kind := strings.TrimPrefix(settings["PreemptType"], "preempt/")
	p := schedule.Preemption{ByPartition: kind == "partition_prio", ByQOS: kind == "qos",
		KillWait: seconds(settings["KillWait"])}
	if settings["PreemptExemptTime"] != "NONE" {
		p.Exempt = seconds(settings["PreemptExemptTime"])
	}
	mode := settings["PreemptMode"]
	if mode == "OFF" || strings.Contains(mode, schedule.ByPriority) ||
		strings.Contains(settings["PreemptParameters"], minExempt) || !p.ByPartition && !p.ByQOS {
		return schedule.Preemption{}, nil
	}
	partitions, qosOf, err := partitionRules(ctx, c)
	if err != nil {
		return schedule.Preemption{}, err
	}
	p.Rules, p.QOSOf = partitions, qosOf
	if settings["AccountingStorageType"] != "accounting_storage/slurmdbd" {
		if p.ByQOS {
			return schedule.Preemption{}, nil // there are none
		}
		return p, nil
	}
	rules, exempt, err := qosRules(ctx, c, mode)
	if err != nil {
		return schedule.Preemption{}, err
	}
	p.ExemptIn = exempt
	if p.ByQOS {
		p.Rules = rules
	}
	return p, nil
}

func partitionRules(ctx context.Context, c Client) (rules map[string]schedule.PreemptRule, qosOf map[string]string,
	err error) {
	out, err := c.run(ctx, "scontrol", "--oneliner", "show", "partition")
	if err != nil {
		return nil, nil, err
	}
	rules, qosOf = map[string]schedule.PreemptRule{}, map[string]string{}
	for line := range strings.Lines(out) {
		var name, qos string
		var r schedule.PreemptRule
		for word := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "PartitionName":
				name = value
			case "PriorityTier":
				r.Tier, _ = strconv.Atoi(value)
			case "PreemptMode":
				r.Mode = value
			case "GraceTime":
				r.Grace = seconds(value)
			case "QoS":
				qos = value
			}
		}
		if name != "" {
			rules[name], qosOf[name] = r, qos
		}
	}
	return rules, qosOf, nil
}

// qosRules asks slurmdbd: slurmctld shows all of a QOS but whom it preempts, and the time
// for which its jobs are exempt.
func qosRules(ctx context.Context, c Client, mode string) (rules map[string]schedule.PreemptRule,
	exempt map[string]time.Duration, err error) {
	out, err := c.run(ctx, "sacctmgr", "--noheader", "--parsable2", "show", "qos",
		"format=Name,Preempt,PreemptMode,GraceTime,PreemptExemptTime")
	if err != nil {
		return nil, nil, err
	}
	rules, exempt = map[string]schedule.PreemptRule{}, map[string]time.Duration{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 5 {
			return nil, nil, fmt.Errorf("read who preempts whom: sacctmgr show qos: %.50q has not five fields", line)
		}
		r := schedule.PreemptRule{Mode: strings.ToUpper(f[2]), Grace: seconds(f[3])}
		if f[1] != "" {
			r.Preempts = strings.Split(f[1], ",")
		}
		if r.Mode == "CLUSTER" || r.Mode == "" {
			r.Mode = mode
		}
		rules[f[0]], exempt[f[0]] = r, seconds(f[4])
	}
	return rules, exempt, nil
}

// seconds reads "30 sec", "30" and "1-02:03:04", as Slurm prints times; 0: none.
func seconds(text string) time.Duration {
	number, _, _ := strings.Cut(text, " ")
	days := 0
	if d, rest, ok := strings.Cut(number, "-"); ok {
		days, _ = strconv.Atoi(d)
		number = rest
	}
	total := 0
	for part := range strings.SplitSeq(number, ":") {
		n, err := strconv.Atoi(part)
		if err != nil || n < 0 {
			return 0
		}
		total = total*60 + n
	}
	return time.Duration(days)*24*time.Hour + time.Duration(total)*time.Second
}

// Warn sends a job the signals that Slurm sends a job that is about to be
// preempted.
func (c Client) Warn(ctx context.Context, t Target) error {
	if err := c.act(ctx, t, "scancel", "--signal=CONT"); err != nil {
		return err
	}
	return c.act(ctx, t, "scancel", "--signal=TERM")
}
