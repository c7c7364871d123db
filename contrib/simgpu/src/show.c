/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "show.h"

static struct law_load load[SIM_MAX_UNITS];
static double rate[SIM_MAX_PROCS];

static const char *const fault_name[] = { "none", "hang", "lost", "error", "garbage-pids", "garbage-memory", "silent-gpm",
					  "nan-gpm", "zero-smact", "no-activity", "no-shares" };
static const char *const kind_name[] = { "job", "foreign", "mps-server" };
static const char *const mode_name[] = { "default", "exclusive-thread", "prohibited", "exclusive-process" };

void show_table(const struct sim_snap *s)
{
	const struct model *m = model_get(s->model);

	snap_load(s, load, rate);
	printf("%-4s %-40s  %-22s %14s %6s %8s %11s  %s\n", "GPU", "UUID", "MODEL", "MEMORY MiB", "SMACT", "POWER W",
	       "ENERGY J", "FAULT");
	for (uint32_t g = 0; g < s->gpus; g++) {
		char memory[32];
		double smact = snap_gpu_smact(s, g, load);

		snprintf(memory, sizeof(memory), "%llu/%u", (unsigned long long)(snap_gpu_used(s, g) / MIB), m->total_mib);
		printf("%-4u %-40s  %-22s %14s %6.3f %8.1f %11.0f  %s\n", g, s->gpu[g].uuid, m->name, memory, smact,
		       model_power(m, smact), s->gpu[g].joules, fault_name[s->gpu[g].fault]);
	}
	if (s->procs == 0)
		return;
	printf("\n%-4s %7s %6s %-10s %10s %6s %6s  %s\n", "GPU", "PID", "UID", "KIND", "MEMORY MiB", "DEMAND", "RATE", "NAME");
	for (uint32_t i = 0; i < s->procs; i++) {
		const struct sim_proc *p = &s->proc[i];

		for (uint32_t k = 0; k < p->uses; k++) {
			const struct sim_unit *u = &s->unit[p->use[k].unit];

			printf("%-4u %7d %6u %-10s %10llu %6.3f %6.3f  %s %s\n", u->gpu, p->pid, p->uid,
			       snap_is_mps_client(p) ? "mps-client" : kind_name[p->kind],
			       (unsigned long long)(p->use[k].bytes / MIB), p->demand, rate[i], p->name, u->profile);
		}
	}
}

static void json_gpu(const struct sim_snap *s, uint32_t g)
{
	const struct model *m = model_get(s->model);
	const struct sim_gpu *gpu = &s->gpu[g];
	double smact = snap_gpu_smact(s, g, load);

	printf("%s{\"index\":%u,\"uuid\":\"%s\",\"name\":\"%s\",\"pci_bus_id\":\"00000000:%02X:00.0\","
	       "\"memory_used_mib\":%llu,\"memory_reserved_mib\":%u,\"memory_total_mib\":%u,\"smact\":%.6f,"
	       "\"power_w\":%.3f,\"energy_j\":%.3f,\"compute_mode\":\"%s\",\"fault\":\"%s\",\"mig\":[",
	       g == 0 ? "" : ",", g, gpu->uuid, m->name, model_pci_bus(g),
	       (unsigned long long)(snap_gpu_used(s, g) / MIB), m->reserved_mib, m->total_mib, smact,
	       model_power(m, smact), gpu->joules, mode_name[gpu->compute_mode & 3], fault_name[gpu->fault]);
	for (uint32_t k = gpu->first_unit, first = k; k < first + gpu->units && s->unit[k].mig != 0; k++)
		printf("%s{\"uuid\":\"%s\",\"profile\":\"%s\",\"memory_total_mib\":%llu,\"smact\":%.6f}",
		       k == first ? "" : ",", s->unit[k].uuid, s->unit[k].profile,
		       (unsigned long long)(s->unit[k].bytes / MIB), load[k].smact);
	printf("]}");
}

void show_json(const struct sim_snap *s, double scale)
{
	const char *comma = "";

	snap_load(s, load, rate);
	printf("{\"schema\":\"simgpu.show/1\",\"model\":\"%s\",\"now_s\":%.6f,\"time_scale\":%g,\"gpus\":[",
	       model_get(s->model)->key, s->now, scale);
	for (uint32_t g = 0; g < s->gpus; g++)
		json_gpu(s, g);
	printf("],\"processes\":[");
	for (uint32_t i = 0; i < s->procs; i++) {
		const struct sim_proc *p = &s->proc[i];

		for (uint32_t k = 0; k < p->uses; k++, comma = ",") {
			const struct sim_use *u = &p->use[k];

			printf("%s{\"gpu\":%u,\"unit\":\"%s\",\"pid\":%d,\"uid\":%u,\"kind\":\"%s\",\"name\":\"%s\","
			       "\"mps_server\":%d,\"memory_mib\":%llu,\"limit_mib\":%llu,\"demand\":%.6f,\"rate\":%.6f,"
			       "\"work_s\":%.6f}",
			       comma, s->unit[u->unit].gpu, s->unit[u->unit].uuid, p->pid, p->uid,
			       kind_name[p->kind], p->name, p->server, (unsigned long long)(u->bytes / MIB),
			       (unsigned long long)(u->limit / MIB), p->demand, rate[i], p->work);
		}
	}
	printf("]}\n");
}
