/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: what a device is, where it sits, its modes and MIG instances. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "nvml_view.h"

enum { NVML_BRAND_NVIDIA = 14, NVML_TOPOLOGY_INTERNAL = 0, NVML_TOPOLOGY_NODE = 40, NVML_TOPOLOGY_SYSTEM = 50 };

/* A call that answers one number, `value`, computed from the view v. mig_too: MIG handles may ask. */
#define ANSWER(name, type, mig_too, value)                \
	nvmlReturn_t name(nvmlDevice_t device, type *out) \
	{                                                 \
		OPEN(v, device, out != NULL);             \
		if (!(mig_too) && v.mig != NULL)          \
			return NVML_ERROR_NOT_SUPPORTED;  \
		*out = (value);                           \
		return NVML_SUCCESS;                      \
	}

ANSWER(nvmlDeviceGetIndex, unsigned int, true, v.mig == NULL ? v.index : v.mig->mig - 1)
ANSWER(nvmlDeviceGetMinorNumber, unsigned int, false, v.index)
ANSWER(nvmlDeviceGetNumaNodeId, unsigned int, false, model_numa_node(v.index, v.s->gpus))
ANSWER(nvmlDeviceGetBrand, int, false, NVML_BRAND_NVIDIA)
ANSWER(nvmlDeviceGetArchitecture, unsigned int, false, v.model->arch)
ANSWER(nvmlDeviceGetComputeMode, unsigned int, false, v.gpu->compute_mode)
ANSWER(nvmlDeviceGetPersistenceMode, unsigned int, false, 1)
ANSWER(nvmlDeviceGetMaxMigDeviceCount, unsigned int, false, SIM_MAX_MIG)
ANSWER(nvmlDeviceIsMigDeviceHandle, unsigned int, true, v.mig != NULL)

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	OPEN(v, device, major != NULL && minor != NULL);

	*major = (int)v.model->cc_major;
	*minor = (int)v.model->cc_minor;
	return NVML_SUCCESS;
}

/* The CPUs of the host, shared out among the GPUs' NUMA nodes. */
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
	OPEN(v, device, words > 0 && set != NULL && v.mig == NULL);
	unsigned int cpus = (unsigned int)sysconf(_SC_NPROCESSORS_CONF), nodes = model_numa_node(v.s->gpus - 1, v.s->gpus) + 1;
	unsigned int node = model_numa_node(v.index, v.s->gpus), bits = 8 * sizeof(*set);

	memset(set, 0, words * sizeof(*set));
	for (unsigned int n = 0; n < cpus && n < words * bits; n++)
		if (n * nodes / cpus == node)
			set[n / bits] |= 1ul << n % bits;
	return NVML_SUCCESS;
}

static nvmlReturn_t pci_info(nvmlDevice_t device, nvmlPciInfo_t *pci, size_t size)
{
	OPEN(v, device, pci != NULL);
	nvmlPciInfo_t p = { .domain = 0 };

	p.bus = model_pci_bus(v.index);
	p.pciDeviceId = v.model->pci_device_id;
	p.pciSubSystemId = 0x146310DE;
	snprintf(p.busIdLegacy, sizeof(p.busIdLegacy), "0000:%02X:00.0", p.bus);
	snprintf(p.busId, sizeof(p.busId), "00000000:%02X:00.0", p.bus);
	memcpy(pci, &p, size);
	return NVML_SUCCESS;
}

/* Callers of the first two versions may have a struct that ends before the long bus id. */
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return pci_info(device, pci, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return pci_info(device, pci, offsetof(nvmlPciInfo_t, busId));
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return pci_info(device, pci, sizeof(*pci));
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned int *level)
{
	unsigned int x, y, n, m;
	nvmlReturn_t rc;

	if (level == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((rc = nvmlDeviceGetNumaNodeId(a, &x)) != NVML_SUCCESS ||
	    (rc = nvmlDeviceGetNumaNodeId(b, &y)) != NVML_SUCCESS ||
	    (rc = nvmlDeviceGetIndex(a, &n)) != NVML_SUCCESS || (rc = nvmlDeviceGetIndex(b, &m)) != NVML_SUCCESS)
		return rc;
	*level = n == m ? NVML_TOPOLOGY_INTERNAL : x == y ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
	return NVML_SUCCESS;
}

/* NVSwitch joins every GPU with every other, for reads, writes and atomics. */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, unsigned int capability, unsigned int *status)
{
	unsigned int index;
	nvmlReturn_t rc;

	if (status == NULL || capability > 4)
		return NVML_ERROR_INVALID_ARGUMENT;
	if ((rc = nvmlDeviceGetIndex(a, &index)) == NVML_SUCCESS)
		rc = nvmlDeviceGetIndex(b, &index);
	*status = 0;
	return rc;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active)
{
	OPEN(v, device, active != NULL && link < v.model->nvlinks);

	*active = 1;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned int mode)
{
	uint32_t index;
	{
		OPEN(v, device, mode <= SIM_EXCLUSIVE_PROCESS);
		if (mode == 1 || v.mig != NULL) /* exclusive-thread has gone from the driver */
			return NVML_ERROR_NOT_SUPPORTED;
		index = v.index;
	}
	if (geteuid() != 0)
		return NVML_ERROR_NO_PERMISSION;
	sim_begin(view_sim())->gpu[index].compute_mode = mode;
	sim_commit(view_sim(), false);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	OPEN(v, device, current != NULL && pending != NULL && v.mig == NULL);

	*current = *pending = view_mig_enabled(&v);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	OPEN(v, device, mig != NULL && v.mig == NULL && index < SIM_MAX_MIG);

	if (!view_mig_enabled(&v) || index >= v.gpu->units)
		return NVML_ERROR_NOT_FOUND;
	*mig = handle_mig(v.gpu->first_unit + index);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
	OPEN(v, mig, device != NULL && v.mig != NULL);

	*device = handle_gpu(v.index);
	return NVML_SUCCESS;
}

/* Each MIG device is one GPU instance, numbered from 1, with one compute instance. */
static nvmlReturn_t instance_id(nvmlDevice_t device, unsigned int *id, bool gpu_instance)
{
	OPEN(v, device, id != NULL);

	if (v.mig == NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	*id = gpu_instance ? v.mig->mig : 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return instance_id(device, id, true);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	return instance_id(device, id, false);
}

/* Answers for MIG devices only, as the real call. */
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *a)
{
	OPEN(v, device, a != NULL);

	if (v.mig == NULL)
		return NVML_ERROR_NOT_SUPPORTED;
	memset(a, 0, sizeof(*a));
	a->multiprocessorCount = (unsigned int)(v.mig->share * v.model->sms + 0.5);
	a->gpuInstanceSliceCount = a->computeInstanceSliceCount = (unsigned int)(v.mig->profile[0] - '0');
	a->sharedCopyEngineCount = a->gpuInstanceSliceCount;
	a->memorySizeMB = v.mig->bytes / MIB;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *a)
{
	return nvmlDeviceGetAttributes_v2(device, a);
}
