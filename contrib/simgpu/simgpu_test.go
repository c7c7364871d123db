// SPDX-License-Identifier: Apache-2.0

// Package simgpu_test opens the simulated libnvidia-ml.so.1 with go-nvml, as carma-node does, and compares every
// call with the state that the programs keep.
package simgpu_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// build holds the programs and the library, made once by TestMain.
var build string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "simgpu")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		build = dir
		// The jobs of other users that a test may start must reach the programs.
		if err := os.Chmod(dir, 0o755); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		out, err := exec.Command("make", "BIN="+dir, "LIB="+dir, "BUILD="+filepath.Join(dir, "build"), "all").CombinedOutput()
		if err != nil {
			fmt.Fprintf(os.Stderr, "make: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

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
	{"h100", "NVIDIA H100 80GB HBM3", 8, 81559, 551, nvml.DEVICE_ARCH_HOPPER, 9, true, 18, 700, 58 * 1.75, a100At60 * 1.75},
	{"h200", "NVIDIA H200", 8, 143771, 611, nvml.DEVICE_ARCH_HOPPER, 9, true, 18, 700, 58 * 1.75, a100At60 * 1.75},
}

type gpuState struct {
	UUID       string  `json:"uuid"`
	PCIBusID   string  `json:"pci_bus_id"`
	UsedMiB    uint64  `json:"memory_used_mib"`
	SMACT      float64 `json:"smact"`
	PowerW     float64 `json:"power_w"`
	EnergyJ    float64 `json:"energy_j"`
	MIG        []struct{ UUID, Profile string }
	ComputeMod string `json:"compute_mode"`
}

type state struct {
	GPUs      []gpuState
	Processes []struct {
		GPU       int
		PID       uint32
		Kind      string
		MemoryMiB uint64 `json:"memory_mib"`
	}
}

func simgpu(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(filepath.Join(build, "simgpu"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("simgpu %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func show(t *testing.T) state {
	t.Helper()
	var s state
	if err := json.Unmarshal([]byte(simgpu(t, "show", "--json")), &s); err != nil {
		t.Fatalf("simgpu show --json: %v", err)
	}
	return s
}

// open makes a state and initialises the library on it.
func open(t *testing.T, args ...string) nvml.Interface {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	simgpu(t, append([]string{"create", path}, args...)...)
	t.Setenv("SIMGPU_STATE", path)
	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(build, "libnvidia-ml.so.1")))
	must(t, "Init", lib.Init())
	t.Cleanup(func() { must(t, "Shutdown", lib.Shutdown()) })
	return lib
}

// start runs a program until the test ends; env entries are added.
func start(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(filepath.Join(build, args[0]), args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// eventually polls: the time limit is only there to end a test that fails.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func must(t *testing.T, call string, ret nvml.Return) {
	t.Helper()
	want(t, call, ret, nvml.SUCCESS)
}

func want[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// value checks a call's return code and hands its value on.
func value[T any](t *testing.T, call string) func(T, nvml.Return) T {
	return func(v T, ret nvml.Return) T {
		t.Helper()
		must(t, call, ret)
		return v
	}
}

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func device(t *testing.T, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	return value[nvml.Device](t, "DeviceGetHandleByIndex")(lib.DeviceGetHandleByIndex(index))
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

	want(t, "GetPersistenceMode", value[nvml.EnableState](t, "GetPersistenceMode")(d.GetPersistenceMode()), nvml.FEATURE_ENABLED)
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

// text is a C string in an array of any 8-bit type.
func text[T int8 | uint8](b []T) string {
	var s strings.Builder
	for _, c := range b {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

func checkPairs(t *testing.T, lib nvml.Interface, m model) {
	a, b, far := device(t, lib, 0), device(t, lib, 1), device(t, lib, m.gpus-1)
	level := value[nvml.GpuTopologyLevel](t, "GetTopologyCommonAncestor")
	want(t, "same socket", level(a.GetTopologyCommonAncestor(b)), nvml.TOPOLOGY_NODE)
	want(t, "other socket", level(a.GetTopologyCommonAncestor(far)), nvml.TOPOLOGY_SYSTEM)
	want(t, "itself", level(a.GetTopologyCommonAncestor(a)), nvml.TOPOLOGY_INTERNAL)
	status := value[nvml.GpuP2PStatus](t, "GetP2PStatus")(a.GetP2PStatus(far, nvml.P2P_CAPS_INDEX_NVLINK))
	want(t, "GetP2PStatus", status, nvml.P2P_STATUS_OK)
	want(t, "GetNvLinkState", value[nvml.EnableState](t, "GetNvLinkState")(a.GetNvLinkState(m.links-1)), nvml.FEATURE_ENABLED)
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
	want(t, "event reasons", value[uint64](t, "GetCurrentClocksEventReasons")(d.GetCurrentClocksEventReasons()), nvml.ClocksEventReasonGpuIdle)
	want(t, "throttle reasons", value[uint64](t, "GetCurrentClocksThrottleReasons")(d.GetCurrentClocksThrottleReasons()), 1)
	_, ret := d.GetProcessUtilization(0)
	want(t, "GetProcessUtilization", ret, nvml.ERROR_NOT_FOUND)

	want(t, "compute mode", value[nvml.ComputeMode](t, "GetComputeMode")(d.GetComputeMode()), nvml.COMPUTEMODE_DEFAULT)
	want(t, "SetComputeMode(EXCLUSIVE_THREAD)", d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_THREAD), nvml.ERROR_NOT_SUPPORTED)
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
	job := start(t, []string{"CUDA_VISIBLE_DEVICES=" + before.GPUs[0].UUID}, "simjob", "--mem", "4G", "--smact", "60", "--duration", "100h")
	pid := uint32(job.Process.Pid)
	eventually(t, "the job is on GPU 0", func() bool { return show(t).GPUs[0].UsedMiB == 4096 })

	checkMemory(t, d, m, 4096)
	procs := value[[]nvml.ProcessInfo](t, "compute")(d.GetComputeRunningProcesses())
	want(t, "compute processes", fmt.Sprint(procs), fmt.Sprint([]nvml.ProcessInfo{{Pid: pid, UsedGpuMemory: 4 << 30,
		GpuInstanceId: math.MaxUint32, ComputeInstanceId: math.MaxUint32}}))
	want(t, "MPS processes", len(value[[]nvml.ProcessInfo](t, "MPS")(d.GetMPSComputeRunningProcesses())), 0)
	want(t, "utilisation", value[nvml.Utilization](t, "GetUtilizationRates")(d.GetUtilizationRates()), nvml.Utilization{Gpu: 75, Memory: 24})
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

	low := show(t).GPUs[0].EnergyJ
	energy := float64(value[uint64](t, "GetTotalEnergyConsumption")(d.GetTotalEnergyConsumption())) / 1000
	high := show(t).GPUs[0].EnergyJ
	if energy < low-0.001 || energy > high || energy <= before.GPUs[0].EnergyJ {
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

func TestMIG(t *testing.T) {
	lib := open(t, "--model", "h100", "--gpus", "2", "--mig", "0=3g.40gb,0=4g.40gb")
	d := device(t, lib, 0)
	uuid := show(t).GPUs[0].MIG[1].UUID
	start(t, []string{"CUDA_VISIBLE_DEVICES=" + uuid}, "simjob", "--mem", "4G", "--smact", "100", "--duration", "100h")
	eventually(t, "the job is there", func() bool { return show(t).GPUs[0].UsedMiB == 4096 })

	current, _, ret := d.GetMigMode()
	must(t, "GetMigMode", ret)
	want(t, "MIG mode", current, nvml.DEVICE_MIG_ENABLE)
	mig := value[nvml.Device](t, "GetMigDeviceHandleByIndex")(d.GetMigDeviceHandleByIndex(1))
	want(t, "by UUID", value[nvml.Device](t, "ByUUID")(lib.DeviceGetHandleByUUID(uuid)), mig)
	want(t, "IsMigDeviceHandle", value[bool](t, "IsMigDeviceHandle")(mig.IsMigDeviceHandle()), true)
	want(t, "parent", value[nvml.Device](t, "parent")(mig.GetDeviceHandleFromMigDeviceHandle()), d)
	want(t, "GPU instance", value[int](t, "GetGpuInstanceId")(mig.GetGpuInstanceId()), 2)
	want(t, "compute instance", value[int](t, "GetComputeInstanceId")(mig.GetComputeInstanceId()), 0)
	want(t, "name", value[string](t, "GetName")(mig.GetName()), "NVIDIA H100 80GB HBM3 MIG 4g.40gb")
	attr := value[nvml.DeviceAttributes](t, "GetAttributes")(mig.GetAttributes())
	want(t, "attributes", fmt.Sprint(attr.MultiprocessorCount, attr.GpuInstanceSliceCount, attr.MemorySizeMB), "64 4 40320")
	want(t, "memory", value[nvml.Memory](t, "GetMemoryInfo")(mig.GetMemoryInfo()).Used, 4<<30)
	other := value[nvml.Device](t, "GetMigDeviceHandleByIndex")(d.GetMigDeviceHandleByIndex(0))
	want(t, "memory of the other", value[nvml.Memory](t, "GetMemoryInfo")(other.GetMemoryInfo()).Used, 0)
	procs := value[[]nvml.ProcessInfo](t, "compute")(d.GetComputeRunningProcesses())
	want(t, "processes of the GPU", len(procs), 1)
	want(t, "instance of the process", procs[0].GpuInstanceId, 2)
	want(t, "processes of the other", len(value[[]nvml.ProcessInfo](t, "compute")(other.GetComputeRunningProcesses())), 0)
	_, ret = mig.GetPowerUsage()
	want(t, "power of an instance", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetUtilizationRates()
	want(t, "utilisation under MIG", ret, nvml.ERROR_NOT_SUPPORTED)

	a := value[nvml.GpmSample](t, "GpmSampleAlloc")(lib.GpmSampleAlloc())
	b := value[nvml.GpmSample](t, "GpmSampleAlloc")(lib.GpmSampleAlloc())
	defer a.Free()
	defer b.Free()
	must(t, "GpmMigSampleGet", a.MigGet(d, 2))
	time.Sleep(10 * time.Millisecond)
	must(t, "GpmMigSampleGet", b.MigGet(d, 2))
	metrics := nvml.GpmMetricsGetType{NumMetrics: 1, Sample1: a, Sample2: b}
	metrics.Metrics[0].MetricId = uint32(nvml.GPM_METRIC_SM_UTIL)
	must(t, "GpmMetricsGet", lib.GpmMetricsGet(&metrics))
	near(t, "SM_UTIL of the instance", metrics.Metrics[0].Value, 100, 1e-6)
}

func TestFaults(t *testing.T) {
	lib := open(t, "--model", "dgx-a100")
	d := device(t, lib, 0)
	job := start(t, []string{"CUDA_VISIBLE_DEVICES=0"}, "simjob", "--mem", "4G", "--smact", "60", "--duration", "100h")
	eventually(t, "the job is there", func() bool { return show(t).GPUs[0].UsedMiB == 4096 })

	simgpu(t, "fault", "0", "error=999")
	_, ret := d.GetPowerUsage()
	want(t, "error", ret, nvml.ERROR_UNKNOWN)
	simgpu(t, "fault", "0", "lost")
	_, ret = d.GetUUID()
	want(t, "lost", ret, nvml.ERROR_GPU_IS_LOST)
	simgpu(t, "fault", "0", "garbage-memory")
	memory := value[nvml.Memory](t, "GetMemoryInfo")(d.GetMemoryInfo())
	want(t, "garbage-memory", memory.Free == 0 && memory.Used > memory.Total, true)
	simgpu(t, "fault", "0", "garbage-pids")
	procs := value[[]nvml.ProcessInfo](t, "compute")(d.GetComputeRunningProcesses())
	want(t, "garbage-pids", procs[0].UsedGpuMemory, uint64(job.Process.Pid))
	simgpu(t, "fault", "0", "hang:300ms")
	begin := time.Now()
	must(t, "after a hang", func() nvml.Return { _, ret := d.GetPowerUsage(); return ret }())
	if passed := time.Since(begin); passed < 100*time.Millisecond {
		t.Errorf("the call came back after %v", passed)
	}
	simgpu(t, "fault", "0", "none")
	must(t, "none", func() nvml.Return { _, ret := d.GetUUID(); return ret }())
}

func TestMPS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to set the compute mode")
	}
	lib := open(t, "--model", "h100", "--gpus", "1")
	d := device(t, lib, 0)
	must(t, "SetComputeMode", d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	simjob := []string{"simjob", "--mem", "4G", "--smact", "60", "--duration", "100h"}
	alone := start(t, nil, simjob...)
	eventually(t, "the job is there", func() bool { return show(t).GPUs[0].UsedMiB == 4096 })
	out, err := exec.Command(filepath.Join(build, "simjob"), simjob[1:]...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "CUDA error: CUDA-capable device(s) is/are busy or unavailable") {
		t.Errorf("a second process on an exclusive GPU: %v\n%s", err, out)
	}
	alone.Process.Kill()
	alone.Wait()

	dir := t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", dir)
	t.Setenv("CUDA_MPS_LOG_DIRECTORY", dir)
	control := filepath.Join(build, "nvidia-cuda-mps-control")
	if out, err := exec.Command(control, "-d").CombinedOutput(); err != nil {
		t.Fatalf("nvidia-cuda-mps-control -d: %v\n%s", err, out)
	}
	command := func(line string) string {
		cmd := exec.Command(control)
		cmd.Stdin = strings.NewReader(line + "\n")
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	t.Cleanup(func() { command("quit -f") })
	a, b := start(t, nil, simjob...), start(t, nil, simjob...)
	eventually(t, "both jobs are there", func() bool { return show(t).GPUs[0].UsedMiB == 2*4096+28 })

	server, err := strconv.Atoi(command("get_server_list"))
	if err != nil {
		t.Fatal(err)
	}
	pids := func(procs []nvml.ProcessInfo) map[uint32]uint64 {
		m := map[uint32]uint64{}
		for _, p := range procs {
			m[p.Pid] = p.UsedGpuMemory >> 20
		}
		return m
	}
	clients := map[uint32]uint64{uint32(a.Process.Pid): 4096, uint32(b.Process.Pid): 4096}
	got := pids(value[[]nvml.ProcessInfo](t, "MPS")(d.GetMPSComputeRunningProcesses()))
	want(t, "MPS processes", fmt.Sprint(got), fmt.Sprint(clients))
	clients[uint32(server)] = 28
	got = pids(value[[]nvml.ProcessInfo](t, "compute")(d.GetComputeRunningProcesses()))
	want(t, "compute processes", fmt.Sprint(got), fmt.Sprint(clients))
	want(t, "utilisation", value[nvml.Utilization](t, "GetUtilizationRates")(d.GetUtilizationRates()).Gpu, 94)
	near(t, "power at 1 - 0.4 x 0.4", float64(value[uint32](t, "GetPowerUsage")(d.GetPowerUsage())), (256+17*0.2)*1750, 1)
}
