/* SPDX-License-Identifier: Apache-2.0 */
/* How the library's calls get at the state. */
#ifndef SIMGPU_NVML_VIEW_H
#define SIMGPU_NVML_VIEW_H

#include "nvml_abi.h"
#include "state.h"

/* A device handle points to one of these. unit: the MIG instance, -1 for a whole GPU. */
struct nvmlDevice_st {
	uint32_t gpu;
	int unit;
};

/* One look at the state through a handle; the library's lock is held until it is closed. */
struct view {
	const struct sim_snap *s; /* NULL: not open */
	const struct model *model;
	const struct sim_gpu *gpu;
	const struct sim_unit *mig; /* NULL for a whole GPU */
	uint32_t index;
	int unit; /* -1 for a whole GPU */
};

/*
 * Opens a view of a device, with the faults of its GPU: may block (hang) and may fail (lost, error).
 * The scope's end closes it: declare with VIEW(name).
 */
nvmlReturn_t view_open(nvmlDevice_t device, struct view *v);
void view_close(struct view *v);
#define VIEW(name) __attribute__((cleanup(view_close))) struct view name = { .s = NULL }

/* A view of the node without a device: no faults. */
nvmlReturn_t view_node(struct view *v);

/* How a call of the library begins: opens the view, or returns when that fails or its arguments are bad. */
#define OPEN_WITH(name, opened, arguments_ok)               \
	VIEW(name);                                         \
	do {                                                \
		nvmlReturn_t open_rc = (opened);            \
		if (open_rc != NVML_SUCCESS)                \
			return open_rc;                     \
		if (!(arguments_ok))                        \
			return NVML_ERROR_INVALID_ARGUMENT; \
	} while (0)
#define OPEN(name, device, arguments_ok) OPEN_WITH(name, view_open(device, &(name)), arguments_ok)
#define OPEN_NODE(name, arguments_ok) OPEN_WITH(name, view_node(&(name)), arguments_ok)

/* Is the MIG mode of the GPU on? */
bool view_mig_enabled(const struct view *v);

/* SM activity of the GPU now, and the loads of all units. */
double view_smact(const struct view *v, struct law_load load[SIM_MAX_UNITS]);

nvmlDevice_t handle_gpu(uint32_t index);
nvmlDevice_t handle_mig(uint32_t unit);

/* For calls that change the state; valid between nvmlInit and nvmlShutdown. */
struct sim *view_sim(void);

#endif
