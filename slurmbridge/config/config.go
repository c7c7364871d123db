// SPDX-License-Identifier: Apache-2.0

// Package config reads carma.toml, the one configuration file. slurmctld (by
// libcarma), the nodes (by carma-node) and the user tools read the same file.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"carma/estimator/method"
	"carma/slurmbridge/hostlist"
	"carma/slurmbridge/policy"
)

// DefaultPath is where carma.toml stands unless a program is told otherwise.
const DefaultPath = "/etc/carma/carma.toml"

// Config is a whole carma.toml. Sizes are MiB, percentages 0 to 100. Every
// key and its default is described in contrib/slurm/carma.toml.
type Config struct {
	Mode      string               `toml:"mode"` // share, advise, observe
	Slurm     Slurm                `toml:"slurm"`
	Submit    Submit               `toml:"submit"`
	Partition map[string]Partition `toml:"partition"`
	NVML      NVML                 `toml:"nvml"`
	SMAct     SMAct                `toml:"smact"`
	Placement Placement            `toml:"placement"`
	NodeSet   map[string]NodeSet   `toml:"nodeset"`
	Capacity  Capacity             `toml:"capacity"`
	MPS       MPS                  `toml:"mps"`
	Devices   Devices              `toml:"devices"`
	Hooks     Hooks                `toml:"hooks"`
	Recovery  Recovery             `toml:"recovery"`
	Hold      Hold                 `toml:"hold"`
	Idle      Idle                 `toml:"idle"`
	Export    Export               `toml:"export"`

	Accounting Accounting `toml:"accounting"`
	History    History    `toml:"history"`

	Frameworks map[string]Variable `toml:"frameworks"` // by name of the variable

	Paths Paths `toml:"paths"`
}

// The modes.
const (
	ModeShare   = "share"
	ModeAdvise  = "advise"  // as ModeObserve; libcarma writes what it would book into the AdminComment of jobs
	ModeObserve = "observe" // the agent measures and records, and nothing is changed
)

// Observes tells whether the agent only measures and records.
func (c Config) Observes() bool { return c.Mode != ModeShare }

// Observing is the configuration with what would act turned off. Records may go into AdminComment
// where estimates do.
func (c Config) Observing() Config {
	if c.Mode != ModeAdvise {
		c.Mode, c.Accounting.Forward = ModeObserve, "none"
	}
	c.MPS.Enabled, c.Idle.Action, c.Hold.After, c.Devices.Confine = false, "none", 0, "none"
	return c
}

// Slurm says where Slurm's commands are.
type Slurm struct {
	BinDir string `toml:"bin_dir"` // absolute; hooks trust no PATH
	Conf   string `toml:"conf"`    // SLURM_CONF for the commands; empty: Slurm's own default
	// UserKey is a file with the secret by which nodes' Extra names users; empty: by uid.
	UserKey string `toml:"user_key"`
}

// Submit holds job_submit's settings for a script.
type Submit struct {
	OnBadDirective string `toml:"on_bad_directive"` // reject, ignore
	Estimator      string `toml:"estimator"`        // of jobs with a model summary
}

// Partition describes a partition whose jobs CARMA looks after.
type Partition struct {
	Default     bool   `toml:"default"`       // slurm.conf's Default=YES: jobs that name no partition
	GPUsPerNode int    `toml:"gpus_per_node"` // physical GPUs, not slots
	GPUMemMiB   int64  `toml:"gpu_mem_mib"`   // memory of one GPU as NVML tells it
	Share       bool   `toml:"share"`         // false: every job gets whole GPUs
	Recovery    string `toml:"recovery"`      // partition for the second attempt after an OOM; empty: none

	Directive string `toml:"directive"` // the keys of jobs that say nothing, as after #CARMA; empty: none

	TimeSlot Duration `toml:"time_slot"` // longest time limit; at its end a job with requeue=timeout is requeued; 0: none

	// The GPU memory that a process holds before it has allocated any: CUDA
	// context and kernels, without and with cuDNN. 0: the estimator's default.
	BaseCuBLASMiB int64 `toml:"base_cublas_mib"`
	BaseCuDNNMiB  int64 `toml:"base_cudnn_mib"`
}

// NVML says how the GPUs are read.
type NVML struct {
	Library  string   `toml:"library"`  // libnvidia-ml.so.1, or a path
	Interval Duration `toml:"interval"` // between two samples
}

// SMAct are the preconditions on activity (paper: mean of 60 s, at most 80 %; the default is 85 %:
// docs/bench/sim.md).
type SMAct struct {
	Source    string   `toml:"source"` // auto, gpm, dcgm, nvml-utilisation
	DCGMI     string   `toml:"dcgmi"`  // path of dcgmi
	Window    Duration `toml:"window"`
	Statistic string   `toml:"statistic"`
	MaxPct    float64  `toml:"max_pct"`
}

// Placement is how a GPU is chosen.
type Placement struct {
	Policy        string   `toml:"policy"`
	AllowPolicies []string `toml:"allow_policies"` // that a job may ask for
	MaxJobs       int      `toml:"max_jobs"`       // jobs that may share one GPU
	MinFreeMiB    int64    `toml:"min_free_mib"`   // for a shared job without an estimate
	MarginMiB     int64    `toml:"margin_mib"`     // kept free beyond the booking
	Settle        Duration `toml:"settle"`         // a GPU stays closed so long for a newcomer's process to show
	CrossUser     string   `toml:"cross_user"`     // never, timeslice
	MaxSlowdown   float64  `toml:"max_slowdown"`   // that sharing may cost a job, times its time alone; 0: no bound
}

// IdleOnly tells whether every job gets idle GPUs alone: that is the node's policy, and a
// job may ask for no other.
func (p Placement) IdleOnly() bool {
	const exclusive = string(policy.Exclusive)
	return p.Policy == exclusive && !slices.ContainsFunc(p.AllowPolicies,
		func(other string) bool { return other != exclusive })
}

// NodeSet holds the settings that differ on some nodes. A zero value stands for
// the setting of all nodes.
type NodeSet struct {
	Nodes       string  `toml:"nodes"` // a Slurm node list: gpu[1-4,9]
	Policy      string  `toml:"policy"`
	MaxJobs     int     `toml:"max_jobs"`
	SMActMaxPct float64 `toml:"smact_max_pct"`
	CrossUser   string  `toml:"cross_user"`
}

// Capacity is the publication of free GPU memory to slurmctld.
type Capacity struct {
	Compare Duration `toml:"compare"` // between two looks at the node's Extra
}

// MPS is the CUDA Multi-Process Service, one control daemon per GPU.
type MPS struct {
	Enabled bool   `toml:"enabled"`
	Control string `toml:"control"` // path of nvidia-cuda-mps-control
}

// Devices are the device nodes of the GPUs, and who opens which.
type Devices struct {
	Confine string `toml:"confine"` // auto, cgroup, acl, none: what keeps jobs from GPUs that are not theirs
	Names   string `toml:"names"`   // auto, uuid, ordinal: how CUDA_VISIBLE_DEVICES names a job's GPUs
	Dir     string `toml:"dir"`     // where the nodes are
}

// Hooks bounds Prolog and Epilog.
type Hooks struct {
	Wait Duration `toml:"wait"` // Prolog: for a GPU, before the job returns to the queue
	// so much longer for srun and salloc, which cannot return to the queue; then their tasks wait
	WaitInteractive Duration `toml:"wait_interactive"`
	Deadline        Duration `toml:"deadline"` // Prolog and Epilog: for everything else
	// times that a job returns to the queue before it waits for idle GPUs; 0: never
	Vetoes int  `toml:"vetoes"`
	Strict bool `toml:"strict"` // a node whose ledger is damaged, or that has lost a GPU, drains
}

// Longest is how long a Prolog takes at most.
func (h Hooks) Longest() time.Duration { return h.Wait.D() + h.WaitInteractive.D() + h.Deadline.D() }

// Recovery is the treatment of a job that ran out of GPU memory, where its
// partition has a recovery partition.
type Recovery struct {
	// alone: with whole GPUs; ladder: with 5 GiB more, as long as that is less
	Retry string `toml:"retry"`
}

// Hold keeps GPUs for requests that small jobs would pass for ever.
type Hold struct {
	After Duration `toml:"after"` // a large request has waited so long; 0: never
}

// Idle is the treatment of a job that holds GPUs and does not use them.
type Idle struct {
	Action string   `toml:"action"` // none: it is shown; notify: its user is told too; cancel: it is told, and cancelled
	After  Duration `toml:"after"`  // unused for so long
}

// Export is the agent's output for other tools. Empty: nothing.
type Export struct {
	Textfile   string `toml:"textfile"`     // for node_exporter's textfile collector
	DCGMJobDir string `toml:"dcgm_job_dir"` // for dcgm-exporter's --hpc-job-mapping-dir
}

// Accounting says which records of jobs and GPUs are kept, and who else gets
// them.
type Accounting struct {
	KeepRecords Duration `toml:"keep_records"` // of jobs; 0: for ever
	KeepSamples Duration `toml:"keep_samples"` // 0: for ever
	Forward     string   `toml:"forward"`      // none, slurmdbd
}

// History is what job_submit learns from earlier runs.
type History struct {
	File string `toml:"file"` // snapshot, on the machine of slurmctld; empty: none
}

// Paths are the directories of a node. "%n" stands for the Slurm node name.
type Paths struct {
	RunDir string `toml:"run_dir"` // on tmpfs: leases end with a reboot
	DB     string `toml:"db"`      // accounting records, on a local disk
	Log    string `toml:"log"`     // the hooks' log
}

// Duration is a time in Go's notation: "60s", "1m30s", "250ms".
type Duration time.Duration

// UnmarshalText reads the notation above.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration; write \"30s\" or \"250ms\"", text)
	}
	*d = Duration(v)
	return nil
}

// D returns d as the standard library's type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// Default returns the configuration of an empty file.
func Default() Config {
	return Config{
		Mode:   ModeShare,
		Slurm:  Slurm{BinDir: "/usr/bin"},
		Submit: Submit{OnBadDirective: "reject", Estimator: method.Default},
		NVML:   NVML{Library: "libnvidia-ml.so.1", Interval: Duration(time.Second)},
		SMAct: SMAct{Source: "auto", DCGMI: "/usr/bin/dcgmi", Window: Duration(60 * time.Second), Statistic: "mean",
			MaxPct: 85},
		Placement: Placement{Policy: "magm", MaxJobs: 3, MinFreeMiB: 5120, MarginMiB: 2048,
			Settle: Duration(30 * time.Second), CrossUser: "never"},
		Capacity: Capacity{Compare: Duration(30 * time.Second)},
		MPS:      MPS{Enabled: true, Control: "/usr/bin/nvidia-cuda-mps-control"},
		Devices:  Devices{Confine: "auto", Names: "auto", Dir: "/dev"},
		Hooks: Hooks{Wait: Duration(5 * time.Second), WaitInteractive: Duration(time.Minute),
			Deadline: Duration(10 * time.Second), Vetoes: 5},
		Recovery: Recovery{Retry: "alone"},
		Hold:     Hold{After: Duration(2 * time.Hour)},
		Idle:     Idle{Action: "none", After: Duration(30 * time.Minute)},

		Accounting: Accounting{KeepSamples: Duration(90 * 24 * time.Hour), Forward: "none"},
		History:    History{File: "/var/lib/carma-history/history"},

		Frameworks: frameworks(),

		Paths: Paths{RunDir: "/run/carma", DB: "/var/lib/carma/carma.db", Log: "/var/log/carma.log"},
	}
}

// Load reads and checks the file at path; read is os.ReadFile, which this package leaves to
// its callers. The error names file, line and key.
func Load(path string, read func(path string) ([]byte, error)) (Config, error) {
	text, err := read(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	// An editor that writes in place, a full disk: as a configuration it would take CARMA off all partitions.
	if len(bytes.TrimSpace(text)) == 0 {
		return Config{}, fmt.Errorf("%s: the file is empty", path)
	}
	c, err := Parse(string(text))
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads and checks the text of a carma.toml.
func Parse(text string) (Config, error) {
	c := Default()
	if err := Decode(text, "contrib/slurm/carma.toml lists them all", &c); err != nil {
		return Config{}, err
	}
	if err := c.check(); err != nil {
		err.Line = LineOf(text, err.Key)
		return Config{}, err
	}
	if c.Observes() {
		return c.Observing(), nil
	}
	return c, nil
}

// Decode reads TOML into v, which holds what is not said. The error is a
// *KeyError with line and key, also for a key that v does not have; hint then
// says where the keys are told.
func Decode(text, hint string, v any) error {
	md, err := toml.Decode(text, v)
	if err != nil {
		return decodeError(err)
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		return &KeyError{lineOf(text, unknown[0]), unknown[0].String(), "unknown key; " + hint}
	}
	return nil
}

// LineOf finds the line on which a dotted key stands, 0 if on none.
func LineOf(text, key string) int { return lineOf(text, strings.Split(key, ".")) }

// KeyError is a key that carma.toml may not hold, or a wrong value of one.
type KeyError struct {
	Line   int // 0 if the key stands at its default
	Key    string
	Reason string
}

func (e *KeyError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.Key, e.Reason)
	}
	return fmt.Sprintf("line %d: %s: %s", e.Line, e.Key, e.Reason)
}

// decodeError puts the decoder's position in front: "line 3: smact.max_pct: ...".
func decodeError(err error) error {
	var pe toml.ParseError
	if errors.As(err, &pe) {
		return &KeyError{pe.Position.Line, cmp.Or(pe.LastKey, "file"), strings.TrimSpace(pe.Message)}
	}
	return err
}

// lineOf finds the line on which a key stands; the decoder keeps positions for
// errors of its own only. It understands [table] headers and bare keys, which
// is how carma.toml is written; 0 when it finds none.
func lineOf(text string, key []string) int {
	table := ""
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if h, ok := strings.CutPrefix(line, "["); ok {
			table, _, _ = strings.Cut(strings.TrimLeft(h, "["), "]")
			if strings.TrimSpace(table) == strings.Join(key, ".") {
				return i + 1
			}
			continue
		}
		name, _, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		full := strings.TrimSpace(name)
		if table != "" {
			full = strings.TrimSpace(table) + "." + full
		}
		if strings.ReplaceAll(full, `"`, "") == strings.Join(key, ".") {
			return i + 1
		}
	}
	return 0
}

// ForNode returns the configuration as it holds for one node: with what its
// node set does otherwise. A node of several sets follows the first by name.
func (c Config) ForNode(node string) Config {
	for _, name := range sortedKeys(c.NodeSet) {
		set := c.NodeSet[name]
		if !hostlist.Contains(set.Nodes, node) {
			continue
		}
		if set.Policy != "" {
			c.Placement.Policy = set.Policy
		}
		if set.MaxJobs != 0 {
			c.Placement.MaxJobs = set.MaxJobs
		}
		if set.SMActMaxPct != 0 {
			c.SMAct.MaxPct = set.SMActMaxPct
		}
		if set.CrossUser != "" {
			c.Placement.CrossUser = set.CrossUser
		}
		break
	}
	return c
}

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

// PartitionNames lists the partitions in alphabetical order.
func (c Config) PartitionNames() []string { return sortedKeys(c.Partition) }

// DefaultPartition is the one that jobs without a partition go to, if it is ours.
func (c Config) DefaultPartition() string {
	for _, n := range c.PartitionNames() {
		if c.Partition[n].Default {
			return n
		}
	}
	return ""
}

// Recovers tells whether some partition has its jobs requeued.
func (c Config) Recovers() bool {
	for _, p := range c.Partition {
		if p.Recovery != "" {
			return true
		}
	}
	return false
}

// RecoveryOf tells whether partition name is where some partition sends its
// recovered jobs.
func (c Config) RecoveryOf(name string) bool {
	for _, p := range c.Partition {
		if p.Recovery == name {
			return true
		}
	}
	return false
}

// Command is the absolute path of one of Slurm's commands.
func (s Slurm) Command(name string) string { return filepath.Join(s.BinDir, name) }
