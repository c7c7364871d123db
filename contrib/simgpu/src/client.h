/* SPDX-License-Identifier: Apache-2.0 */
/* What a process does to the state: join, grow, leave. */
#ifndef SIMGPU_CLIENT_H
#define SIMGPU_CLIENT_H

#include "state.h"

enum client_result {
	CLIENT_OK,
	CLIENT_FULL,	/* SIM_MAX_CLIENTS processes are on the GPU already */
	CLIENT_BUSY,	/* compute mode: the GPU belongs to another process, or to none */
	CLIENT_NOT_READY, /* its MPS server is in FAULT or gone */
	CLIENT_DEVICE_OOM, /* the GPU has no more memory */
	CLIENT_LIMIT_OOM,  /* the client's own pinned memory limit is passed */
};

/* What a refused growth found, in bytes; for the error text. */
struct client_refusal {
	uint32_t use;	    /* which of the process's units refused */
	uint64_t requested; /* by how much it wanted to grow */
	uint64_t total, free;
	uint64_t in_use; /* by the process itself */
	uint64_t limit;	 /* CLIENT_LIMIT_OOM */
};

/* Adds this process as *p says (pid, start, slot and uid are filled in) and sets *slot. */
enum client_result client_join(struct sim *sim, struct sim_proc *p, uint32_t *slot);

/* Sets the process's memory on each of its units. Growth is refused as a whole; *why then says where. */
enum client_result client_resize(struct sim *sim, uint32_t slot, uint64_t bytes, struct client_refusal *why);

/* What cuMemGetInfo tells a process of its first unit, in bytes. */
void client_memory(const struct sim_snap *s, const struct sim_proc *me, uint64_t *left, uint64_t *total);

/* Removes the process. */
void client_leave(struct sim *sim, uint32_t slot);

#endif
