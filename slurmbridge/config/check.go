// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"carma/estimator/method"
	"carma/slurmbridge/directive"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/policy"
)

// Statistics are the names that smact.statistic may have (package window).
var Statistics = []string{"mean", "median", "p95", "ema", "risk"}

// estimators are the names that submit.estimator may have.
var estimators = append(method.Names(), method.None)

// check returns the first value that makes no sense, keys in file order.
func (c *Config) check() *KeyError {
	for _, f := range []func() *KeyError{
		c.checkSlurm, c.checkPartitions, c.checkDurations, c.checkNumbers, c.checkWords, c.checkNodeSets,
		c.checkFrameworks, c.checkPaths,
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) checkSlurm() *KeyError {
	if !filepath.IsAbs(c.Slurm.BinDir) {
		return &KeyError{0, "slurm.bin_dir", "must be an absolute path: hooks trust no PATH"}
	}
	if c.Slurm.Conf != "" && !filepath.IsAbs(c.Slurm.Conf) {
		return &KeyError{0, "slurm.conf", "must be an absolute path"}
	}
	if c.Slurm.UserKey != "" && !filepath.IsAbs(c.Slurm.UserKey) {
		return &KeyError{0, "slurm.user_key", "must be an absolute path"}
	}
	return nil
}

// directiveError says what is wrong with the keys for jobs that have none of their own;
// empty: nothing is.
func directiveError(p Partition) string {
	d, err := directive.Directive{}.With(p.Directive, directive.OfPartition)
	var e *directive.Error
	switch {
	case errors.As(err, &e) && e.Key != "":
		return e.Key + ": " + e.Reason
	case errors.As(err, &e):
		return e.Reason
	case d.MemMiB > p.GPUMemMiB:
		return "mem is more than gpu_mem_mib"
	case d.Job != "":
		return "job is the name of one user's run"
	}
	return ""
}

func (c *Config) checkPartitions() *KeyError {
	defaults := 0
	for _, name := range c.PartitionNames() {
		p, key := c.Partition[name], "partition."+name
		switch {
		case p.GPUsPerNode < 1 || p.GPUsPerNode > 64:
			return &KeyError{0, key + ".gpus_per_node", "must be 1 to 64, the GPUs of one node"}
		case p.GPUMemMiB < 1024:
			return &KeyError{0, key + ".gpu_mem_mib", "must be the memory of one GPU in MiB, as nvidia-smi shows it"}
		case p.BaseCuBLASMiB < 0 || p.BaseCuBLASMiB >= p.GPUMemMiB:
			return &KeyError{0, key + ".base_cublas_mib", "must be 0 or a part of the GPU's memory"}
		case p.BaseCuDNNMiB < 0 || p.BaseCuDNNMiB >= p.GPUMemMiB:
			return &KeyError{0, key + ".base_cudnn_mib", "must be 0 or a part of the GPU's memory"}
		case p.TimeSlot.D()%time.Minute != 0 || p.TimeSlot.D() > 365*24*time.Hour:
			return &KeyError{0, key + ".time_slot", "must be whole minutes and at most a year: Slurm's time limits are minutes"}
		case p.Directive != "" && directiveError(p) != "":
			return &KeyError{0, key + ".directive", directiveError(p)}
		case p.Recovery != "" && p.Recovery == name:
			return &KeyError{0, key + ".recovery", "must be another partition"}
		}
		if r, ok := c.Partition[p.Recovery]; p.Recovery != "" && ok && r.Share {
			return &KeyError{0, key + ".recovery", fmt.Sprintf("partition %s shares its GPUs; a recovered job must be alone",
				p.Recovery)}
		} else if p.Recovery != "" && !ok {
			return &KeyError{0, key + ".recovery", fmt.Sprintf("there is no [partition.%s]; add one with share = false",
				p.Recovery)}
		}
		if p.Default {
			if defaults++; defaults > 1 {
				return &KeyError{0, key + ".default", "only one partition can be the default"}
			}
		}
	}
	return nil
}

func (c *Config) checkDurations() *KeyError {
	for _, d := range []struct {
		key       string
		v         Duration
		low, high time.Duration
	}{
		{"nvml.interval", c.NVML.Interval, 50 * time.Millisecond, time.Minute},
		{"smact.window", c.SMAct.Window, c.NVML.Interval.D(), time.Hour},
		{"placement.settle", c.Placement.Settle, 0, time.Hour},
		{"capacity.compare", c.Capacity.Compare, time.Second, time.Hour},
		{"hooks.wait", c.Hooks.Wait, 0, 5 * time.Minute},
		{"hooks.wait_interactive", c.Hooks.WaitInteractive, 0, time.Hour},
		{"hooks.deadline", c.Hooks.Deadline, time.Second, time.Minute},
		{"hold.after", c.Hold.After, 0, 24 * time.Hour},
		{"idle.after", c.Idle.After, time.Second, 30 * 24 * time.Hour},
		{"accounting.keep_records", c.Accounting.KeepRecords, 0, 20 * 365 * 24 * time.Hour},
		{"accounting.keep_samples", c.Accounting.KeepSamples, 0, 20 * 365 * 24 * time.Hour},
	} {
		if d.v.D() < d.low || d.v.D() > d.high {
			return &KeyError{0, d.key, fmt.Sprintf("must be between %s and %s", d.low, d.high)}
		}
	}
	return nil
}

func (c *Config) checkNumbers() *KeyError {
	switch {
	case c.SMAct.MaxPct <= 0 || c.SMAct.MaxPct > 100:
		return &KeyError{0, "smact.max_pct", "must be more than 0 and at most 100"}
	case c.Hooks.Vetoes < 0 || c.Hooks.Vetoes > 1000:
		return &KeyError{0, "hooks.vetoes", "must be 0 to 1000"}
	case c.Placement.MaxJobs < 1 || c.Placement.MaxJobs > 48:
		// 48 clients per MPS server on Volta and later (MPS documentation).
		return &KeyError{0, "placement.max_jobs", "must be 1 to 48, the clients of one MPS server"}
	case c.Placement.MaxSlowdown != 0 && !(c.Placement.MaxSlowdown > 1 && c.Placement.MaxSlowdown <= 100):
		return &KeyError{0, "placement.max_slowdown", "must be above 1 and at most 100, or 0 for no bound"}
	case c.Placement.MinFreeMiB < 0:
		return &KeyError{0, "placement.min_free_mib", "must not be negative"}
	case c.Placement.MarginMiB < 0:
		return &KeyError{0, "placement.margin_mib", "must not be negative"}
	}
	return nil
}

func (c *Config) checkWords() *KeyError {
	for _, w := range []struct {
		key, v string
		values []string
	}{
		{"mode", c.Mode, []string{ModeShare, ModeAdvise, ModeObserve}},
		{"submit.on_bad_directive", c.Submit.OnBadDirective, []string{"reject", "ignore"}},
		{"submit.estimator", c.Submit.Estimator, estimators},
		{"smact.source", c.SMAct.Source, []string{"auto", "gpm", "dcgm", "nvml-utilisation"}},
		{"smact.statistic", c.SMAct.Statistic, Statistics},
		{"recovery.retry", c.Recovery.Retry, []string{"alone", "ladder"}},
		{"idle.action", c.Idle.Action, []string{"none", "notify", "cancel"}},
		{"placement.policy", c.Placement.Policy, policy.Names()},
		{"accounting.forward", c.Accounting.Forward, []string{"none", "slurmdbd"}},
		{"devices.confine", c.Devices.Confine, []string{"auto", "cgroup", "acl", "none"}},
		{"devices.names", c.Devices.Names, []string{"auto", "uuid", "ordinal"}},
		{"placement.cross_user", c.Placement.CrossUser, []string{"timeslice", "never"}},
	} {
		if !slices.Contains(w.values, w.v) {
			return &KeyError{0, w.key, fmt.Sprintf("%q is not one of %s", w.v, strings.Join(w.values, ", "))}
		}
	}
	return nil
}

func (c *Config) checkNodeSets() *KeyError {
	for _, p := range c.Placement.AllowPolicies {
		if !slices.Contains(policy.Names(), p) {
			names := strings.Join(policy.Names(), ", ")
			return &KeyError{0, "placement.allow_policies", fmt.Sprintf("%q is not one of %s", p, names)}
		}
	}
	for _, name := range sortedKeys(c.NodeSet) {
		set, key := c.NodeSet[name], "nodeset."+name
		if names, err := hostlist.Expand(set.Nodes); err != nil || len(names) == 0 {
			return &KeyError{0, key + ".nodes", fmt.Sprintf("%q is no node list; write gpu[1-4]", set.Nodes)}
		}
		switch {
		case set.Policy != "" && !slices.Contains(policy.Names(), set.Policy):
			names := strings.Join(policy.Names(), ", ")
			return &KeyError{0, key + ".policy", fmt.Sprintf("%q is not one of %s", set.Policy, names)}
		case set.MaxJobs < 0 || set.MaxJobs > 48:
			return &KeyError{0, key + ".max_jobs", "must be 1 to 48"}
		case set.SMActMaxPct < 0 || set.SMActMaxPct > 100:
			return &KeyError{0, key + ".smact_max_pct", "must be more than 0 and at most 100"}
		case set.CrossUser != "" && set.CrossUser != "timeslice" && set.CrossUser != "never":
			return &KeyError{0, key + ".cross_user", fmt.Sprintf("%q is not one of timeslice, never", set.CrossUser)}
		}
	}
	return nil
}

func (c *Config) checkPaths() *KeyError {
	for _, p := range []struct{ key, v string }{
		{"paths.run_dir", c.Paths.RunDir}, {"paths.db", c.Paths.DB}, {"paths.log", c.Paths.Log},
		{"mps.control", c.MPS.Control},
		{"devices.dir", c.Devices.Dir}, {"smact.dcgmi", c.SMAct.DCGMI}, {"export.textfile", c.Export.Textfile},
		{"export.dcgm_job_dir", c.Export.DCGMJobDir},
		{"history.file", c.History.File},
	} {
		if p.v == "" && (strings.HasPrefix(p.key, "export.") || p.key == "history.file") {
			continue
		}
		if !filepath.IsAbs(p.v) {
			return &KeyError{0, p.key, "must be an absolute path"}
		}
	}
	if strings.Contains(c.NVML.Library, "/") && !filepath.IsAbs(c.NVML.Library) {
		return &KeyError{0, "nvml.library", "must be a library name or an absolute path"}
	}
	return nil
}
