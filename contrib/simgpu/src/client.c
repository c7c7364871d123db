/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "limits.h"

static bool uses_unit(const struct sim_proc *p, int unit)
{
	for (uint32_t k = 0; k < p->uses; k++)
		if (p->use[k].unit == unit)
			return true;
	return false;
}

/* May p open a context on that unit, next to the processes that are there? */
static enum client_result admit(const struct sim_snap *s, const struct sim_proc *p, int unit)
{
	uint32_t gpu = s->unit[unit].gpu, mode = s->gpu[gpu].compute_mode;
	int clients = 0;

	if (mode == SIM_PROHIBITED)
		return CLIENT_BUSY;
	for (uint32_t i = 0; i < s->procs; i++) {
		const struct sim_proc *q = &s->proc[i];
		bool same_server = p->server != 0 && q->server == p->server;

		clients += snap_on_gpu(s, q, gpu, NULL);
		if (mode == SIM_EXCLUSIVE_PROCESS && uses_unit(q, unit) && !same_server)
			return CLIENT_BUSY;
	}
	return clients < SIM_MAX_CLIENTS ? CLIENT_OK : CLIENT_FULL;
}

static enum client_result server_ready(const struct sim_snap *s, const struct sim_proc *p)
{
	if (!snap_is_mps_client(p))
		return CLIENT_OK;
	const struct sim_proc *server = snap_by_pid(s, p->server);

	return server != NULL && !server->faulted ? CLIENT_OK : CLIENT_NOT_READY;
}

static enum client_result join(struct sim_snap *s, struct sim_proc *p)
{
	enum client_result r = server_ready(s, p);

	for (uint32_t k = 0; r == CLIENT_OK && k < p->uses; k++)
		r = admit(s, p, p->use[k].unit);
	if (r != CLIENT_OK)
		return r;
	if (s->procs == SIM_MAX_PROCS)
		return CLIENT_FULL;
	for (p->slot = 0; snap_by_slot(s, p->slot) != NULL; p->slot++)
		;
	s->proc[s->procs++] = *p;
	return CLIENT_OK;
}

/* What a process that has died held is free: before a refusal, look who is still there, and try once more. */
#define TRIES 2

enum client_result client_join(struct sim *sim, struct sim_proc *p, uint32_t *slot)
{
	enum client_result r = CLIENT_BUSY;

	p->pid = getpid();
	p->uid = geteuid();
	p->start = sim_process_start(p->pid);
	if (p->kind == SIM_MPS_SERVER)
		p->server = p->pid;
	for (int try = 0; try < TRIES; try++) {
		struct sim_snap *s = sim_begin(sim);

		r = join(s, p);
		if (r == CLIENT_OK) {
			sim_set_beat(sim, p->slot, s->now);
			*slot = p->slot;
			sim_commit(sim, true);
			return r;
		}
		sim_abort(sim);
		sim_reap(sim, 0.0);
	}
	return r;
}

static enum client_result resize(struct sim_snap *s, struct sim_proc *p, uint64_t bytes, struct client_refusal *why)
{
	for (uint32_t k = 0; k < p->uses; k++) {
		struct sim_use *u = &p->use[k];
		uint64_t total = s->unit[u->unit].bytes, used = snap_unit_used(s, u->unit);

		*why = (struct client_refusal){ .use = k, .requested = bytes - u->bytes, .total = total,
						.free = used < total ? total - used : 0, .in_use = u->bytes,
						.limit = u->limit };
		if (bytes <= u->bytes)
			continue;
		if (u->limit != 0 && bytes > u->limit)
			return CLIENT_LIMIT_OOM;
		if (bytes - u->bytes > why->free)
			return CLIENT_DEVICE_OOM;
		const struct sim_limit *l = limit_of(s, s->unit[u->unit].gpu, p->pid, &used);

		if (l != NULL && used + (bytes - u->bytes) > l->hard) {
			why->total = l->hard;
			why->free = used < l->hard ? l->hard - used : 0;
			return CLIENT_DEVICE_OOM;
		}
	}
	for (uint32_t k = 0; k < p->uses; k++)
		p->use[k].bytes = bytes;
	return CLIENT_OK;
}

enum client_result client_resize(struct sim *sim, uint32_t slot, uint64_t bytes, struct client_refusal *why)
{
	enum client_result r = CLIENT_NOT_READY;

	for (int try = 0; try < TRIES; try++) {
		struct sim_snap *s = sim_begin(sim);
		struct sim_proc *p = snap_by_slot(s, slot);

		if (p == NULL || p->pid != getpid()) {
			sim_abort(sim);
			return CLIENT_NOT_READY;
		}
		r = resize(s, p, bytes, why);
		if (r == CLIENT_OK) {
			sim_commit(sim, false);
			return r;
		}
		sim_abort(sim);
		if (r != CLIENT_DEVICE_OOM)
			return r;
		sim_reap(sim, 0.0);
	}
	return r;
}

/*
 * Free memory is told to a client of MPS as of its limit, the total is not; a limit of its cgroup's is told as the
 * total.
 */
void client_memory(const struct sim_snap *s, const struct sim_proc *me, uint64_t *left, uint64_t *total)
{
	const struct sim_use *u = &me->use[0];
	uint64_t used = snap_unit_used(s, u->unit), used_in;
	const struct sim_limit *l = limit_of(s, s->unit[u->unit].gpu, me->pid, &used_in);

	*total = s->unit[u->unit].bytes;
	*left = used < *total ? *total - used : 0;
	if (u->limit != 0 && u->limit - u->bytes < *left)
		*left = u->limit - u->bytes;
	if (l == NULL)
		return;
	if (l->hard < *total)
		*total = l->hard;
	if (used_in >= l->hard)
		*left = 0;
	else if (l->hard - used_in < *left)
		*left = l->hard - used_in;
}

void client_leave(struct sim *sim, uint32_t slot)
{
	struct sim_snap *s = sim_begin(sim);
	struct sim_proc *p = snap_by_slot(s, slot);

	if (p == NULL || p->pid != getpid()) {
		sim_abort(sim);
		return;
	}
	snap_remove(s, (uint32_t)(p - s->proc));
	sim_commit(sim, true);
}
