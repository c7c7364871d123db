/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "mps_daemon.h"

#define SERVER_BYTES (28 * MIB) /* per GPU, as nvidia-smi shows it on Volta and later */

static bool has_clients(struct sim *sim)
{
	static struct sim_snap s;

	sim_reap(sim, 0.0);
	sim_read(sim, &s);
	for (uint32_t i = 0; i < s.procs; i++)
		if (snap_is_mps_client(&s.proc[i]) && s.proc[i].server == getpid())
			return true;
	return false;
}

static void server_log(FILE *log, const char *fmt, ...)
{
	struct timespec ts;
	struct tm tm;
	char stamp[32];
	va_list ap;

	clock_gettime(CLOCK_REALTIME, &ts);
	localtime_r(&ts.tv_sec, &tm);
	strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &tm);
	fprintf(log, "[%s.%03ld Other %5d] Volta MPS: ", stamp, ts.tv_nsec / 1000000, getpid());
	va_start(ap, fmt);
	vfprintf(log, fmt, ap);
	va_end(ap);
	fputc('\n', log);
}

/* The daemon's pipe, which ends in server.log; NULL if nobody reads it. */
static FILE *open_log(void)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/log", getenv(MPS_PIPE_ENV) == NULL ? "" : getenv(MPS_PIPE_ENV));
	fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? NULL : fdopen(fd, "w");
}

/* A fault is logged first, then every client gets the error. */
static void handle_fault(struct sim *sim)
{
	static struct sim_snap look;
	const struct sim_proc *self;
	bool clients = false;
	FILE *log = NULL;

	sim_read(sim, &look);
	self = snap_by_pid(&look, getpid());
	if (self == NULL || !self->faulted)
		return;
	for (uint32_t i = 0; i < look.procs; i++) {
		const struct sim_proc *p = &look.proc[i];

		if (!snap_is_mps_client(p) || p->server != getpid())
			continue;
		clients = true;
		if (p->stop != SIM_RUN)
			continue;
		if (log == NULL && (log = open_log()) != NULL)
			server_log(log, "Server is handling a fatal GPU error.");
		if (log != NULL)
			server_log(log, "status of client {%d, 1} is INACTIVE", p->pid);
	}
	/* The client with the faulting kernels has gone, and no other client runs. */
	if (log == NULL && self->faulted == SIM_FAULT_UNTOLD && (log = open_log()) != NULL)
		server_log(log, "Server is handling a fatal GPU error.");
	if (log != NULL)
		fclose(log);
	struct sim_snap *s = sim_begin(sim);
	struct sim_proc *me = snap_by_pid(s, getpid());

	if (me != NULL)
		me->faulted = clients;

	for (uint32_t i = 0; i < s->procs; i++)
		if (snap_is_mps_client(&s->proc[i]) && s->proc[i].server == getpid() && s->proc[i].stop == SIM_RUN)
			s->proc[i].stop = SIM_STOP_FAULT;
	sim_commit(sim, true);
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

	if (sim == NULL)
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
	struct pollfd daemon = { .fd = MPS_SERVER_FD, .events = POLLIN };

	while (poll(&daemon, 1, 20) == 0 || read(MPS_SERVER_FD, &c, 1) > 0)
		handle_fault(sim);
	/* The daemon has closed its end, or died: then the clients that are left may finish. */
	while (has_clients(sim))
		nanosleep(&pause, NULL);
	client_leave(sim, slot);
	return 0;
}
