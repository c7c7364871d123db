/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of nvidia-cuda-mps-control, on the daemon's side. */
#include <signal.h>
#include <stdarg.h>
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
	if (send(fd, head, strlen(head), MSG_NOSIGNAL) > 0 && text[0] != '\0') /* an empty message reads as an end */
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

/* A refusal is a text, to the caller and in the log. The status is 0: so say 535 and 550. */
__attribute__((format(printf, 2, 3))) static int refuse(struct call *c, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	fprintf(c->out, "%s\n", text);
	daemon_log(c->d, "%s", text);
	return 0;
}

static const char *argument(const struct call *c, int i) { return i < c->argc ? c->argv[i] : ""; }

/* The number in an argument; 0 for anything else, as the real daemon's words show. */
static long number(const struct call *c, int i)
{
	long n;

	return parse_long(argument(c, i), 1, 1L << 30, &n) ? n : 0;
}

static bool is_server(const struct call *c, long pid) { return pid != 0 && pid == c->d->server.pid; }

/* Whoever is not root and has not started the daemon. */
static bool stranger(const struct call *c) { return c->conn->uid != 0 && c->conn->uid != geteuid(); }

static int get_server_list(struct call *c)
{
	if (c->d->server.pid == 0)
		return 0;
	fprintf(c->out, "%d\n", c->d->server.pid);
	daemon_log(c->d, "%d", c->d->server.pid);
	return 0;
}

static int get_server_status(struct call *c)
{
	if (number(c, 1) == 0)
		return refuse(c, "A server PID is required");
	if (!is_server(c, number(c, 1)))
		return refuse(c, "Server %ld not found", number(c, 1));
	const struct sim_proc *p = snap_by_pid(daemon_look(c->d), c->d->server.pid);

	fprintf(c->out, "%s\n", !c->d->server.ready || p == NULL ? "INITIALIZING" : p->faulted ? "FAULT" : "ACTIVE");
	return 0;
}

static int start_server(struct call *c)
{
	long uid;

	if (strcmp(argument(c, 1), "-uid") != 0 || !parse_long(argument(c, 2), 0, 1L << 32, &uid))
		return refuse(c, "A user id (UID) is required to start a new server");
	if (c->conn->uid != 0 && c->conn->uid != (uid_t)uid)
		return refuse(c, c->d->version < 550 ? "Insufficient privileges for UID %u" :
			      "Insufficient privileges for UID %u. Only the root user may start server for another user.",
			      c->conn->uid);
	daemon_start_server(c->d, (uid_t)uid); /* of another user's server nothing is said */
	return 0;
}

static int get_client_list(struct call *c)
{
	if (!is_server(c, number(c, 1)))
		return refuse(c, "Server %ld not found", number(c, 1));
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

	if (c->d->server.pid == 0)
		return refuse(c, "Server not found");
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

	if (c->argc > 1 && !is_server(c, number(c, 1)))
		return refuse(c, "Server %ld not found", number(c, 1));
	if (c->d->server.pid == 0)
		return 0;
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

static int refuse_settings(struct call *c)
{
	return refuse(c, "Insufficient privileges for UID %u. Control deamon settings can only be modified by the user "
			 "started it or by the root user.", c->conn->uid);
}

/* What cannot be read as a size clears the limit. */
static int set_limit(struct call *c)
{
	if (c->d->version >= 550 && stranger(c))
		return refuse_settings(c);
	int g = device(c, argument(c, 1));
	uint64_t bytes;

	if (g < 0)
		return 0;
	bool ok = parse_bytes(argument(c, 2), &bytes);

	c->d->defaults.gpu[g].limit = ok ? bytes : 0;
	snprintf(c->d->limit_text[g], sizeof(c->d->limit_text[g]), "%s", ok ? argument(c, 2) : "");
	return 0;
}

static int get_limit(struct call *c)
{
	int g = device(c, argument(c, 1));

	if (g < 0 || c->d->limit_text[g][0] == '\0')
		daemon_log(c->d, "No default pinned memory limit set for the device!");
	else
		fprintf(c->out, "%s\n", c->d->limit_text[g]);
	return 0;
}

static int get_percentage(struct call *c)
{
	fprintf(c->out, "%.1f\n", (double)c->d->defaults.percent);
	daemon_log(c->d, "%.1f", (double)c->d->defaults.percent);
	return 0;
}

static int set_percentage(struct call *c)
{
	double percent;

	if (c->d->version >= 550 && stranger(c))
		return refuse_settings(c);
	if (!parse_double(argument(c, 1), 0.0, 100.0, &percent) || percent <= 0.0)
		daemon_log(c->d, "Invalid percentage, expected between (0.0, 100.0]");
	else
		c->d->defaults.percent = (uint32_t)percent;
	return get_percentage(c);
}

static int shutdown_server(struct call *c)
{
	if (!is_server(c, number(c, 1)))
		return refuse(c, "Server %ld not found", number(c, 1));
	if (stranger(c) && c->conn->uid != c->d->server.uid)
		return refuse(c, "Insufficient privileges for UID %u. Only the root user may shutdown another user's server.",
			      c->conn->uid);
	if (strcmp(argument(c, 2), "-f") == 0)
		kill(c->d->server.pid, SIGKILL);
	else
		daemon_stop_server(c->d);
	return 0;
}

static int terminate_client(struct call *c)
{
	long pid = number(c, 2);

	if (!is_server(c, number(c, 1))) {
		refuse(c, "Server %ld not found", number(c, 1));
		refuse(c, "Server %ld not found!", number(c, 1));
		return refuse(c, "1");
	}
	if (c->d->version >= 550 && stranger(c) && c->conn->uid != c->d->server.uid)
		return refuse(c, "Insufficient privileges for UID %u. Only the root user may terminate clients on another "
				 "user's server.", c->conn->uid);
	struct sim_snap *s = sim_begin(c->d->sim);
	struct sim_proc *p = pid != 0 ? snap_by_pid(s, (int)pid) : NULL;

	if (p == NULL || !snap_is_mps_client(p) || p->server != c->d->server.pid) {
		sim_abort(c->d->sim);
		return refuse(c, "1");
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

	if (stranger(c))
		return refuse(c, "Not enough privilege to execute quit command");
	if (strcmp(argument(c, 1), "-f") == 0)
		wait = 0.0;
	else if (strcmp(argument(c, 1), "-t") == 0 && parse_double(argument(c, 2), 0.0, 1e9, &wait))
		daemon_log(c->d, "quit command issued with timeout of %s", argument(c, 2));
	clock_gettime(CLOCK_MONOTONIC, &ts);
	c->d->quitting = true;
	c->d->quit_at = (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9 + wait;
	c->d->quit_fd = c->conn->fd;
	c->later = true;
	return 0;
}

static const struct {
	const char *name;
	int since; /* version */
	int (*run)(struct call *c);
} commands[] = {
	{ "get_server_list", 0, get_server_list },
	{ "get_server_status", 550, get_server_status },
	{ "start_server", 0, start_server },
	{ "shutdown_server", 0, shutdown_server },
	{ "get_client_list", 0, get_client_list },
	{ "get_device_client_list", 0, get_device_client_list },
	{ "ps", 0, ps },
	{ "set_default_device_pinned_mem_limit", 0, set_limit },
	{ "get_default_device_pinned_mem_limit", 0, get_limit },
	{ "set_default_active_thread_percentage", 0, set_percentage },
	{ "get_default_active_thread_percentage", 0, get_percentage },
	{ "terminate_client", 0, terminate_client },
	{ "quit", 0, quit },
};

static int dispatch(struct call *c)
{
	for (unsigned i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		if (strcmp(commands[i].name, c->argv[0]) == 0 && c->d->version >= commands[i].since)
			return commands[i].run(c);
	return refuse(c, "Unknown command \"%s\"", c->argv[0]);
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
	if (c.argc == 0)
		c.argv[c.argc++] = "";
	if (c.out == NULL) {
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
