// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"carma/slurmbridge/schedule"
)

// MayRun tells whether a job may run on a node when everybody else has gone.
func (c Client) MayRun(ctx context.Context, id uint32, node string) (bool, error) {
	n, err := needs(ctx, c, id)
	if err != nil {
		return false, err
	}
	h, err := host(ctx, c, node)
	return n.Allow(h), err
}

// needs reads a job's request for nodes. slurmctld has checked the names in lists of nodes.
// squeue --Format of 22.05 has no word for the excluded nodes.
func needs(ctx context.Context, c Client, id uint32) (schedule.Needs, error) {
	row, err := c.row(ctx, id, []string{"%A", "%n", "%x", "%P", "%D", "%f", "%c", "%m", "%d", "%v"})
	if err != nil {
		return schedule.Needs{}, err
	}
	for i := range row {
		row[i] = noneEmpty(strings.TrimSpace(row[i]))
	}
	n := schedule.Needs{Named: row[1], Excluded: row[2], Partitions: row[3], Nodes: leastNodes(row[4]), Features: row[5],
		Least: schedule.Size{CPUs: count(row[6]), MemMiB: mebibytes(row[7]), TmpMiB: mebibytes(row[8])}}
	if name := row[9]; plain(name) && !strings.Contains(name, ",") {
		n.Reserved, err = reserved(ctx, c, name)
	}
	return n, err
}

// reserved are the nodes of a reservation; empty: jobs run on other nodes as well (FLEX).
func reserved(ctx context.Context, c Client, name string) (nodes string, err error) {
	out, err := c.run(ctx, "scontrol", "--oneliner", "show", "reservation", name)
	for word := range strings.FieldsSeq(out) {
		switch key, value, _ := strings.Cut(word, "="); {
		case key == "Nodes" && nodes == "":
			nodes = noneEmpty(value)
		case key == "Flags" && strings.Contains(","+value+",", ",FLEX,"):
			return "", nil
		}
	}
	return nodes, err
}

// mebibytes reads an amount as squeue prints it, in MiB or with a unit; 0: not known.
func mebibytes(s string) int64 {
	times := 1.0
	if n := len(s) - 1; n >= 0 {
		if unit := strings.IndexByte("MGTP", s[n]); unit >= 0 {
			s = s[:n]
			for range unit {
				times *= 1024
			}
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v < 1e12) {
		return 0
	}
	return int64(v * times)
}

// host reads the resources of a node.
func host(ctx context.Context, c Client, node string) (schedule.Host, error) {
	h := schedule.Host{Name: node}
	rows, err := c.ofNode(ctx, node, "Partition", "Features", "CPUs", "Memory", "Disk")
	if err != nil {
		return h, fmt.Errorf("query what node %s has: %w", node, err)
	}
	for _, f := range rows {
		h.Partitions = append(h.Partitions, unmarked(f[0]))
		h.Features = noneEmpty(f[1])
		h.Size = schedule.Size{CPUs: count(f[2]), MemMiB: count(f[3]), TmpMiB: count(f[4])}
	}
	return h, nil
}
