// SPDX-License-Identifier: Apache-2.0

// Package nvml reads GPUs through NVML. It is the only package that imports
// go-nvml.
//
// Any NVML call may block for as long as the driver is wedged, in a state in
// which not even SIGKILL ends the process. Callers that must go on read in a
// process of their own.
package nvml

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"carma/gres"
)

// NVML is an open library. It is not safe for concurrent use.
type NVML struct {
	lib     nvml.Interface
	devices []*device
}

type device struct {
	nvml.Device
	gpu       gres.GPU
	mig       bool
	gpm       nvml.GpmSample // of the last look; nil: no GPM
	spare     nvml.GpmSample
	gpmTaken  bool
	hasEnergy bool
}

// Open loads the library, a name for the dynamic linker or a path, and lists
// the GPUs. The first Sample after it has no SM activity from GPM, which needs
// two looks.
func Open(library string) (*NVML, error) {
	n := &NVML{lib: nvml.New(nvml.WithLibraryPath(library))}
	if ret := n.lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("load NVML from %s: %w", library, ret)
	}
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		n.Close()
		return nil, fmt.Errorf("count GPUs: %w", ret)
	}
	for i := range count {
		d, err := n.openDevice(i)
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("open GPU %d: %w", i, err)
		}
		n.devices = append(n.devices, d)
	}
	return n, nil
}

// Close unloads the library.
func (n *NVML) Close() {
	for _, d := range n.devices {
		if d.gpm != nil {
			n.lib.GpmSampleFree(d.gpm)
			n.lib.GpmSampleFree(d.spare)
		}
	}
	n.lib.Shutdown()
}

func (n *NVML) openDevice(index int) (*device, error) {
	dev, ret := n.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	d := &device{Device: dev, gpu: gres.GPU{Index: index}}
	if d.gpu.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read UUID: %w", ret)
	}
	if d.gpu.Model, ret = dev.GetName(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("read name: %w", ret)
	}
	total, _, err := d.memory()
	if err != nil {
		return nil, err
	}
	d.gpu.TotalMiB = total
	mode, _, ret := dev.GetMigMode()
	d.mig = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	_, ret = dev.GetTotalEnergyConsumption()
	d.hasEnergy = ret == nvml.SUCCESS
	return d, n.openGPM(d)
}

// openGPM allocates GPM samples where driver and GPU have GPM. A driver without
// the symbol must not be asked: the call would end the process.
func (n *NVML) openGPM(d *device) error {
	if n.lib.Extensions().LookupSymbol("nvmlGpmQueryDeviceSupport") != nil {
		return nil
	}
	support, ret := d.GpmQueryDeviceSupport()
	if ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return nil
	}
	a, ret := n.lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		return fmt.Errorf("allocate GPM sample: %w", ret)
	}
	b, ret := n.lib.GpmSampleAlloc()
	if ret != nvml.SUCCESS {
		n.lib.GpmSampleFree(a)
		return fmt.Errorf("allocate GPM sample: %w", ret)
	}
	d.gpm, d.spare = a, b
	return nil
}

// Sample looks at every GPU once. A GPU that cannot be read is told so in its
// sample and does not keep the others from being read.
func (n *NVML) Sample() []gres.Sample {
	samples := make([]gres.Sample, len(n.devices))
	for i, d := range n.devices {
		samples[i] = n.sample(d)
	}
	return samples
}

func (n *NVML) sample(d *device) gres.Sample {
	s := gres.Sample{GPU: d.gpu, SMActPct: gres.Unknown, PowerWatts: gres.Unknown, EnergyJ: gres.Unknown, Source: gres.SourceNone}
	if d.mig {
		s.Unreadable = "MIG is enabled"
		return s
	}
	total, used, err := d.memory()
	if err == nil && (used < 0 || used > total) {
		err = fmt.Errorf("read memory: %d of %d MiB used", used, total)
	}
	if err == nil {
		s.UsedMiB = used
		s.Processes, err = d.processes()
	}
	if err != nil {
		s.Unreadable = err.Error()
		return s
	}
	pct, source := n.smAct(d)
	s.SMActPct, s.Source = gres.Measured(pct), source
	if mw, ret := d.GetPowerUsage(); ret == nvml.SUCCESS {
		s.PowerWatts = gres.Measured(mw) / 1000
	}
	if d.hasEnergy {
		if mj, ret := d.GetTotalEnergyConsumption(); ret == nvml.SUCCESS {
			s.EnergyJ = gres.Measured(mj) / 1000
		}
	}
	return s
}

const bytesPerMiB = 1 << 20

// memory returns what jobs can use of the GPU and what is used, in MiB. The
// driver keeps a part for itself: version 2 of the call tells it apart,
// version 1 counts it as used.
func (d *device) memory() (totalMiB, usedMiB int64, err error) {
	if m, ret := d.GetMemoryInfo_v2(); ret == nvml.SUCCESS && m.Reserved <= m.Total {
		return int64((m.Total - m.Reserved) / bytesPerMiB), toMiB(m.Used), nil
	} else if ret != nvml.SUCCESS && !errors.Is(ret, nvml.ERROR_FUNCTION_NOT_FOUND) && !errors.Is(ret, nvml.ERROR_NOT_SUPPORTED) {
		return 0, 0, fmt.Errorf("read memory: %w", ret)
	}
	m, ret := d.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return 0, 0, fmt.Errorf("read memory: %w", ret)
	}
	return int64(m.Total / bytesPerMiB), toMiB(m.Used), nil
}

// toMiB rounds up; NVML's "not available" is all bits set and becomes 0.
func toMiB(bytes uint64) int64 {
	if bytes == math.MaxUint64 {
		return 0
	}
	return int64((bytes + bytesPerMiB - 1) / bytesPerMiB)
}

// processes lists compute processes; clients of MPS are in both of NVML's
// lists or in the second alone, depending on the driver.
func (d *device) processes() ([]gres.Process, error) {
	compute, ret := d.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("list processes: %w", ret)
	}
	mps, ret := d.GetMPSComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		mps = nil // older drivers have no such list
	}
	list := make([]gres.Process, 0, len(compute)+len(mps))
	for _, p := range mps {
		list = append(list, gres.Process{PID: int(p.Pid), UsedMiB: toMiB(p.UsedGpuMemory), MPS: true})
	}
next:
	for _, p := range compute {
		for _, q := range mps {
			if p.Pid == q.Pid {
				continue next
			}
		}
		list = append(list, gres.Process{PID: int(p.Pid), UsedMiB: toMiB(p.UsedGpuMemory)})
	}
	return list, nil
}

// smAct returns SM activity since the last look, from the best source that the
// GPU has.
func (n *NVML) smAct(d *device) (pct float64, source gres.Source) {
	if d.gpm != nil {
		return n.gpmSMAct(d), gres.SourceGPM
	}
	if u, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS {
		return float64(u.Gpu), gres.SourceUtilisation
	}
	return math.NaN(), gres.SourceNone
}

func (n *NVML) gpmSMAct(d *device) float64 {
	if ret := d.GpmSampleGet(d.spare); ret != nvml.SUCCESS {
		d.gpmTaken = false
		return math.NaN()
	}
	d.gpm, d.spare = d.spare, d.gpm
	if !d.gpmTaken {
		d.gpmTaken = true
		return math.NaN()
	}
	get := nvml.GpmMetricsGetType{NumMetrics: 1, Sample1: d.spare, Sample2: d.gpm}
	get.Metrics[0].MetricId = uint32(nvml.GPM_METRIC_SM_UTIL)
	if ret := n.lib.GpmMetricsGet(&get); ret != nvml.SUCCESS || get.Metrics[0].NvmlReturn != uint32(nvml.SUCCESS) {
		return math.NaN()
	}
	return get.Metrics[0].Value
}

// SampleTwice takes two looks, so far apart, for a caller without a window.
func (n *NVML) SampleTwice(apart time.Duration) []gres.Sample {
	n.Sample()
	time.Sleep(apart)
	return n.Sample()
}
