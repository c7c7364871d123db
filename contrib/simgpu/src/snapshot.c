/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "snapshot.h"

void snap_copy(struct sim_snap *to, const struct sim_snap *from)
{
	memcpy(to, from, offsetof(struct sim_snap, proc) + from->procs * sizeof(from->proc[0]));
}

#define XID_MMU_FAULT 31

static double work_rate(const struct sim_proc *p)
{
	/* Fewer SMs do the same work in proportionally more time. */
	return p->limit_pct / 100.0;
}

static bool running(const struct sim_proc *p)
{
	return p->demand > 0.0 && p->ended == 0.0 && p->stop == SIM_RUN;
}

double snap_demand(const struct sim_proc *p)
{
	return running(p) ? p->demand * work_rate(p) : 0.0;
}

void snap_load(const struct sim_snap *s, struct law_load load[], double rate[])
{
	struct law_client c[SIM_MAX_CLIENTS];
	uint32_t who[SIM_MAX_CLIENTS];

	if (rate != NULL)
		for (uint32_t i = 0; i < s->procs; i++)
			rate[i] = running(&s->proc[i]) ? 1.0 : 0.0;
	for (uint32_t u = 0; u < s->units; u++) {
		int n = 0;

		for (uint32_t i = 0; i < s->procs; i++) {
			const struct sim_proc *p = &s->proc[i];

			if (!running(p))
				continue;
			for (uint32_t k = 0; k < p->uses && n < SIM_MAX_CLIENTS; k++) {
				if (p->use[k].unit != (int32_t)u)
					continue;
				c[n].demand = snap_demand(p);
				c[n].group = p->server;
				who[n++] = i;
			}
		}
		struct law_load l = law_share(c, n);

		if (load != NULL)
			load[u] = l;
		/* A job on several GPUs runs at the pace of its slowest. */
		for (int i = 0; rate != NULL && i < n; i++)
			if (c[i].rate < rate[who[i]])
				rate[who[i]] = c[i].rate;
	}
	for (uint32_t i = 0; rate != NULL && i < s->procs; i++)
		rate[i] *= work_rate(&s->proc[i]);
}

double snap_gpu_smact(const struct sim_snap *s, uint32_t gpu, const struct law_load load[])
{
	const struct sim_gpu *g = &s->gpu[gpu];
	double smact = 0.0;

	for (uint32_t u = g->first_unit; u < g->first_unit + g->units; u++)
		smact += load[u].smact * s->unit[u].share;
	return smact;
}

static void integrate(struct sim_snap *s, double dt, const struct law_load load[], const double rate[])
{
	const struct model *m = model_get(s->model);

	for (uint32_t u = 0; u < s->units; u++) {
		s->unit[u].smact += load[u].smact * dt;
		s->unit[u].resident += load[u].resident * dt;
	}
	for (uint32_t g = 0; g < s->gpus; g++)
		s->gpu[g].joules += model_power(m, snap_gpu_smact(s, g, load)) * dt;
	for (uint32_t i = 0; i < s->procs; i++)
		s->proc[i].work += rate[i] * dt;
	s->now += dt;
}

/* Between two events everything is constant, so each step to the next end of a job is exact. */
void snap_advance(struct sim_snap *s, double t)
{
	static _Thread_local double rate[SIM_MAX_PROCS];
	static _Thread_local struct law_load load[SIM_MAX_UNITS];

	while (s->now < t) {
		double dt = t - s->now;

		snap_load(s, load, rate);
		for (uint32_t i = 0; i < s->procs; i++) {
			const struct sim_proc *p = &s->proc[i];
			double left = (p->target - p->work) / rate[i];

			if (p->target > 0.0 && rate[i] > 0.0 && left < dt)
				dt = left > 0.0 ? left : 0.0;
		}
		integrate(s, dt, load, rate);
		for (uint32_t i = 0; i < s->procs; i++) {
			struct sim_proc *p = &s->proc[i];

			if (p->target > 0.0 && p->ended == 0.0 && p->target - p->work < 1e-9) {
				p->work = p->target;
				p->ended = s->now;
			}
		}
	}
}

/* A client's memory goes with the client, and its queued kernels touch the memory: seen on an H200, driver 580. */
static bool leaves_kernels(const struct sim_proc *p)
{
	return p->queues && snap_is_mps_client(p) && running(p) && p->target - p->work > 1e-3;
}

void snap_remove(struct sim_snap *s, uint32_t i)
{
	int pid = s->proc[i].pid;
	bool server = s->proc[i].kind == SIM_MPS_SERVER;
	struct sim_proc *faulted = leaves_kernels(&s->proc[i]) ? snap_by_pid(s, s->proc[i].server) : NULL;

	if (faulted != NULL) {
		struct sim_gpu *gpu = &s->gpu[s->unit[s->proc[i].use[0].unit].gpu];

		faulted->faulted = SIM_FAULT_UNTOLD;
		gpu->xid[gpu->xids++ % SIM_XIDS] = XID_MMU_FAULT;
	}

	s->proc[i] = s->proc[--s->procs];
	for (uint32_t k = 0; k < s->procs; k++) {
		struct sim_proc *p = &s->proc[k];

		if (server && p->server == pid && p->stop == SIM_RUN)
			p->stop = SIM_STOP_SERVER_GONE;
	}
	/* A server in FAULT accepts clients again once the last of the old ones has gone (NVIDIA MPS guide). */
	for (uint32_t k = 0; k < s->procs; k++) {
		struct sim_proc *p = &s->proc[k];
		bool clients = false;

		for (uint32_t j = 0; p->faulted && j < s->procs; j++)
			clients |= snap_is_mps_client(&s->proc[j]) && s->proc[j].server == p->pid;
		if (!clients && p->faulted != SIM_FAULT_UNTOLD)
			p->faulted = 0;
	}
}

struct sim_proc *snap_by_pid(const struct sim_snap *s, int pid)
{
	for (uint32_t i = 0; i < s->procs; i++)
		if (s->proc[i].pid == pid)
			return (struct sim_proc *)&s->proc[i];
	return NULL;
}

struct sim_proc *snap_by_slot(const struct sim_snap *s, uint32_t slot)
{
	for (uint32_t i = 0; i < s->procs; i++)
		if (s->proc[i].slot == slot)
			return (struct sim_proc *)&s->proc[i];
	return NULL;
}

bool snap_on_gpu(const struct sim_snap *s, const struct sim_proc *p, uint32_t gpu, uint64_t *bytes)
{
	bool on = false;

	for (uint32_t k = 0; k < p->uses; k++) {
		if (s->unit[p->use[k].unit].gpu != gpu)
			continue;
		on = true;
		if (bytes != NULL)
			*bytes += p->use[k].bytes;
	}
	return on;
}

uint64_t snap_gpu_used(const struct sim_snap *s, uint32_t gpu)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->procs; i++)
		snap_on_gpu(s, &s->proc[i], gpu, &bytes);
	return bytes;
}

uint64_t snap_unit_used(const struct sim_snap *s, int unit)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < s->procs; i++)
		for (uint32_t k = 0; k < s->proc[i].uses; k++)
			if (s->proc[i].use[k].unit == unit)
				bytes += s->proc[i].use[k].bytes;
	return bytes;
}

bool snap_is_mps_client(const struct sim_proc *p)
{
	return p->server != 0 && p->kind != SIM_MPS_SERVER;
}
