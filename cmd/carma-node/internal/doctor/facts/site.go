// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"carma/cmd/carma-node/internal/doctor"
	"carma/db/figure"
	"carma/gres"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

// ErrMixed means that the GPUs of this machine differ.
var ErrMixed = errors.New("a partition's GPUs must be alike")

// OfSite adds to a site the facts of this machine: its GPUs, its hardware and the
// slurm.conf that there is. path is the path of carma.toml. The note says why there is
// no slurm.conf.
func OfSite(ctx context.Context, path string, c config.Config, s doctor.Site) (_ doctor.Site, note, err error) {
	gpus, err := gpusOf(ctx, path)
	if err != nil {
		return s, nil, err
	}
	s.GPUs, s.GPUMemMiB, s.Type = len(gpus), gpus[0].TotalMiB, typeOf(gpus)
	// NVML has GPM from Hopper on.
	s.Hopper = !slices.ContainsFunc(gpus, func(g gres.Sample) bool { return g.Source != figure.SourceGPM })
	slurm := sctl.For(c.Slurm, os.Getenv("SLURM_CONF"))
	if s.Slurm, err = slurm.Version(ctx); err != nil {
		return s, nil, err
	}
	text, _ := slurm.ShowConfig(ctx) // slurmctld may be down
	s.SlurmConf, note = slurmconf.Read(slurmConfPath(slurm, slurmconf.Running(text)))
	s.Hardware, err = hardwareOf(ctx, c)
	return s, note, err
}

// gpusOf returns the GPUs of this machine, which must be alike.
func gpusOf(ctx context.Context, path string) ([]gres.Sample, error) {
	samples, err := openSamples(ctx, path)
	if err != nil {
		return nil, err
	}
	for _, s := range samples {
		if s.Unreadable != "" {
			return nil, fmt.Errorf("GPU %d cannot be read: %s", s.Index, s.Unreadable)
		}
		if first := samples[0]; !first.Whole(s.TotalMiB) {
			return nil, fmt.Errorf("GPUs of %d and of %d MiB in one node: %w", first.TotalMiB, s.TotalMiB, ErrMixed)
		}
	}
	if len(samples) == 0 {
		return nil, fmt.Errorf("NVML shows no GPU here; run it on a GPU node")
	}
	return samples, nil
}

// typeOf is the GPUs' type; empty for GPUs of several models.
func typeOf(gpus []gres.Sample) string {
	for _, g := range gpus {
		if g.Model != gpus[0].Model {
			return ""
		}
	}
	return doctor.GPUType(gpus[0].Model)
}

// hardwareOf asks slurmd which hardware it sees. slurmd stands beside Slurm's
// commands or in the sbin next to them.
func hardwareOf(ctx context.Context, c config.Config) (string, error) {
	for _, path := range []string{c.Slurm.Command("slurmd"), filepath.Join(filepath.Dir(c.Slurm.BinDir), "sbin",
		"slurmd")} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, "-C").Output()
		if err != nil {
			return "", fmt.Errorf("%s -C: %w", path, err)
		}
		line, _, _ := strings.Cut(string(out), "\n")
		return line, nil
	}
	return "", fmt.Errorf("no slurmd in %s or the sbin directory next to it; set slurm.bin_dir", c.Slurm.BinDir)
}
