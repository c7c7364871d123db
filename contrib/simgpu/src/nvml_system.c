/* SPDX-License-Identifier: Apache-2.0 */
/* NVML: the node, and the ways to a device handle. */
#include <stdio.h>
#include <string.h>

#include "nvml_view.h"

#define DRIVER_VERSION "570.172.08"
#define CUDA_VERSION 12080

const char *nvmlErrorString(nvmlReturn_t rc)
{
	static const char *const text[] = {
		"Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
		"Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
		"Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
		"Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
		"GPU access blocked by the operating system", "Driver/library version mismatch", "In use by another client",
		"Insufficient Memory", "No data", "VGPU ECC not supported", "Insufficient resources",
		"Frequency not supported", "Argument version mismatch", "Deprecated", "Not Ready", "GPU Not Found",
		"Invalid State", "Reset type not supported",
	};

	return rc >= 0 && (size_t)rc < sizeof(text) / sizeof(text[0]) ? text[rc] : "Unknown Error";
}

/* Strings go into buffers of the caller's length, whole or not at all. */
static nvmlReturn_t put(char *to, unsigned int length, const char *text)
{
	if (to == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	memcpy(to, text, strlen(text) + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	OPEN_NODE(v, true);

	return put(version, length, DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	return put(version, length, "12." DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	if (version == NULL)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = CUDA_VERSION;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	OPEN_NODE(v, count != NULL);

	*count = v.s->gpus;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

/* Of the faults only `lost` keeps a handle back, as a GPU that has fallen off the bus does. */
static nvmlReturn_t give(const struct view *v, nvmlDevice_t d, nvmlDevice_t *device)
{
	if (v->s->gpu[d->gpu].fault == SIM_LOST)
		return NVML_ERROR_GPU_IS_LOST;
	*device = d;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	OPEN_NODE(v, device != NULL && index < v.s->gpus);

	return give(&v, handle_gpu(index), device);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	OPEN_NODE(v, uuid != NULL && device != NULL);

	for (uint32_t g = 0; g < v.s->gpus; g++)
		if (strcmp(v.s->gpu[g].uuid, uuid) == 0)
			return give(&v, handle_gpu(g), device);
	for (uint32_t u = 0; u < v.s->units; u++)
		if (v.s->unit[u].mig != 0 && strcmp(v.s->unit[u].uuid, uuid) == 0)
			return give(&v, handle_mig(u), device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	OPEN_NODE(v, id != NULL && device != NULL);
	unsigned int domain = 0, bus, slot;

	if (sscanf(id, "%x:%x:%x.0", &domain, &bus, &slot) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x.0", &bus, &slot) != 2)
			return NVML_ERROR_INVALID_ARGUMENT;
	}
	for (uint32_t g = 0; g < v.s->gpus; g++)
		if (domain == 0 && slot == 0 && bus == model_pci_bus(g))
			return give(&v, handle_gpu(g), device);
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	OPEN(v, device, true);
	char text[96];

	snprintf(text, sizeof(text), "%s%s%s", v.model->name, v.mig == NULL ? "" : " MIG ",
		 v.mig == NULL ? "" : v.mig->profile);
	return put(name, length, text);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	OPEN(v, device, true);

	return put(uuid, length, v.mig == NULL ? v.gpu->uuid : v.mig->uuid);
}

/*
 * Versioned names that a driver of this age has and bindings choose at load time, of features that these GPUs do
 * not have (vGPU, licensing, Windows driver models, PCI peers behind NVSwitch).
 */
#define NOT_ON_THESE_GPUS(name)                  \
	nvmlReturn_t name(void);                 \
	nvmlReturn_t name(void)                  \
	{                                        \
		return NVML_ERROR_NOT_SUPPORTED; \
	}
NOT_ON_THESE_GPUS(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_ON_THESE_GPUS(nvmlDeviceGetGridLicensableFeatures_v2)
NOT_ON_THESE_GPUS(nvmlDeviceGetGridLicensableFeatures_v3)
NOT_ON_THESE_GPUS(nvmlDeviceGetGridLicensableFeatures_v4)
NOT_ON_THESE_GPUS(nvmlComputeInstanceGetInfo_v2)
NOT_ON_THESE_GPUS(nvmlDeviceGetGpuInstancePossiblePlacements_v2)
NOT_ON_THESE_GPUS(nvmlVgpuInstanceGetLicenseInfo_v2)
NOT_ON_THESE_GPUS(nvmlDeviceGetDriverModel_v2)
