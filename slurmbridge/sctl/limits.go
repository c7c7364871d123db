// SPDX-License-Identifier: Apache-2.0

package sctl

import (
	"context"
	"fmt"
	"strings"
)

// Limit is an administrator's limit on trackable resources for a QOS or an association.
type Limit struct {
	Of   string // "QOS normal", "account physics", "user alice of account physics"
	Name string // GrpTRES and the like
	TRES string // "gres/gpu=8"
}

// sacctmgr's names of the limits on TRES (src/sacctmgr/common.c, 22.05 to 26.05).
var (
	qosLimits = []string{"GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "MaxTRES", "MaxTRESMins", "MaxTRESPerNode",
		"MaxTRESPerUser", "MaxTRESPerAccount"}
	associationLimits = []string{"GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "MaxTRES", "MaxTRESMins", "MaxTRESPerNode"}
)

// Limits asks slurmdbd for the limits set; cluster is Slurm's name of the cluster.
func (a Accounting) Limits(ctx context.Context, cluster string) ([]Limit, error) {
	show := func(what string, names, limits []string, where ...string) ([]Limit, error) {
		args := append([]string{"--parsable2", "--noheader", "show", what}, where...)
		out, err := Client(a).run(ctx, "sacctmgr", append(args, "format="+strings.Join(append(names, limits...), ","))...)
		if err != nil {
			return nil, err
		}
		return parseLimits(out, len(names), limits)
	}
	all, err := show("qos", []string{"Name"}, qosLimits)
	if err != nil {
		return nil, err
	}
	associations, err := show("associations", []string{"Account", "User"}, associationLimits, "where", "cluster="+cluster)
	return append(all, associations...), err
}

// parseLimits reads rows of a name, or an account and a user, and the limits.
func parseLimits(out string, names int, limits []string) (set []Limit, err error) {
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if len(f) != names+len(limits) {
			return nil, fmt.Errorf("sacctmgr: %.50q has %d fields, not %d", line, len(f), names+len(limits))
		}
		of := "QOS " + f[0]
		if names == 2 {
			of = "account " + f[0]
			if f[1] != "" {
				of = "user " + f[1] + " of " + of
			}
		}
		for i, limit := range limits {
			if v := f[names+i]; v != "" {
				set = append(set, Limit{Of: of, Name: limit, TRES: v})
			}
		}
	}
	return set, nil
}
