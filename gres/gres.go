// SPDX-License-Identifier: Apache-2.0

// Package gres holds what the rooms of the node's GPU side say to each other: GPUs,
// readings of them, leases on them. The package knows no library and no file.
package gres

import (
	"strings"
	"time"

	"carma/db/figure"
	"carma/slurmbridge/jobenv"
)

// GPU is a device of a node, or a MIG instance, as NVML tells.
type GPU struct {
	UUID     string `json:"uuid"`  // GPU-8f6c... or MIG-..., for CUDA_VISIBLE_DEVICES
	Index    int    `json:"index"` // NVML index (PCI bus order) of the device, for people
	Minor    int    `json:"minor"` // N of /dev/nvidiaN, the device of a MIG instance; -1: not known
	Model    string `json:"model"` // "NVIDIA A100-SXM4-40GB"
	TotalMiB int64  `json:"total_mib"`
	MIG      bool   `json:"mig"`    // an instance: given to a single job at a time
	NUMA     int    `json:"numa"`   // node of the host; -1: not known
	NVLink   uint64 `json:"nvlink"` // bit i: linked to the device of index i
}

// Whole tells whether a booking of mib means all of the GPU. Driver updates move
// the total of a GPU by a few MiB, and the size in carma.toml may be off by as
// much: a whole GPU is a whole GPU.
func (g GPU) Whole(mib int64) bool {
	d := g.TotalMiB - mib
	return d > -mib/50 && d < mib/50
}

// Process is a process with a context on a GPU.
type Process struct {
	PID     int   `json:"pid"`
	UsedMiB int64 `json:"used_mib"` // 0 where the driver does not tell
	MPS     bool  `json:"mps"`      // an MPS client
}

// Sample is a look at a GPU.
type Sample struct {
	GPU
	UsedMiB   int64           `json:"used_mib"`
	SMActPct  figure.Measured `json:"smact_pct"` // since the previous sample
	SMOccPct  figure.Measured `json:"smocc_pct"` // SM occupancy
	DRAMPct   figure.Measured `json:"dram_pct"`  // memory bandwidth
	Source    figure.Source   `json:"smact_source"`
	Processes []Process       `json:"processes"`
	// ProcessSMPct is the SM utilisation of the last second, by process id; nil
	// where the driver does not tell.
	ProcessSMPct map[int]float64 `json:"process_sm_pct,omitempty"`
	PowerWatts   figure.Measured `json:"power_watts"`
	EnergyJ      figure.Measured `json:"energy_j"` // total-energy counter
	// errors reported by the driver since the previous sample
	Xids []uint64 `json:"xids,omitempty"`
	// why the GPU is not to be used, by its state as the driver tells
	Fault string `json:"fault,omitempty"`
	// a reset will remap rows of its memory; until then the GPU can be used
	RowsPending bool `json:"rows_pending,omitempty"`
	// why the GPU could not be read; the figures above are then void
	Unreadable string `json:"unreadable"`
}

// FalseZero tells whether an SM activity is none: 0 while kernels run. After Xid 31 the
// profiling counters of DCGM read 0 until its host engine is started again (NVIDIA/DCGM#303).
// The smallest kernel keeps an SM of some hundred busy, which is more than 0.
func FalseZero(smactPct, utilisationPct figure.Measured) bool {
	return smactPct == 0 && utilisationPct >= 10
}

// Reading is what a choice is based on: the last sample of a GPU and the
// statistics over its window.
type Reading struct {
	GPU
	Age         time.Duration // of the last sample
	UsedMiB     int64
	SMActPct    float64 // statistic over the window; NaN: not measured
	Source      figure.Source
	Foreign     int // processes of no job of ours
	MPSClients  int
	Unreadable  string          // as in Sample
	CounterJ    figure.Measured // total-energy counter
	Quarantined string          // why no job may have the GPU: its MPS server has faulted, or the GPU is broken
	Cause       Cause           // of the quarantine
	HeldFor     uint32          // a job that has waited long for the GPU; 0: none
	HeldUID     uint32          // the job's user
	HeldGPUs    int             // that the job wants on a node
	HeldOpen    bool            // the job can start now: the GPU is offered again
}

// Cause is the cause of a GPU's quarantine, and says what ends the quarantine.
type Cause string

// The causes.
const (
	CauseMPS    Cause = "mps"    // a fault of its MPS server; ends when the server's clients have gone
	CauseXid    Cause = "xid"    // an error reported by the driver; ends by carma-node readmit, or at a reboot
	CauseDevice Cause = "device" // a state told by NVML; ends with the state
	CauseJobs   Cause = "jobs"   // several jobs failed on the GPU; ends by itself
)

// Lease is a promise of memory on a GPU to a job.
type Lease struct {
	Job        jobenv.JobKey
	UUID       string
	UID        uint32
	ReserveMiB int64
	Exclusive  bool
	SMActPct   float64 // expected; 0: not known
	// measured while the job was alone on the GPU, mean over the time in which it used
	// the GPU; 0: not known
	AlonePct     float64 // SM activity
	AloneDRAMPct float64 // memory bandwidth
	MaxSlowdown  float64 // that its user allows; 0: the site's
	Slowed       float64 // how many times as long the job takes, where that has long been beyond its bound; 0: it has not
	Age          time.Duration
	Seen         bool   // a process of the job has been seen on the GPU
	Daemon       Daemon // whose MPS client the job is

	Idle     time.Duration // the job has not used the GPU for so long; 0: it does use it, or that is not known
	IdleSure time.Duration // the last part of Idle in which all readings told so for certain
}

// Daemon is an MPS control daemon, named by the GPUs that it serves: their UUIDs
// in the order of the devices, with commas between. The zero value is none.
type Daemon string

// UUIDs returns the GPUs of the daemon.
func (d Daemon) UUIDs() []string {
	if d == "" {
		return nil
	}
	return strings.Split(string(d), ",")
}

// Many tells whether the daemon serves several GPUs.
func (d Daemon) Many() bool { return strings.IndexByte(string(d), ',') >= 0 }

// Serves tells whether the GPU is among the daemon's.
func (d Daemon) Serves(uuid string) bool {
	for rest, more := string(d), d != ""; more; {
		var one string
		if one, rest, more = strings.Cut(rest, ","); one == uuid {
			return true
		}
	}
	return false
}

// Nobody is the user of a daemon not yet reached by any user.
const Nobody int64 = -1

// Request is what a job needs of a node.
type Request struct {
	JobID       uint32
	GPUs        int
	ReserveMiB  int64 // per GPU
	MarginMiB   int64 // kept free beyond the reserve on a shared GPU
	Exclusive   bool
	SMActPct    float64 // expected; 0: not known
	UID         uint32
	MaxSlowdown float64 // that its user allows; 0: the site's
}
