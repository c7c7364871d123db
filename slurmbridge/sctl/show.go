// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// credExpireOf returns for how long the credentials of a job are kept, by the output of `scontrol show config`:
// cred_expire of AuthInfo, which is 120 s by default (slurm.conf(5)).
func credExpireOf(config string) (time.Duration, error) {
	m := credExpire().FindStringSubmatch(config)
	if m == nil {
		return 120 * time.Second, nil
	}
	return time.ParseDuration(m[1] + "s")
}

var credExpire = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^AuthInfo\s*=.*\bcred_expire=([0-9]{1,9})\b`) })

// slurmctld lets a requeued job wait until the credentials of its last run have
// expired on the node (AuthInfo=cred_expire, 120 s): as long as slurmd remembers
// the credentials, slurmd takes a new launch of the job for a second step and
// skips the Prolog.
//
// From 23.02 on, slurmd forgets them at the first sight of newer credentials,
// which must be a second younger than the revocation of the old ones. Up to
// 22.05 slurmd lets credentials expire from the end of the Epilog on, after
// slurmctld's clock has begun, and forgets them only in a scan at most every
// 2 s (src/common/slurm_cred.c, _clear_expired_job_states), so that slurmctld
// starts the job too early. So the hooks put the start off, and the agent, when
// the Epilog has ended, sets it to a safe time.
const (
	startAfter    = 2 * time.Second
	extraUpTo2205 = 5 * time.Second
)

// SafeStart asks after how long a job may start again whose last Epilog has ended.
func (c Client) SafeStart(ctx context.Context) (time.Duration, error) {
	v, err := c.Version(ctx)
	if err != nil || !v.Before(23, 2) {
		return startAfter, err
	}
	config, err := c.ShowConfig(ctx)
	if err != nil {
		return 0, err
	}
	expire, err := credExpireOf(config)
	return SafeAfter(v, expire), err
}

// SafeAfter is the same for a release and its credentials' time.
func SafeAfter(v Version, credExpire time.Duration) time.Duration {
	if v.Before(23, 2) {
		return credExpire + extraUpTo2205
	}
	return startAfter
}

// ShowConfig returns the output of `scontrol show config`.
func (c Client) ShowConfig(ctx context.Context) (string, error) {
	return c.run(ctx, "scontrol", "show", "config")
}

// Federation returns the name of the cluster's federation; empty: none.
func (c Client) Federation(ctx context.Context) (string, error) {
	out, err := c.run(ctx, "scontrol", "show", "federation")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(out, "\n")
	name, ok := strings.CutPrefix(first, "Federation:") // slurm_print_federation
	if !ok {
		return "", nil
	}
	return strings.TrimSpace(name), nil
}

// Reservations returns the partitions of reservations by name, without the reservations of no partition.
func Reservations(ctx context.Context, c Client) (map[string]string, error) {
	out, err := c.run(ctx, "scontrol", "--oneliner", "show", "reservation")
	if err != nil {
		return nil, err
	}
	partitions := map[string]string{}
	for line := range strings.Lines(out) {
		name := ""
		for word := range strings.FieldsSeq(line) {
			switch key, value, _ := strings.Cut(word, "="); {
			case key == "ReservationName" && name == "":
				name = value
			case key == "PartitionName" && name != "" && partitions[name] == "":
				if value = noneEmpty(value); value != "" {
					partitions[name] = value
				}
			}
		}
	}
	return partitions, nil
}

// NodeStatus is an administrator's view of a node.
type NodeStatus struct{ State, Reason, Gres string }

// NodeStatus returns the state of a node, zero for a node unknown to slurmctld.
func (c Client) NodeStatus(ctx context.Context, node string) (NodeStatus, error) {
	out, err := c.run(ctx, "scontrol", "show", "node", node)
	if err != nil {
		if strings.Contains(err.Error(), "not found") {
			return NodeStatus{}, nil
		}
		return NodeStatus{}, err
	}
	return parseNodeStatus(out), nil
}

// reasonOf cuts the reason's author and time: "[root@2026-11-21T13:00:00]".
var reasonOf = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(.*?)( \[[^\]]*@[^\]]*\])?$`) })

func parseNodeStatus(out string) (s NodeStatus) {
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		name, value, _ := strings.Cut(line, "=")
		switch {
		case name == "Gres" && s.Gres == "":
			s.Gres = value
		case name == "State":
			s.State, _, _ = strings.Cut(value, " ")
		case name == "Reason":
			s.Reason = reasonOf().FindStringSubmatch(value)[1]
		}
	}
	return s
}

// sdiagTime is in sdiag's first line, 22.05 to 26.05: "sdiag output at Sat Nov
// 21 13:00:00 2026 (1795266000)".
var sdiagTime = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`sdiag output at .*\((\d+)\)`) })

// Time asks slurmctld for its time, to the second.
func (c Client) Time(ctx context.Context) (time.Time, error) {
	out, err := c.run(ctx, "sdiag")
	if err != nil {
		return time.Time{}, err
	}
	m := sdiagTime().FindStringSubmatch(out)
	if m == nil {
		return time.Time{}, fmt.Errorf("sdiag: no time in its output")
	}
	s, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("sdiag: %w", err)
	}
	return time.Unix(s, 0), nil
}
