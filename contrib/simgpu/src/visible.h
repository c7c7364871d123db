/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs a CUDA process sees, and its MPS memory limits: the environment variables of CUDA. */
#ifndef SIMGPU_VISIBLE_H
#define SIMGPU_VISIBLE_H

#include "snapshot.h"

/*
 * The units that a process sees, in its own order.
 * value: CUDA_VISIBLE_DEVICES, NULL if unset. Indices count into base (n units), names must be among them.
 * As in CUDA, the list ends at the first entry that is not valid; a GPU with MIG stands for its first instance.
 * Returns how many; out has room for SIM_MAX_GPUS.
 */
int visible_units(const struct sim_snap *s, const int *base, int n, const char *value, int *out);

/* All that a process without CUDA_VISIBLE_DEVICES could name: one unit per GPU. */
int visible_all(const struct sim_snap *s, int *out);

/*
 * The limit for one device out of CUDA_MPS_PINNED_DEVICE_MEM_LIMIT ("0=12G,GPU-uuid=8192M"), in bytes;
 * 0 for none. ordinal: the device's number as the process sees it.
 */
uint64_t visible_mem_limit(const char *value, int ordinal, const char *uuid);

#endif
