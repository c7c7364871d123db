/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of nvidia-cuda-mps-control, on the daemon's side. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "mps_daemon.h"
#include "units.h"

void command_answer(int fd, int status, const char *text)
{
	char head[16];

	snprintf(head, sizeof(head), "%d\n", status);
	if (send(fd, head, strlen(head), MSG_NOSIGNAL) > 0)
		send(fd, text, strlen(text), MSG_NOSIGNAL);
}

struct call {
	struct daemon *d;
	struct conn *conn;
	FILE *out;
	int argc;
	char *argv[8];
	bool later; /* the answer comes when something has happened */
};

static int refuse(struct call *c, const char *text)
{
	fprintf(c->out, "%s\n", text);
	return 1;
}

static bool is_server(const struct call *c, const char *text)
{
	long pid;

	return parse_long(text, 1, 1L << 30, &pid) && pid == c->d->server.pid;
}

static int get_server_list(struct call *c)
{
	if (c->d->server.pid != 0)
		fprintf(c->out, "%d\n", c->d->server.pid);
	return 0;
}

static int get_server_status(struct call *c)
{
	if (!is_server(c, c->argv[1]))
		return refuse(c, "Server is not found");
	const struct sim_proc *p = snap_by_pid(daemon_look(c->d), c->d->server.pid);

	fprintf(c->out, "%s\n", !c->d->server.ready || p == NULL ? "INITIALIZING" : p->faulted ? "FAULT" : "ACTIVE");
	return 0;
}

static int start_server(struct call *c)
{
	long uid;

	if (c->argc != 3 || strcmp(c->argv[1], "-uid") != 0 || !parse_long(c->argv[2], 0, 1L << 32, &uid))
		return refuse(c, "Usage: start_server -uid <user id>");
	if (c->d->server.pid != 0 && c->d->server.uid != (uid_t)uid)
		return refuse(c, "A server of another user is running");
	daemon_start_server(c->d, (uid_t)uid, (gid_t)uid);
	return 0;
}

static int get_client_list(struct call *c)
{
	if (!is_server(c, c->argv[1]))
		return refuse(c, "Server is not found");
	for (int i = 0; i < MPS_MAX_CONNS; i++)
		if (c->d->conn[i].fd >= 0 && c->d->conn[i].server != 0)
			fprintf(c->out, "%d\n", c->d->conn[i].pid);
	return 0;
}

/* The number of the process's PID namespace, as in the real listing. */
static unsigned long pid_namespace(int pid)
{
	char path[64], link[64] = "";

	snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
	ssize_t n = readlink(path, link, sizeof(link) - 1);

	return n > 5 ? strtoul(link + 5, NULL, 10) : 0;
}

static int ps(struct call *c)
{
	const struct sim_snap *s = daemon_look(c->d);

	fprintf(c->out, "%-8s %-4s %-8s %-42s %-12s %s\n", "PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND");
	for (uint32_t i = 0; i < s->procs; i++) {
		const struct sim_proc *p = &s->proc[i];

		if (!snap_is_mps_client(p) || p->server != c->d->server.pid)
			continue;
		for (uint32_t k = 0; k < p->uses; k++)
			fprintf(c->out, "%-8d %-4u %-8d %-42s %-12lu %s\n", p->pid, i, p->server, s->unit[p->use[k].unit].uuid,
				pid_namespace(p->pid), p->name);
	}
	return 0;
}

static int get_device_client_list(struct call *c)
{
	const struct sim_snap *s = daemon_look(c->d);

	for (uint32_t g = 0; g < c->d->defaults.gpus; g++) {
		int unit = c->d->defaults.gpu[g].unit;

		fprintf(c->out, "%s:", s->unit[unit].uuid);
		for (uint32_t i = 0; i < s->procs; i++)
			for (uint32_t k = 0; k < s->proc[i].uses; k++)
				if (snap_is_mps_client(&s->proc[i]) && s->proc[i].use[k].unit == unit)
					fprintf(c->out, " %d", s->proc[i].pid);
		fprintf(c->out, "\n");
	}
	return 0;
}

/* The daemon's number for a device: an index or a UUID; -1 if it has none. */
static int device(const struct call *c, const char *text)
{
	const struct sim_snap *s = daemon_look(c->d);
	long index;

	if (parse_long(text, 0, (long)c->d->defaults.gpus - 1, &index))
		return (int)index;
	for (uint32_t g = 0; g < c->d->defaults.gpus; g++)
		if (strcmp(s->unit[c->d->defaults.gpu[g].unit].uuid, text) == 0)
			return (int)g;
	return -1;
}

static int set_limit(struct call *c)
{
	int g = device(c, c->argv[1]);
	uint64_t bytes;

	if (g < 0 || !parse_bytes(c->argv[2], &bytes))
		return refuse(c, "Invalid device or value");
	c->d->defaults.gpu[g].limit = bytes;
	return 0;
}

static int get_limit(struct call *c)
{
	int g = device(c, c->argv[1]);

	if (g < 0)
		return refuse(c, "Invalid device");
	fprintf(c->out, "%lluM\n", (unsigned long long)(c->d->defaults.gpu[g].limit / MIB));
	return 0;
}

static int set_percentage(struct call *c)
{
	double percent;

	if (!parse_double(c->argv[1], 1.0, 100.0, &percent))
		return refuse(c, "Invalid percentage");
	c->d->defaults.percent = (uint32_t)percent;
	fprintf(c->out, "%.1f\n", (double)c->d->defaults.percent);
	return 0;
}

static int get_percentage(struct call *c)
{
	fprintf(c->out, "%.1f\n", (double)c->d->defaults.percent);
	return 0;
}

static int terminate_client(struct call *c)
{
	long pid;

	if (!is_server(c, c->argv[1]))
		return refuse(c, "Server is not found");
	struct sim_snap *s = sim_begin(c->d->sim);
	struct sim_proc *p = parse_long(c->argv[2], 1, 1L << 30, &pid) ? snap_by_pid(s, (int)pid) : NULL;

	if (p == NULL || !snap_is_mps_client(p) || p->server != c->d->server.pid) {
		sim_abort(c->d->sim);
		return refuse(c, "Client is not found");
	}
	p->stop = SIM_STOP_TERMINATED;
	sim_commit(c->d->sim, true);
	/* Synchronous, as the real one: answered when the client has gone. */
	c->conn->awaits = (int)pid;
	c->later = true;
	return 0;
}

static int quit(struct call *c)
{
	struct timespec ts;
	double wait = 1e9;

	if (c->argc == 2 && strcmp(c->argv[1], "-f") == 0)
		wait = 0.0;
	else if (c->argc == 3 && strcmp(c->argv[1], "-t") == 0 && parse_double(c->argv[2], 0.0, 1e9, &wait))
		;
	else if (c->argc != 1)
		return refuse(c, "Usage: quit [-t TIMEOUT | -f]");
	clock_gettime(CLOCK_MONOTONIC, &ts);
	c->d->quitting = true;
	c->d->quit_at = (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9 + wait;
	c->d->quit_fd = c->conn->fd;
	c->later = true;
	return 0;
}

static const struct {
	const char *name;
	int min, max; /* arguments */
	int (*run)(struct call *c);
} commands[] = {
	{ "get_server_list", 0, 0, get_server_list },
	{ "get_server_status", 1, 1, get_server_status },
	{ "start_server", 2, 2, start_server },
	{ "get_client_list", 1, 1, get_client_list },
	{ "get_device_client_list", 0, 1, get_device_client_list },
	{ "ps", 0, 0, ps },
	{ "set_default_device_pinned_mem_limit", 2, 2, set_limit },
	{ "get_default_device_pinned_mem_limit", 1, 1, get_limit },
	{ "set_default_active_thread_percentage", 1, 1, set_percentage },
	{ "get_default_active_thread_percentage", 0, 0, get_percentage },
	{ "terminate_client", 2, 2, terminate_client },
	{ "quit", 0, 2, quit },
};

/* Reading is for all; what changes the daemon is for its own user and root. */
static int dispatch(struct call *c)
{
	for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, c->argv[0]) != 0)
			continue;
		if (c->argc - 1 < commands[i].min || c->argc - 1 > commands[i].max)
			return refuse(c, "Wrong number of arguments");
		bool reads = strncmp(c->argv[0], "get_", 4) == 0 || strcmp(c->argv[0], "ps") == 0;

		if (!reads && c->conn->uid != 0 && c->conn->uid != geteuid())
			return refuse(c, "Permission denied");
		return commands[i].run(c);
	}
	fprintf(c->out, "Unknown command: %s\n", c->argv[0]);
	return 1;
}

bool command_run(struct daemon *d, struct conn *conn, char *line)
{
	struct call c = { .d = d, .conn = conn };
	char *save = NULL, *text = NULL;
	size_t size;

	/* With the connection, 221 bytes for a get_server_list, as of 535 and 550. */
	daemon_log(d, "NEW UI");
	daemon_log(d, "Cmd:%s", line);
	for (char *w = strtok_r(line, " \t\r", &save); w != NULL && c.argc < 8; w = strtok_r(NULL, " \t\r", &save))
		c.argv[c.argc++] = w;
	c.out = open_memstream(&text, &size);
	if (c.out == NULL || c.argc == 0) {
		command_answer(conn->fd, 1, "");
		return true;
	}
	int status = dispatch(&c);

	fclose(c.out);
	if (!c.later)
		command_answer(conn->fd, status, text);
	free(text);
	if (!c.later)
		daemon_log(d, "UI closed");
	return !c.later;
}
