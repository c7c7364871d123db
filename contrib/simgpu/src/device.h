/* SPDX-License-Identifier: Apache-2.0 */
/* Device nodes of the simulated GPUs: $SIMGPU_DEV/nvidiaN, made by the development cluster. */
#ifndef SIMGPU_DEVICE_H
#define SIMGPU_DEVICE_H

#include <stdint.h>

enum device_result {
	DEVICE_OPENS,
	DEVICE_DENIED,
	DEVICE_MISSING, /* there is no such node */
};

/* Whether this process may open the node of a GPU. */
enum device_result device_open(const char *dir, uint32_t gpu);

#endif
