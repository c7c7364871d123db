// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Preemption is who may preempt whom, as slurmctld has it (slurm.conf(5), preempt.html).
// The zero value: nobody.
type Preemption struct {
	ByPartition bool // PreemptType=preempt/partition_prio
	ByQOS       bool // preempt/qos
	Exempt      time.Duration
	KillWait    time.Duration
	Rules       map[string]PreemptRule // by partition, or QOS
}

// PreemptRule is what is said of one partition or QOS.
type PreemptRule struct {
	Tier     int      // of a partition
	Preempts []string // of a QOS
	Mode     string   // REQUEUE, CANCEL, OFF, SUSPEND, GANG: of its jobs when they are preempted
	Grace    time.Duration
}

// Preemptible is what counts of a job.
type Preemptible struct {
	Partition string
	QOS       string
	Start     time.Time
}

// Eviction is how a job is to be preempted.
type Eviction struct {
	Cancel bool // and not requeued
	Grace  time.Duration
}

// May tells whether one job may preempt another now, and how. A mode that leaves the job's
// memory on its GPUs (SUSPEND, GANG) frees none.
func (p Preemption) May(preemptor, victim Preemptible, now time.Time) (e Eviction, ok bool) {
	if p.Exempt > 0 && (victim.Start.IsZero() || now.Sub(victim.Start) < p.Exempt) {
		return e, false
	}
	var a, b PreemptRule
	switch {
	case p.ByPartition:
		a, b = p.Rules[preemptor.Partition], p.Rules[victim.Partition]
		ok = a.Tier > b.Tier && b.Tier > 0
	case p.ByQOS:
		a, b = p.Rules[preemptor.QOS], p.Rules[victim.QOS]
		ok = slices.Contains(a.Preempts, victim.QOS) && preemptor.QOS != victim.QOS
	}
	if !ok || b.Mode != "REQUEUE" && b.Mode != "CANCEL" {
		return e, false
	}
	return Eviction{Cancel: b.Mode == "CANCEL", Grace: b.Grace}, true
}

// Preempts tells whether a job may preempt any other.
func (p Preemption) Preempts(j Preemptible) bool {
	if p.ByQOS {
		return len(p.Rules[j.QOS].Preempts) > 0
	}
	tier := p.Rules[j.Partition].Tier
	for _, r := range p.Rules {
		if p.ByPartition && r.Tier < tier {
			return true
		}
	}
	return false
}

// Preemption asks slurmctld. Where nobody preempts it is one cheap RPC.
func (c Client) Preemption(ctx context.Context) (Preemption, error) {
	out, err := c.ShowConfig(ctx)
	if err != nil {
		return Preemption{}, err
	}
	settings := map[string]string{}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(line, "="); ok {
			settings[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	kind := strings.TrimPrefix(settings["PreemptType"], "preempt/")
	p := Preemption{ByPartition: kind == "partition_prio", ByQOS: kind == "qos", KillWait: seconds(settings["KillWait"])}
	if settings["PreemptExemptTime"] != "NONE" {
		p.Exempt = seconds(settings["PreemptExemptTime"])
	}
	switch {
	case settings["PreemptMode"] == "OFF":
		return Preemption{}, nil
	case p.ByPartition:
		p.Rules, err = c.partitionRules(ctx)
	case p.ByQOS:
		p.Rules, err = c.qosRules(ctx, settings["PreemptMode"])
	default:
		return Preemption{}, nil
	}
	return p, err
}

func (c Client) partitionRules(ctx context.Context) (map[string]PreemptRule, error) {
	out, err := c.run(ctx, "scontrol", "--oneliner", "show", "partition")
	if err != nil {
		return nil, err
	}
	rules := map[string]PreemptRule{}
	for line := range strings.Lines(out) {
		var name string
		var r PreemptRule
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
			}
		}
		if name != "" {
			rules[name] = r
		}
	}
	return rules, nil
}

// qosRules asks slurmdbd: slurmctld shows all of a QOS but whom it preempts.
func (c Client) qosRules(ctx context.Context, mode string) (map[string]PreemptRule, error) {
	out, err := c.run(ctx, "sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=Name,Preempt,PreemptMode,GraceTime")
	if err != nil {
		return nil, err
	}
	rules := map[string]PreemptRule{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 4 {
			return nil, fmt.Errorf("sacctmgr show qos: %.50q has not four fields", line)
		}
		r := PreemptRule{Mode: strings.ToUpper(f[2]), Grace: seconds(f[3])}
		if f[1] != "" {
			r.Preempts = strings.Split(f[1], ",")
		}
		if r.Mode == "CLUSTER" || r.Mode == "" {
			r.Mode = mode
		}
		rules[f[0]] = r
	}
	return rules, nil
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

// Requeue puts a running job back into the queue.
func (c Client) Requeue(ctx context.Context, t Target) error {
	return batchOnly(c.act(ctx, t, "scontrol", "requeue"))
}

// Warn sends a job what Slurm sends one that is about to be preempted.
func (c Client) Warn(ctx context.Context, t Target) error {
	if err := c.act(ctx, t, "scancel", "--signal=CONT"); err != nil {
		return err
	}
	return c.act(ctx, t, "scancel", "--signal=TERM")
}
