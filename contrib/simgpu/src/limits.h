/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of device memory for the processes of a cgroup, as drivers from R615 on have them
 * (docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html, the backend "misc"): cgroup v2 alone, the limit of the
 * nearest cgroup above a process holds, an allocation that would exceed it finds no memory. A limit goes with its cgroup.
 */
#ifndef SIMGPU_LIMITS_H
#define SIMGPU_LIMITS_H

#include "snapshot.h"

/* Is dir a cgroup v2? root: the length of the part of dir that is the mount point. */
bool limit_is_cgroup(const char *dir, uint32_t *root);

/* Sets the hard limit in bytes of the cgroup on a GPU; UINT64_MAX: none. False: there is no place for more. */
bool limit_set(struct sim_snap *s, uint32_t gpu, const char *dir, uint32_t root, uint64_t soft, uint64_t hard);

/* The limit that is set on that very cgroup, or NULL. */
const struct sim_limit *limit_get(const struct sim_snap *s, uint32_t gpu, const char *dir);

/* The limit that holds for the process on a GPU, and what it and those beside it use of it; NULL: none. */
const struct sim_limit *limit_of(const struct sim_snap *s, uint32_t gpu, int pid, uint64_t *used);

/* What the processes of the limit's cgroup use. */
uint64_t limit_used(const struct sim_snap *s, const struct sim_limit *limit);

#endif
