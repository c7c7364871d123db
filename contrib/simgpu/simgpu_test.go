// SPDX-License-Identifier: Apache-2.0

// Package simgpu_test opens the simulated libnvidia-ml.so.1 with go-nvml, as carma-node does, and compares every
// call with the state that the programs keep.
package simgpu_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// model is what the library must say of a whole GPU.
type model struct {
	key, name        string
	gpus             int
	totalMiB         uint64
	reservedMiB      uint64
	arch             nvml.DeviceArchitecture
	major            int
	gpm              bool
	links            int
	limitW           uint32
	powerIdle, power float64 // watts, idle and at SM activity 0.6
}

// At 0.6 the A100's curve is a third below its point at 0.65 (232 W) on the line from 0.5 (204 W).
const a100At60 = 204 + 28*2.0/3

var models = []model{
	{"dgx-a100", "NVIDIA A100-SXM4-40GB", 4, 40536, 33, nvml.DEVICE_ARCH_AMPERE, 8, false, 12, 400, 58, a100At60},
	{"h100", "NVIDIA H100 80GB HBM3", 8, 81559, 551, nvml.DEVICE_ARCH_HOPPER, 9, true, 18, 700, 58 * 1.75,
		a100At60 * 1.75},
	{"h200", "NVIDIA H200", 8, 143771, 611, nvml.DEVICE_ARCH_HOPPER, 9, true, 18, 700, 58 * 1.75, a100At60 * 1.75},
}

func TestWithoutState(t *testing.T) {
	t.Setenv("SIMGPU_STATE", "")
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(build, "libnvidia-ml.so.1")))
	want(t, "Init", lib.Init(), nvml.ERROR_DRIVER_NOT_LOADED)
	want(t, "Error()", nvml.ERROR_DRIVER_NOT_LOADED.Error(), "Driver Not Loaded")
}

func TestModels(t *testing.T) {
	for _, m := range models {
		t.Run(m.key, func(t *testing.T) {
			lib := open(t, "--model", m.key, "--time-scale", "10")
			s := show(t)
			checkSystem(t, lib, m)
			for i, g := range s.GPUs {
				checkIdentity(t, lib, m, i, g)
			}
			checkPairs(t, lib, m)
			checkIdle(t, lib, m)
			checkBusy(t, lib, m)
		})
	}
}

func checkSystem(t *testing.T, lib nvml.Interface, m model) {
	driver := value[string](t, "SystemGetDriverVersion")(lib.SystemGetDriverVersion())
	want(t, "SystemGetNVMLVersion", value[string](t, "SystemGetNVMLVersion")(lib.SystemGetNVMLVersion()), "12."+driver)
	want(t, "SystemGetCudaDriverVersion", value[int](t, "v1")(lib.SystemGetCudaDriverVersion()), 12080)
	want(t, "SystemGetCudaDriverVersion_v2", value[int](t, "v2")(lib.SystemGetCudaDriverVersion_v2()), 12080)
	want(t, "DeviceGetCount", value[int](t, "DeviceGetCount")(lib.DeviceGetCount()), m.gpus)
	must(t, "InitWithFlags", lib.InitWithFlags(0))
	must(t, "Shutdown of the second Init", lib.Shutdown())
	_, ret := lib.DeviceGetHandleByIndex(m.gpus)
	want(t, "DeviceGetHandleByIndex beyond the last", ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = lib.DeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
	want(t, "DeviceGetHandleByUUID of no GPU", ret, nvml.ERROR_NOT_FOUND)
}

func checkIdentity(t *testing.T, lib nvml.Interface, m model, i int, g gpuState) {
	d := device(t, lib, i)
	want(t, "DeviceGetHandleByUUID", value[nvml.Device](t, "ByUUID")(lib.DeviceGetHandleByUUID(g.UUID)), d)
	want(t, "DeviceGetHandleByPciBusId", value[nvml.Device](t, "ByPciBusId")(lib.DeviceGetHandleByPciBusId(g.PCIBusID)), d)
	want(t, "GetIndex", value[int](t, "GetIndex")(d.GetIndex()), i)
	want(t, "GetMinorNumber", value[int](t, "GetMinorNumber")(d.GetMinorNumber()), i)
	want(t, "GetUUID", value[string](t, "GetUUID")(d.GetUUID()), g.UUID)
	want(t, "GetName", value[string](t, "GetName")(d.GetName()), m.name)
	want(t, "GetBrand", value[nvml.BrandType](t, "GetBrand")(d.GetBrand()), nvml.BRAND_NVIDIA)
	want(t, "GetArchitecture", value[nvml.DeviceArchitecture](t, "GetArchitecture")(d.GetArchitecture()), m.arch)
	want(t, "GetNumaNodeId", value[int](t, "GetNumaNodeId")(d.GetNumaNodeId()), i/(m.gpus/2))
	major, minor, ret := d.GetCudaComputeCapability()
	must(t, "GetCudaComputeCapability", ret)
	want(t, "compute capability", [2]int{major, minor}, [2]int{m.major, 0})
	pci := value[nvml.PciInfo](t, "GetPciInfo")(d.GetPciInfo())
	want(t, "PciInfo.BusId", text(pci.BusId[:]), g.PCIBusID)
	want(t, "PciInfo.BusIdLegacy", text(pci.BusIdLegacy[:]), g.PCIBusID[4:])
	want(t, "PciInfo.Bus", fmt.Sprintf("%02X", pci.Bus), g.PCIBusID[9:11])
	want(t, "PciInfo vendor", pci.PciDeviceId&0xffff, 0x10de)

	want(t, "GetPersistenceMode", value[nvml.EnableState](t, "GetPersistenceMode")(d.GetPersistenceMode()),
		nvml.FEATURE_ENABLED)
	current, pending, ret := d.GetMigMode()
	must(t, "GetMigMode", ret)
	want(t, "MIG mode", [2]int{current, pending}, [2]int{nvml.DEVICE_MIG_DISABLE, nvml.DEVICE_MIG_DISABLE})
	want(t, "GetMaxMigDeviceCount", value[int](t, "GetMaxMigDeviceCount")(d.GetMaxMigDeviceCount()), 7)
	want(t, "IsMigDeviceHandle", value[bool](t, "IsMigDeviceHandle")(d.IsMigDeviceHandle()), false)
	_, ret = d.GetMigDeviceHandleByIndex(0)
	want(t, "GetMigDeviceHandleByIndex", ret, nvml.ERROR_NOT_FOUND)
	_, ret = d.GetDeviceHandleFromMigDeviceHandle()
	want(t, "GetDeviceHandleFromMigDeviceHandle", ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = d.GetGpuInstanceId()
	want(t, "GetGpuInstanceId", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetAttributes()
	want(t, "GetAttributes", ret, nvml.ERROR_NOT_SUPPORTED)
}

func checkPairs(t *testing.T, lib nvml.Interface, m model) {
	a, b, far := device(t, lib, 0), device(t, lib, 1), device(t, lib, m.gpus-1)
	level := value[nvml.GpuTopologyLevel](t, "GetTopologyCommonAncestor")
	want(t, "same socket", level(a.GetTopologyCommonAncestor(b)), nvml.TOPOLOGY_NODE)
	want(t, "other socket", level(a.GetTopologyCommonAncestor(far)), nvml.TOPOLOGY_SYSTEM)
	want(t, "itself", level(a.GetTopologyCommonAncestor(a)), nvml.TOPOLOGY_INTERNAL)
	status := value[nvml.GpuP2PStatus](t, "GetP2PStatus")(a.GetP2PStatus(far, nvml.P2P_CAPS_INDEX_NVLINK))
	want(t, "GetP2PStatus", status, nvml.P2P_STATUS_OK)
	want(t, "GetNvLinkState", value[nvml.EnableState](t, "GetNvLinkState")(a.GetNvLinkState(m.links-1)),
		nvml.FEATURE_ENABLED)
	_, ret := a.GetNvLinkState(m.links)
	want(t, "GetNvLinkState beyond the last", ret, nvml.ERROR_INVALID_ARGUMENT)
}

func checkIdle(t *testing.T, lib nvml.Interface, m model) {
	d := device(t, lib, 1)
	checkMemory(t, d, m, 0)
	want(t, "compute processes", len(value[[]nvml.ProcessInfo](t, "compute")(d.GetComputeRunningProcesses())), 0)
	want(t, "graphics processes", len(value[[]nvml.ProcessInfo](t, "graphics")(d.GetGraphicsRunningProcesses())), 0)
	want(t, "utilisation", value[nvml.Utilization](t, "GetUtilizationRates")(d.GetUtilizationRates()), nvml.Utilization{})
	want(t, "power", value[uint32](t, "GetPowerUsage")(d.GetPowerUsage()), uint32(m.powerIdle*1000))
	want(t, "limit", value[uint32](t, "GetPowerManagementLimit")(d.GetPowerManagementLimit()), m.limitW*1000)
	want(t, "temperature", value[uint32](t, "GetTemperature")(d.GetTemperature(nvml.TEMPERATURE_GPU)), 30)
	want(t, "event reasons", value[uint64](t, "GetCurrentClocksEventReasons")(d.GetCurrentClocksEventReasons()),
		nvml.ClocksEventReasonGpuIdle)
	want(t, "throttle reasons", value[uint64](t, "GetCurrentClocksThrottleReasons")(d.GetCurrentClocksThrottleReasons()),
		1)
	_, ret := d.GetProcessUtilization(0)
	want(t, "GetProcessUtilization", ret, nvml.ERROR_NOT_FOUND)

	want(t, "compute mode", value[nvml.ComputeMode](t, "GetComputeMode")(d.GetComputeMode()), nvml.COMPUTEMODE_DEFAULT)
	want(t, "SetComputeMode(EXCLUSIVE_THREAD)", d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_THREAD),
		nvml.ERROR_NOT_SUPPORTED)
	if os.Geteuid() != 0 {
		want(t, "SetComputeMode", d.SetComputeMode(nvml.COMPUTEMODE_PROHIBITED), nvml.ERROR_NO_PERMISSION)
		return
	}
	must(t, "SetComputeMode", d.SetComputeMode(nvml.COMPUTEMODE_PROHIBITED))
	want(t, "compute mode", value[nvml.ComputeMode](t, "GetComputeMode")(d.GetComputeMode()), nvml.COMPUTEMODE_PROHIBITED)
	want(t, "mode in the state", show(t).GPUs[1].ComputeMod, "prohibited")
	must(t, "SetComputeMode", d.SetComputeMode(nvml.COMPUTEMODE_DEFAULT))
}

func checkMemory(t *testing.T, d nvml.Device, m model, usedMiB uint64) {
	const mib = 1 << 20
	v1 := value[nvml.Memory](t, "GetMemoryInfo")(d.GetMemoryInfo())
	want(t, "memory v1", v1, nvml.Memory{Total: m.totalMiB * mib, Used: (m.reservedMiB + usedMiB) * mib,
		Free: (m.totalMiB - m.reservedMiB - usedMiB) * mib})
	v2 := value[nvml.Memory_v2](t, "GetMemoryInfo_v2")(d.GetMemoryInfo_v2())
	want(t, "memory v2", v2, nvml.Memory_v2{Version: v2.Version, Total: m.totalMiB * mib, Reserved: m.reservedMiB * mib,
		Used: usedMiB * mib, Free: (m.totalMiB - m.reservedMiB - usedMiB) * mib})
}

// checkBusy looks at GPU 0 with one job of 60 % SM activity on it.
func checkBusy(t *testing.T, lib nvml.Interface, m model) {
	d := device(t, lib, 0)
	before := show(t)
	job := start(t, []string{"CUDA_VISIBLE_DEVICES=" + before.GPUs[0].UUID}, "simjob", "--mem", "4G", "--smact", "60",
		"--duration", "100h")
	pid := uint32(job.Process.Pid)
	eventually(t, "the job is on GPU 0", func() bool { return show(t).GPUs[0].UsedMiB == 4096 })

	checkMemory(t, d, m, 4096)
	procs := value[[]nvml.ProcessInfo](t, "compute")(d.GetComputeRunningProcesses())
	want(t, "compute processes", fmt.Sprint(procs), fmt.Sprint([]nvml.ProcessInfo{{Pid: pid, UsedGpuMemory: 4 << 30,
		GpuInstanceId: math.MaxUint32, ComputeInstanceId: math.MaxUint32}}))
	want(t, "MPS processes", len(value[[]nvml.ProcessInfo](t, "MPS")(d.GetMPSComputeRunningProcesses())), 0)
	want(t, "utilisation", value[nvml.Utilization](t, "GetUtilizationRates")(d.GetUtilizationRates()),
		nvml.Utilization{Gpu: 75, Memory: 24})
	near(t, "power", float64(value[uint32](t, "GetPowerUsage")(d.GetPowerUsage())), m.power*1000, 1)
	want(t, "event reasons", value[uint64](t, "GetCurrentClocksEventReasons")(d.GetCurrentClocksEventReasons()), 0)
	var samples []nvml.ProcessUtilizationSample
	eventually(t, "process samples", func() bool { // a sample is new every sixth of a second
		var ret nvml.Return
		samples, ret = d.GetProcessUtilization(0)
		return ret == nvml.SUCCESS
	})
	want(t, "process utilisation", fmt.Sprint(len(samples), samples[0].Pid, samples[0].SmUtil), fmt.Sprint(1, pid, 75))
	_, ret := d.GetProcessUtilization(uint64(time.Now().Add(time.Hour).UnixMicro()))
	want(t, "process utilisation, nothing newer", ret, nvml.ERROR_NOT_FOUND)

	// Power times the time of whoever reads the counter, a tenth of the simulated one.
	low := show(t).GPUs[0].EnergyJ
	energy := 10 * float64(value[uint64](t, "GetTotalEnergyConsumption")(d.GetTotalEnergyConsumption())) / 1000
	high := show(t).GPUs[0].EnergyJ
	if energy < low-0.01 || energy > high || energy <= before.GPUs[0].EnergyJ {
		t.Errorf("energy %v J is not between %v and %v", energy, low, high)
	}
	checkGPM(t, lib, d, m)
	job.Process.Kill()
	job.Wait()
	eventually(t, "a killed job is off the GPU", func() bool {
		procs, ret := d.GetComputeRunningProcesses()
		return ret == nvml.SUCCESS && len(procs) == 0
	})
	checkMemory(t, d, m, 0)
}

func checkGPM(t *testing.T, lib nvml.Interface, d nvml.Device, m model) {
	support := value[nvml.GpmSupport](t, "GpmQueryDeviceSupport")(d.GpmQueryDeviceSupport())
	want(t, "GPM support", support.IsSupportedDevice != 0, m.gpm)
	a := value[nvml.GpmSample](t, "GpmSampleAlloc")(lib.GpmSampleAlloc())
	b := value[nvml.GpmSample](t, "GpmSampleAlloc")(lib.GpmSampleAlloc())
	defer a.Free()
	defer b.Free()
	if !m.gpm {
		want(t, "GpmSampleGet", a.Get(d), nvml.ERROR_NOT_SUPPORTED)
		return
	}
	must(t, "GpmSampleGet", a.Get(d))
	time.Sleep(10 * time.Millisecond)
	must(t, "GpmSampleGet", b.Get(d))
	metrics := nvml.GpmMetricsGetType{NumMetrics: 5, Sample1: a, Sample2: b}
	ids := []nvml.GpmMetricId{nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY,
		nvml.GPM_METRIC_DRAM_BW_UTIL, nvml.GPM_METRIC_NVDEC_0_UTIL}
	for i, id := range ids {
		metrics.Metrics[i].MetricId = uint32(id)
	}
	must(t, "GpmMetricsGet", lib.GpmMetricsGet(&metrics))
	for i, v := range []float64{75, 60, 30, 24} {
		want(t, "metric's return", nvml.Return(metrics.Metrics[i].NvmlReturn), nvml.SUCCESS)
		near(t, fmt.Sprint("metric ", ids[i]), metrics.Metrics[i].Value, v, 1e-6)
	}
	want(t, "unknown metric's return", nvml.Return(metrics.Metrics[4].NvmlReturn), nvml.ERROR_NOT_SUPPORTED)
	want(t, "GpmMigSampleGet without MIG", a.MigGet(d, 1), nvml.ERROR_INVALID_ARGUMENT)
}
