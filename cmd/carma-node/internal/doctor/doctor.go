// SPDX-License-Identifier: Apache-2.0

// Package doctor judges an installation of CARMA: from facts gathered elsewhere
// the package tells which parts are right and what to do about the rest.
package doctor

import (
	"io/fs"
	"time"

	"carma/gres"
	"carma/slurmbridge/config"
	"carma/slurmbridge/sctl"
	"carma/slurmbridge/slurmconf"
)

// Level is how grave a finding is.
type Level string

// Warn works, with a drawback; Fail does not work or endangers jobs.
const (
	Pass Level = "pass"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Finding is a line of the diagnosis.
type Finding struct {
	Level Level  `json:"level"`
	Part  string `json:"part"` // what was looked at: plugin, nodes, hooks, ...
	What  string `json:"what"`
	Do    string `json:"do,omitempty"` // the step to do; empty for pass
}

// Facts are what the diagnosis is based on. Errors are facts, too.
type Facts struct {
	ConfigPath string
	Config     config.Config
	ConfigErr  error
	NoConfig   bool // there is no carma.toml, so that the agent observes
	Disabled   bool // carma.disable stands beside carma.toml

	SlurmConf    slurmconf.File // slurm.conf as in the file
	SlurmConfErr error
	Running      map[string]string // settings of the running slurmctld, names in lower case
	RunningErr   error
	Installed    sctl.Version // of Slurm's commands on this machine
	Skew         time.Duration
	Federation   string            // the cluster's federation; empty: none
	Reservations map[string]string // names and partitions of reservations; nil: not asked for
	PluginDirs   []Path            // named in slurm.conf
	SPANK        SPANK
	Extras       map[string]string // of CARMA's nodes, as slurmctld has them; nil: not asked for
	ExtrasErr    error
	Limits       []sctl.Limit // on TRES, in slurmdbd
	UserKey      Path         // the file that slurm.user_key names; void: none

	Controller *Controller // nil: not asked for
	Node       *Node
}

// Controller holds the facts that only the machine of slurmctld has.
type Controller struct {
	PluginPath    string // job_submit_carma.so in PluginDir; empty: nowhere
	PluginVersion sctl.Version
	PluginErr     error
	Library       Path // libcarma.so beside the plugin
	LibraryErr    error
	ConfigFile    Path // carma.toml, which slurmctld trusts

	HistoryErr error         // history.file cannot be looked at
	HistoryAge time.Duration // since the last write
}

// Node holds the facts that only a GPU node has.
type Node struct {
	Name        string
	State       string // as scontrol shows it; empty: slurmctld does not know the node
	StateErr    error  // slurmctld did not answer
	Reason      string
	Gres        string // as counted by slurmctld
	GresConf    slurmconf.File
	GresConfErr error
	Constrained bool // cgroup.conf: ConstrainDevices=yes

	Hooks map[string]Path // by name in slurm.conf: Prolog, TaskProlog, Epilog
	Slots []Path          // device files of gres.conf

	Elsewhere bool // the node is none of CARMA's, and gres.conf has its GPUs themselves

	Guard    string // what keeps jobs from other jobs' GPUs; empty: nothing
	GuardErr error  // why there is no guard

	SetsDevices []string // files of login shells that set CUDA_VISIBLE_DEVICES, with the line
	// TaskPrologSets is the line by which a site's own TaskProlog sets CUDA_VISIBLE_DEVICES behind CARMA's; 0: none.
	TaskPrologSets int

	Dmem        bool  // the kernel has the controller of device memory
	UnlimitedBy error // why the driver does not hold jobs to their GPU memory; nil: it does

	Samples   []gres.Sample
	NVMLErr   error
	DCGMI     bool   // dcgmi is there
	MPS       Path   // nvidia-cuda-mps-control
	Driver    string // its version; empty: unknown
	RunDir    Path
	OnTmpfs   bool
	DBErr     error
	AgentAge  time.Duration // of the agent's last reading
	LedgerErr error
}

// Path holds a file's facts seen from outside.
type Path struct {
	Path  string
	Err   error // the file cannot be looked at; the other fields are void
	Mode  fs.FileMode
	UID   uint32
	Major uint32 // of a device file
}

// safe tells whether nobody but root can change the file.
func (p Path) safe() bool { return p.Err == nil && p.UID == 0 && p.Mode.Perm()&0o022 == 0 }

// Diagnose returns the findings on the facts, in an order to fix them in.
func Diagnose(f Facts) []Finding {
	if f.ConfigErr == nil && f.Config.Observes() {
		return observing(f)
	}
	d := &diagnosis{Facts: f}
	d.configuration()
	if f.ConfigErr == nil {
		d.slurm()
		if f.SlurmConfErr == nil {
			d.settings()
			d.nodes()
			d.partitions()
			d.capacity()
			d.money()
			d.room()
		}
		if f.Controller != nil {
			d.controller()
			d.history()
		}
		if f.Node != nil {
			d.node()
		}
	}
	return d.findings
}

// diagnosis collects findings. A part without findings passes.
type diagnosis struct {
	Facts
	findings []Finding
}

// add leaves out a finding with the same step as an earlier finding.
func (d *diagnosis) add(level Level, part, what, do string) {
	for _, f := range d.findings {
		if f.Part == part && f.Do == do {
			return
		}
	}
	d.findings = append(d.findings, Finding{level, part, what, do})
}

// part looks at a part of the installation; if look finds nothing, the part
// passes with fine.
func (d *diagnosis) part(name, fine string, look func(say func(level Level, what, do string))) {
	before := len(d.findings)
	look(func(level Level, what, do string) { d.add(level, name, what, do) })
	if len(d.findings) == before {
		d.add(Pass, name, fine, "")
	}
}

// setting is slurmctld's value at its next start: the file's, else the default,
// which a running slurmctld tells.
func (d *diagnosis) setting(name string) string {
	if v := d.SlurmConf.Setting(name); v != "" {
		return v
	}
	return d.Running[lower(name)]
}

// Worst is the gravest level among the findings.
func Worst(findings []Finding) Level {
	worst := Pass
	for _, f := range findings {
		if f.Level == Fail || f.Level == Warn && worst == Pass {
			worst = f.Level
		}
	}
	return worst
}
