/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "mps_daemon.h"

#define SERVER_BYTES (28 * MIB) /* per GPU, as nvidia-smi shows it on Volta and later */

static bool has_clients(struct sim *sim, struct sim_snap *s)
{
	sim_reap(sim, 0.0);
	sim_read(sim, s);
	for (uint32_t i = 0; i < s->procs; i++)
		if (snap_is_mps_client(&s->proc[i]) && s->proc[i].server == getpid())
			return true;
	return false;
}

int server_main(void)
{
	struct sim_proc p = { .kind = SIM_MPS_SERVER, .limit_pct = 100, .name = "nvidia-cuda-mps-server" };
	struct timespec pause = { .tv_nsec = 50 * 1000 * 1000 };
	struct client_refusal why;
	struct mps_grant g;
	uint32_t slot;
	char c;

	if (getenv(MPS_GRANT_ENV) == NULL || !mps_parse_grant(getenv(MPS_GRANT_ENV), &g)) {
		fprintf(stderr, "nvidia-cuda-mps-server: only nvidia-cuda-mps-control starts this\n");
		return 2;
	}
	struct sim *sim = sim_open(NULL);
	struct sim_snap *s = malloc(sizeof(*s));

	if (sim == NULL || s == NULL)
		return 1;
	p.uses = g.gpus;
	for (uint32_t i = 0; i < g.gpus; i++)
		p.use[i].unit = g.gpu[i].unit;
	if (client_join(sim, &p, &slot) != CLIENT_OK)
		return 1;
	if (client_resize(sim, slot, SERVER_BYTES, &why) != CLIENT_OK || write(MPS_SERVER_FD, "R", 1) != 1) {
		client_leave(sim, slot);
		return 1;
	}
	while (read(MPS_SERVER_FD, &c, 1) > 0)
		;
	/* The daemon has closed its end, or died: then the clients that are left may finish. */
	while (has_clients(sim, s))
		nanosleep(&pause, NULL);
	client_leave(sim, slot);
	return 0;
}
