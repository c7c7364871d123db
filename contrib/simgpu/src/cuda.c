/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cuda.h"
#include "device.h"
#include "mps.h"
#include "nap.h"
#include "units.h"
#include "visible.h"

/*
 * Asks the control daemon for a server. As with the real one there is no time limit: while another user's
 * server has clients, the call hangs. The connection stays open on purpose: it is the membership.
 */
static int attach(int fd, int signals, struct mps_grant *grant)
{
	char line[MPS_LINE];
	size_t n = 0;

	if (write(fd, "attach\n", 7) != 7)
		return CUDA_MPS_CONNECTION_FAILED;
	while (n == 0 || line[n - 1] != '\n') {
		int sig = nap(signals, 3600.0, fd);

		if (sig != 0)
			return -sig;
		ssize_t got = recv(fd, line + n, sizeof(line) - 1 - n, MSG_DONTWAIT);

		if (got == 0 || (got < 0 && errno != EAGAIN))
			return CUDA_MPS_CONNECTION_FAILED;
		if (got > 0)
			n += (size_t)got;
	}
	line[n] = '\0';
	return mps_parse_grant(line, grant) && grant->server != 0 ? 0 : CUDA_MPS_CONNECTION_FAILED;
}

static uint64_t smaller_limit(uint64_t a, uint64_t b)
{
	if (a == 0 || b == 0)
		return a + b;
	return a < b ? a : b;
}

static void add_limits(const struct sim_snap *s, struct sim_proc *p, const struct mps_grant *grant)
{
	for (uint32_t k = 0; k < p->uses; k++) {
		struct sim_use *u = &p->use[k];

		u->limit = visible_mem_limit(getenv(MPS_LIMIT_ENV), (int)k, s->unit[u->unit].uuid);
		for (uint32_t i = 0; i < grant->gpus; i++)
			if (s->unit[grant->gpu[i].unit].gpu == s->unit[u->unit].gpu)
				u->limit = smaller_limit(u->limit, grant->gpu[i].limit);
	}
}

/* A client may take less than the server allows, not more. */
static uint32_t thread_percentage(uint32_t granted)
{
	const char *text = getenv(MPS_PERCENT_ENV);
	double own;

	if (text == NULL || !parse_double(text, 0.0, 100.0, &own) || own < 1.0)
		return granted;
	return own < granted ? (uint32_t)own : granted;
}

static int join_error(enum client_result r, bool mps)
{
	switch (r) {
	case CLIENT_OK:
		return 0;
	case CLIENT_NOT_READY:
		return CUDA_MPS_SERVER_NOT_READY;
	case CLIENT_FULL:
		fprintf(stderr, "simgpu: the GPU has %d processes, the most that can be simulated\n", SIM_MAX_CLIENTS);
		return mps ? CUDA_MPS_MAX_CLIENTS : CUDA_DEVICES_UNAVAILABLE;
	default:
		return CUDA_DEVICES_UNAVAILABLE;
	}
}

/*
 * $SIMGPU_DEV has the GPUs' device nodes, which no driver serves. CUDA counts no GPU whose node it may not open;
 * "no such device" is what comes after the permission. Without the variable there are no nodes.
 */
static int openable(const struct sim_snap *s, int *units, int n)
{
	const char *dir = getenv("SIMGPU_DEV");
	int count = 0;

	for (int i = 0; i < n; i++)
		if (dir == NULL || device_open(dir, s->unit[units[i]].gpu) != DEVICE_DENIED)
			units[count++] = units[i];
	return count;
}

static int choose(const struct sim_snap *s, const struct mps_grant *grant, uint32_t gpus, struct cuda *cuda)
{
	int base[SIM_MAX_GPUS], seen[SIM_MAX_GPUS], n = (int)grant->gpus;

	/* A daemon that was started for some GPUs counts these from 0, and its clients see no others. */
	for (int i = 0; i < n; i++) {
		base[i] = grant->gpu[i].unit;
		if (base[i] < 0 || (uint32_t)base[i] >= s->units) /* a daemon of another state */
			return CUDA_MPS_CONNECTION_FAILED;
	}
	if (grant->server == 0)
		n = visible_all(s, base);
	n = openable(s, base, n);
	n = visible_units(s, base, n, getenv("CUDA_VISIBLE_DEVICES"), seen);
	if (n == 0)
		return CUDA_NO_DEVICE;
	if ((uint32_t)n < gpus)
		return CUDA_INVALID_DEVICE;
	cuda->gpus = gpus;
	memcpy(cuda->unit, seen, sizeof(seen));
	return 0;
}

/* Beside STATE.real-mps the daemon is NVIDIA's, which has no server here: as without MPS. */
static bool real_daemon(void)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s.real-mps", getenv(SIM_STATE_ENV) == NULL ? "" : getenv(SIM_STATE_ENV));
	return access(path, F_OK) == 0;
}

int cuda_open(struct sim *sim, struct sim_proc *p, uint32_t gpus, int signals, struct cuda *cuda)
{
	const char *pipe_dir = getenv(MPS_PIPE_ENV);
	struct mps_grant grant = { 0 };
	int fd = pipe_dir == NULL || real_daemon() ? -1 : mps_connect(pipe_dir);
	int rc = fd < 0 ? 0 : attach(fd, signals, &grant);
	struct sim_snap *s = malloc(sizeof(*s));

	if (rc != 0 || s == NULL) {
		free(s);
		return rc != 0 ? rc : CUDA_OUT_OF_MEMORY;
	}
	sim_read(sim, s);
	rc = choose(s, &grant, gpus, cuda);
	if (rc == 0) {
		p->uses = gpus;
		for (uint32_t k = 0; k < gpus; k++)
			p->use[k].unit = cuda->unit[k];
		p->server = grant.server;
		p->limit_pct = grant.server == 0 ? 100 : thread_percentage(grant.percent);
		if (grant.server != 0)
			add_limits(s, p, &grant);
		rc = join_error(client_join(sim, p, &cuda->slot), grant.server != 0);
	}
	free(s);
	return rc;
}
