/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU models that can be simulated, and their constants. */
#ifndef SIMGPU_MODEL_H
#define SIMGPU_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define MIB (1024ULL * 1024ULL)

/* A MIG profile: its name, device memory, streaming multiprocessors. */
struct mig_profile {
	const char *name;
	uint32_t mib;
	uint32_t sms;
};

struct model {
	const char *key;  /* as given to simgpu create --model */
	const char *name; /* as nvmlDeviceGetName() answers */
	uint32_t gpus;
	uint32_t total_mib;
	uint32_t reserved_mib; /* held by the driver: nvmlMemory_v2_t.reserved */
	uint32_t sms;
	uint32_t arch; /* NVML_DEVICE_ARCH_* */
	uint32_t cc_major, cc_minor;
	uint32_t pci_device_id; /* device id << 16 | vendor id */
	uint32_t nvlinks;       /* all active, all-to-all through NVSwitch */
	uint32_t power_limit_w;
	bool gpm; /* NVML GPM exists from Hopper on */
	const struct mig_profile *mig;
};

/* The model with that key, or NULL. */
const struct model *model_find(const char *key);

/* The model by its number, which the state file stores. NULL if there is none. */
const struct model *model_get(uint32_t number);
uint32_t model_number(const struct model *m);

/* The MIG profile of that name, or NULL. */
const struct mig_profile *model_mig(const struct model *m, const char *name);

/* PCI bus number of the n-th GPU (n < 16), and its NUMA node: two sockets, half the GPUs each. */
uint32_t model_pci_bus(uint32_t n);
uint32_t model_numa_node(uint32_t n, uint32_t gpus);

/* Board power in watts at a given SM activity (0 to 1). */
double model_power(const struct model *m, double smact);

#endif
