// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"carma/db/figure"
	"carma/gres"
)

// device is one GPU.
type device struct {
	nvml.Device
	lib       nvml.Interface
	gpu       gres.GPU
	mig       bool
	gpm       [2]nvml.GpmSample // the last look and a spare
	hasGPM    bool
	gpmTaken  bool
	hasEnergy bool
	hasUsage  bool // tells the utilisation of each process
	health    health
}

func (n *NVML) openDevice(index int) (*device, error) {
	dev, ret := n.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	d := &device{Device: dev, lib: n.lib, gpu: gres.GPU{Index: index, Minor: -1, NUMA: -1}}
	var err error
	if d.gpu.UUID, d.gpu.Model, d.gpu.TotalMiB, err = identity(dev); err != nil {
		return nil, err
	}
	if minor, ret := dev.GetMinorNumber(); ret == nvml.SUCCESS {
		d.gpu.Minor = minor
	}
	mode, _, ret := dev.GetMigMode()
	d.mig = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	_, ret = dev.GetTotalEnergyConsumption()
	d.hasEnergy = ret == nvml.SUCCESS
	d.hasUsage = n.lib.Extensions().LookupSymbol("nvmlDeviceGetProcessUtilization") == nil
	d.openHealth()
	return d, d.openGPM()
}

func identity(dev nvml.Device) (uuid, model string, totalMiB int64, err error) {
	uuid, ret := dev.GetUUID()
	if ret != nvml.SUCCESS {
		return "", "", 0, fmt.Errorf("read UUID: %w", ret)
	}
	model, ret = dev.GetName()
	if ret != nvml.SUCCESS {
		return "", "", 0, fmt.Errorf("read name: %w", ret)
	}
	totalMiB, _, err = memory(dev)
	return uuid, model, totalMiB, err
}

// openGPM allocates GPM samples where driver and GPU have GPM. A driver without
// the symbol must not be asked: the call would end the process.
func (d *device) openGPM() error {
	if d.lib.Extensions().LookupSymbol("nvmlGpmQueryDeviceSupport") != nil || d.mig {
		return nil
	}
	support, ret := d.GpmQueryDeviceSupport()
	if ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return nil
	}
	for i := range d.gpm {
		if d.gpm[i], ret = d.lib.GpmSampleAlloc(); ret != nvml.SUCCESS {
			return fmt.Errorf("allocate GPM sample: %w", ret)
		}
	}
	d.hasGPM = true
	return nil
}

func (d *device) close() {
	if d.health.events != nil {
		d.health.events.Free()
	}
	if d.hasGPM {
		d.lib.GpmSampleFree(d.gpm[0])
		d.lib.GpmSampleFree(d.gpm[1])
	}
}

// link fills in which GPUs are near the devices. Facts that a driver does not
// tell stay unknown.
func (n *NVML) link(devices, peers []*device) {
	has := func(symbol string) bool { return n.lib.Extensions().LookupSymbol(symbol) == nil }
	numa, p2p := has("nvmlDeviceGetNumaNodeId"), has("nvmlDeviceGetP2PStatus")
	for _, d := range devices {
		if numa {
			if node, ret := d.GetNumaNodeId(); ret == nvml.SUCCESS {
				d.gpu.NUMA = node
			}
		}
		for _, peer := range peers {
			if !p2p || d == peer || peer.gpu.Index >= 64 {
				continue
			}
			if status, ret := d.GetP2PStatus(peer.Device, nvml.P2P_CAPS_INDEX_NVLINK); ret == nvml.SUCCESS &&
				status == nvml.P2P_STATUS_OK {
				d.gpu.NVLink |= 1 << uint(peer.gpu.Index)
			}
		}
	}
}

// sample reads the device, or each of its MIG instances.
func (d *device) sample() []gres.Sample {
	samples := d.look()
	xids := d.xids()
	d.readHealth()
	for i := range samples {
		samples[i].Xids, samples[i].Fault, samples[i].RowsPending = xids, d.health.fault, d.health.rowsPending
	}
	return samples
}

func (d *device) look() []gres.Sample {
	if d.mig {
		return d.instances()
	}
	s := look(d.Device, d.gpu)
	if s.Unreadable != "" {
		return []gres.Sample{s}
	}
	d.activity(&s)
	if d.hasUsage && len(s.Processes) > 1 { // of one alone everything is its own
		s.ProcessSMPct = d.processUse()
	}
	if mw, ret := d.GetPowerUsage(); ret == nvml.SUCCESS {
		s.PowerWatts = figure.Measured(mw) / 1000
	}
	if d.hasEnergy {
		if mj, ret := d.GetTotalEnergyConsumption(); ret == nvml.SUCCESS {
			s.EnergyJ = figure.Measured(mj) / 1000
		}
	}
	return []gres.Sample{s}
}

// instances reads the MIG instances of the device. Each is a GPU for one job;
// activity and energy are known of the device only.
func (d *device) instances() []gres.Sample {
	most, ret := d.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		s := blank(d.gpu)
		s.Unreadable = fmt.Sprintf("count MIG instances: %v", ret)
		return []gres.Sample{s}
	}
	var samples []gres.Sample
	var unreadable error // the first: without an UUID of their own all would be the device, which the ledger has once
	for i := range most {
		instance, ret := d.GetMigDeviceHandleByIndex(i)
		if errors.Is(ret, nvml.ERROR_NOT_FOUND) || errors.Is(ret, nvml.ERROR_INVALID_ARGUMENT) {
			continue // no instance of this number
		}
		g := gres.GPU{Index: d.gpu.Index, Minor: d.gpu.Minor, MIG: true, NUMA: d.gpu.NUMA}
		err := error(nil)
		if ret != nvml.SUCCESS {
			err = ret
		} else {
			g.UUID, g.Model, g.TotalMiB, err = identity(instance)
		}
		if err != nil {
			unreadable = cmp.Or(unreadable, fmt.Errorf("read MIG instance %d: %w", i, err))
			continue
		}
		samples = append(samples, look(instance, g))
	}
	if unreadable != nil {
		s := blank(d.gpu)
		s.Unreadable = unreadable.Error()
		samples = append(samples, s)
	}
	return samples
}

// look reads memory and processes of a device or an instance.
func look(dev nvml.Device, g gres.GPU) gres.Sample {
	s := blank(g)
	total, used, err := memory(dev)
	if err == nil && (used < 0 || used > total) {
		err = fmt.Errorf("read memory: %d of %d MiB used", used, total)
	}
	if err == nil {
		s.UsedMiB = used
		s.Processes, err = processes(dev)
	}
	if err != nil {
		s.Unreadable = err.Error()
	}
	return s
}

const bytesPerMiB = 1 << 20

// memory returns the GPU's memory for jobs and the used memory, in MiB. The
// driver keeps a part for itself: version 2 of the call tells it apart, version
// 1 counts it as used.
func memory(dev nvml.Device) (totalMiB, usedMiB int64, err error) {
	if m, ret := dev.GetMemoryInfo_v2(); ret == nvml.SUCCESS && m.Reserved <= m.Total {
		return int64((m.Total - m.Reserved) / bytesPerMiB), toMiB(m.Used), nil
	} else if ret != nvml.SUCCESS && !errors.Is(ret, nvml.ERROR_FUNCTION_NOT_FOUND) && !errors.Is(ret,
		nvml.ERROR_NOT_SUPPORTED) {
		return 0, 0, fmt.Errorf("read memory: %w", ret)
	}
	m, ret := dev.GetMemoryInfo()
	if errors.Is(ret, nvml.ERROR_NOT_SUPPORTED) {
		return 0, 0, errors.New("the driver does not tell the memory of this GPU, as of GPUs that share the node's; " +
			"CARMA cannot manage it")
	} else if ret != nvml.SUCCESS {
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
func processes(dev nvml.Device) ([]gres.Process, error) {
	compute, ret := dev.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("list processes: %w", ret)
	}
	mps, ret := dev.GetMPSComputeRunningProcesses()
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

// activity fills in SM activity since the last look, from the best credible
// source that the GPU has.
func (d *device) activity(s *gres.Sample) {
	utilisation := figure.Unknown
	if u, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS && u.Gpu <= 100 {
		utilisation = figure.Measured(u.Gpu)
	}
	if d.hasGPM && d.gpmActivity(s) && !gres.FalseZero(s.SMActPct, utilisation) {
		s.Source = figure.SourceGPM
		return
	}
	s.SMActPct, s.SMOccPct, s.DRAMPct = figure.Unknown, figure.Unknown, figure.Unknown
	if utilisation.Known() {
		s.SMActPct, s.Source = utilisation, figure.SourceUtilisation
	}
}

// processUse is the mean SM utilisation of each process over the last second,
// the longest time between two of the driver's own samples (nvml.h,
// nvmlDeviceGetProcessUtilization); nil where it has none.
func (d *device) processUse() map[int]float64 {
	list, ret := d.GetProcessUtilization(uint64(time.Now().Add(-time.Second).UnixMicro()))
	if ret != nvml.SUCCESS {
		return nil
	}
	use, samples := map[int]float64{}, map[int]float64{}
	for _, u := range list {
		if u.SmUtil > 100 { // garbage, as drivers hand out now and then
			return nil
		}
		use[int(u.Pid)] += float64(u.SmUtil)
		samples[int(u.Pid)]++
	}
	for pid := range use {
		use[pid] /= samples[pid]
	}
	return use
}

// gpmActivity returns false where GPM is supported and does not answer all the same, as
// in a virtual machine or without permission.
func (d *device) gpmActivity(s *gres.Sample) bool {
	if ret := d.GpmSampleGet(d.gpm[1]); ret != nvml.SUCCESS {
		d.gpmTaken = false
		return false
	}
	d.gpm[0], d.gpm[1] = d.gpm[1], d.gpm[0]
	if !d.gpmTaken {
		d.gpmTaken = true
		return true
	}
	get := nvml.GpmMetricsGetType{NumMetrics: 3, Sample1: d.gpm[1], Sample2: d.gpm[0]}
	figures := [...]*figure.Measured{&s.SMActPct, &s.SMOccPct, &s.DRAMPct}
	for i, id := range [...]nvml.GpmMetricId{nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY,
		nvml.GPM_METRIC_DRAM_BW_UTIL} {
		get.Metrics[i].MetricId = uint32(id)
	}
	if ret := d.lib.GpmMetricsGet(&get); ret != nvml.SUCCESS {
		return false
	}
	for i, f := range figures {
		if v := get.Metrics[i].Value; get.Metrics[i].NvmlReturn == uint32(nvml.SUCCESS) && v >= 0 && !math.IsInf(v, 0) {
			*f = figure.Measured(v)
		}
	}
	return !math.IsNaN(float64(s.SMActPct))
}
