// SPDX-License-Identifier: Apache-2.0

// Package sctl calls Slurm's commands. Each call is one RPC or two; callers give
// each a deadline by its context, and keep calls rare.
package sctl

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"carma/slurmbridge/tres"
)

// Client runs the commands of a Slurm installation.
type Client struct {
	BinDir string // absolute
	Conf   string // SLURM_CONF; empty: Slurm's default
}

// command has an environment of its own: a hook's PATH and variables are not to be
// trusted.
func (c Client) command(ctx context.Context, command string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.BinDir+"/"+command, args...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "SLURM_TIME_FORMAT=%s"}
	if c.Conf != "" {
		cmd.Env = append(cmd.Env, "SLURM_CONF="+c.Conf)
	}
	cmd.WaitDelay = time.Second
	return cmd
}

// run executes a command and returns its output.
func (c Client) run(ctx context.Context, command string, args ...string) (string, error) {
	return output(ctx, c.command(ctx, command, args...))
}

func output(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", failed(ctx, cmd, err, stderr.String()+" "+stdout.String())
	}
	return stdout.String(), nil
}

// rows executes a command and hands over the rows of n fields as the command prints
// them; each field is followed by sep. Rows handed over before an error are void.
func (c Client) rows(ctx context.Context, sep separator, n int, each func([]string), command string,
	args ...string) error {
	cmd := c.command(ctx, command, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return failed(ctx, cmd, err, "")
	}
	rest, readErr := sep.scan(out, n, each)
	if readErr != nil {
		io.Copy(io.Discard, out) // or the command would wait for ever
	}
	if err := cmd.Wait(); err != nil {
		return failed(ctx, cmd, err, stderr.String()+" "+rest)
	}
	if readErr != nil {
		return fmt.Errorf("%s: %w", words(cmd), readErr)
	}
	return nil
}

// failed says which command did not work, and in whose words.
func failed(ctx context.Context, cmd *exec.Cmd, err error, text string) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("%s: %w: %.200s", words(cmd), err, strings.Join(strings.Fields(text), " "))
}

// Node returns a node's Extra (24.11 and later).
func (c Client) Node(ctx context.Context, node string) (extra string, err error) {
	values, err := c.ofNode(ctx, node, "Extra") // the same for each partition of the node
	if err != nil {
		return "", err
	}
	return noneEmpty(values[0][0]), nil
}

// SlotsInUse returns how many of a node's GPU slots jobs have now: jobs that slurmctld has just started as well, and
// none that are completing (deallocate_nodes gives their GRES back at once).
func (c Client) SlotsInUse(ctx context.Context, node string) (int, error) {
	rows, err := c.ofNode(ctx, node, "GresUsed") // the same for each partition of the node
	if err != nil {
		return 0, err
	}
	return int(tres.Read(noneEmpty(rows[0][0])).GPUs), nil
}

// PartitionsOf returns the partitions of a node, hidden partitions as well.
func (c Client) PartitionsOf(ctx context.Context, node string) ([]string, error) {
	rows, err := c.ofNode(ctx, node, "Partition")
	var names []string
	for _, row := range rows {
		names = append(names, unmarked(row[0]))
	}
	return names, err
}

// unmarked is a partition's name without sinfo's mark of the default partition.
func unmarked(partition string) string { return strings.TrimSuffix(partition, "*") }

// ofNode returns fields of sinfo's for each partition of a node. ofNode asks as sinfo does for a single node:
// slurmctld then packs the node and the partitions, where `scontrol show node` has slurmctld pack all nodes (22.05.8
// with 1,000 nodes: 2.3 ms of slurmctld, not 10.3).
func (c Client) ofNode(ctx context.Context, node string, fields ...string) (rows [][]string, err error) {
	s := newSeparator()
	err = c.rows(ctx, s, len(fields), func(row []string) { rows = append(rows, row) },
		"sinfo", "--all", "--Node", "--noheader", "--nodes="+node, "--Format="+s.format(fields))
	if err == nil && len(rows) == 0 {
		err = fmt.Errorf("sinfo: slurmctld knows no partition with node %s", node)
	}
	return rows, err
}

// SetNodeExtra replaces the Extra of a node (24.11 and later).
func (c Client) SetNodeExtra(ctx context.Context, node, text string) error {
	_, err := c.run(ctx, "scontrol", "update", "NodeName="+node, "Extra="+text)
	return err
}

// Partition says who may use a partition. Empty lists bar nobody.
type Partition struct {
	Up            bool // its jobs start
	AllowGroups   []string
	AllowAccounts []string
	DenyAccounts  []string
}

// Admits tells whether jobs of an account may be there.
func (p Partition) Admits(account string) bool {
	if len(p.AllowAccounts) > 0 {
		return slices.Contains(p.AllowAccounts, account)
	}
	return !slices.Contains(p.DenyAccounts, account)
}

// Partition asks slurmctld about a partition. It is an error if there is none
// of this name.
func (c Client) Partition(ctx context.Context, name string) (p Partition, err error) {
	out, err := c.run(ctx, "scontrol", "show", "partition", name)
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(out) {
		if !strings.HasPrefix(line, " ") {
			continue
		}
		for word := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(word, "=")
			list := strings.Split(value, ",")
			switch {
			case key == "State":
				p.Up = value == "UP"
			case value == "ALL" || value == "(null)" || value == "":
			case key == "AllowGroups":
				p.AllowGroups = list
			case key == "AllowAccounts":
				p.AllowAccounts = list
			case key == "DenyAccounts":
				p.DenyAccounts = list
			}
		}
	}
	return p, nil
}

// Version is a release of Slurm.
type Version struct{ Major, Minor, Micro int }

// Before tells whether v is older than major.minor.
func (v Version) Before(major, minor int) bool {
	return v.Major < major || v.Major == major && v.Minor < minor
}

// Publishes tells whether slurmctld compares jobs' --extra with nodes' Extra, and has jobs of srun wait for a
// match, too (job_scheduler.c, FAIL_CONSTRAINTS), and whether sinfo shows the field.
func (v Version) Publishes() bool { return !v.Before(24, 11) }

// Version asks the installed commands for their version, without an RPC.
func (c Client) Version(ctx context.Context) (Version, error) {
	out, err := c.run(ctx, "scontrol", "--version")
	if err != nil {
		return Version{}, err
	}
	var v Version
	fields := strings.Fields(out) // "slurm 23.11.1", on Debian "slurm-wlm 22.05.8"
	if len(fields) < 2 {
		return v, fmt.Errorf("scontrol --version: %.50q is not a version", out)
	}
	if _, err := fmt.Sscanf(fields[1], "%d.%d.%d", &v.Major, &v.Minor, &v.Micro); err != nil {
		return v, fmt.Errorf("scontrol --version: %.50q is not a version", out)
	}
	return v, nil
}
