// SPDX-License-Identifier: Apache-2.0

package simgpu_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

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
	want(t, "attributes", fmt.Sprint(attr.MultiprocessorCount, attr.GpuInstanceSliceCount, attr.MemorySizeMB),
		"64 4 40320")
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
	simgpu(t, "fault", "0", "hang")
	back := make(chan nvml.Return, 1)
	go func() {
		_, ret := d.GetPowerUsage()
		back <- ret
	}()
	select {
	case ret := <-back:
		t.Errorf("a call came back from a hang: %v", ret)
	case <-time.After(100 * time.Millisecond):
		simgpu(t, "fault", "0", "none")
		select {
		case ret := <-back:
			must(t, "after a hang", ret)
		case <-time.After(time.Minute):
			t.Fatal("a call does not come back after a hang")
		}
	}
	// It ends by itself; a slow machine may come too late for some.
	for try := 1; ; try++ {
		simgpu(t, "fault", "0", "hang:300ms")
		begin := time.Now()
		must(t, "after a short hang", func() nvml.Return { _, ret := d.GetPowerUsage(); return ret }())
		if time.Since(begin) >= 100*time.Millisecond {
			break
		}
		if try == 10 {
			t.Fatal("no call hung for 100 of 300 ms")
		}
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
