// SPDX-License-Identifier: Apache-2.0

package nvml

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// nvmlSetMemoryLimits_v1_t (docs.nvidia.com/deploy/nvml-api, CUDA 13.4; go-nvml does not have it yet).
struct limits {
	const char *name_space;
	unsigned long long soft, hard;
};

static void *find(void *library, const char *name)
{
	return dlsym(library, name);
}

static int set_limits(void *by_uuid, void *set, const char *uuid, const char *group, unsigned long long hard)
{
	struct limits limits = { group, 0, hard };
	void *device = NULL;
	int ret = ((int (*)(const char *, void **))by_uuid)(uuid, &device);

	return ret != 0 ? ret : ((int (*)(void *, struct limits *))set)(device, &limits);
}
*/
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// MemoryLimits sets limits of device memory on cgroups, which the driver or the kernel holds
// their processes to: drivers from R615 on, cgroup v2, no MIG
// (docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html).
type MemoryLimits struct {
	byUUID, set unsafe.Pointer
}

// FindMemoryLimits looks for the call in a library, a name for the dynamic linker or a path, which
// somebody has to Open before it is used. The error says that the driver has none.
func FindMemoryLimits(library string) (MemoryLimits, error) {
	name := C.CString(library)
	defer C.free(unsafe.Pointer(name))
	lib := C.dlopen(name, C.RTLD_LAZY) // never closed: Open has it open as well
	if lib == nil {
		return MemoryLimits{}, fmt.Errorf("load NVML from %s: %s", library, C.GoString(C.dlerror()))
	}
	symbol := func(name string) unsafe.Pointer {
		text := C.CString(name)
		defer C.free(unsafe.Pointer(text))
		return C.find(lib, text)
	}
	m := MemoryLimits{symbol("nvmlDeviceGetHandleByUUID"), symbol("nvmlDeviceSetMemoryLimits_v1")}
	if m.byUUID == nil || m.set == nil {
		return MemoryLimits{}, fmt.Errorf("the driver has no memory limits for cgroups; R615 and later have")
	}
	return m, nil
}

// Set limits what the processes of a cgroup and those below it allocate on a GPU, in MiB; 0: no
// limit. Memory held already counts, and stays. The soft limit is 0: with it MPS ends nobody
// in favour of another. The call may hang with the driver.
func (m MemoryLimits) Set(group, uuid string, mib int64) error {
	hard := C.ulonglong(math.MaxUint64)
	if mib > 0 {
		hard = C.ulonglong(mib * bytesPerMiB)
	}
	device, dir := C.CString(uuid), C.CString(group)
	defer C.free(unsafe.Pointer(device))
	defer C.free(unsafe.Pointer(dir))
	if ret := nvml.Return(C.set_limits(m.byUUID, m.set, device, dir, hard)); ret != nvml.SUCCESS {
		return fmt.Errorf("limit the memory of GPU %s to %d MiB for %s: %w", uuid, mib, group, ret)
	}
	return nil
}
