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

// CredExpire returns for how long the credentials of a job are kept: cred_expire
// of AuthInfo, which is 120 s by default (slurm.conf(5)).
func (c Client) CredExpire(ctx context.Context) (time.Duration, error) {
	out, err := c.ShowConfig(ctx)
	if err != nil {
		return 0, err
	}
	m := credExpire().FindStringSubmatch(out)
	if m == nil {
		return 120 * time.Second, nil
	}
	return time.ParseDuration(m[1] + "s")
}

var credExpire = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^AuthInfo\s*=.*\bcred_expire=([0-9]{1,9})\b`) })

// ShowConfig returns what `scontrol show config` prints.
func (c Client) ShowConfig(ctx context.Context) (string, error) {
	return c.run(ctx, "scontrol", "show", "config")
}

// NodeStatus is a node as an administrator looks at it.
type NodeStatus struct{ State, Reason, Gres string }

// NodeStatus returns the state of a node, zero for one that slurmctld does not
// know.
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

// reasonOf cuts who set the reason and when: "[root@2026-11-21T13:00:00]".
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

// Time asks slurmctld what time it is there, to the second.
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
