/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "mps_daemon.h"
#include "nap.h"
#include "visible.h"

#define PID_FILE "nvidia-cuda-mps-control.pid"

void daemon_log(struct daemon *d, const char *fmt, ...)
{
	struct timespec ts;
	struct tm tm;
	char stamp[32];
	va_list ap;

	clock_gettime(CLOCK_REALTIME, &ts);
	localtime_r(&ts.tv_sec, &tm);
	strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &tm);
	fprintf(d->log, "[%s.%03ld Control %5d] ", stamp, ts.tv_nsec / 1000000, getpid());
	va_start(ap, fmt);
	vfprintf(d->log, fmt, ap);
	va_end(ap);
	fputc('\n', d->log);
	fflush(d->log);
}

const struct sim_snap *daemon_look(struct daemon *d)
{
	static struct sim_snap s;

	sim_reap(d->sim, 0.0);
	sim_read(d->sim, &s);
	return &s;
}

static double monotonic(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/*
 * In the child: become the server of that user. Only root can serve others, as with the real daemon, whose servers keep
 * root's group (550): so their user can send them signals, and nothing else (ptrace(2) wants the group, too).
 */
static void exec_server(const struct daemon *d, int fd, uid_t uid)
{
	char grant[MPS_LINE];
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setgid(0) != 0 || setuid(uid) != 0))
		_exit(1);
	if (geteuid() != uid)
		_exit(1);
	mps_format_grant(&d->defaults, grant);
	/* Through the environment: its command line is the name alone, as the real server's. */
	if (setenv(MPS_GRANT_ENV, grant, 1) == 0 && (fd == MPS_SERVER_FD || dup2(fd, MPS_SERVER_FD) >= 0) &&
	    fcntl(MPS_SERVER_FD, F_SETFD, 0) == 0)
		execl("/proc/self/exe", "nvidia-cuda-mps-server", (char *)NULL);
	_exit(1);
}

void daemon_start_server(struct daemon *d, uid_t uid)
{
	int pair[2];

	if (d->server.pid != 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		return;
	pid_t pid = fork();

	if (pid == 0)
		exec_server(d, pair[1], uid);
	close(pair[1]);
	if (pid < 0) {
		close(pair[0]);
		return;
	}
	d->server = (struct server){ .pid = pid, .uid = uid, .pipe = pair[0], .grant = d->defaults };
	d->server.grant.server = pid;
	daemon_log(d, "Starting new server %d for user %u", pid, uid);
}

void daemon_stop_server(struct daemon *d)
{
	if (d->server.pid == 0 || d->server.stopping)
		return;
	d->server.stopping = true;
	close(d->server.pipe);
	d->server.pipe = -1;
}

static void drop(struct conn *c)
{
	close(c->fd);
	*c = (struct conn){ .fd = -1 };
}

static int clients(const struct daemon *d)
{
	int n = 0;

	for (int i = 0; i < MPS_MAX_CONNS; i++)
		n += d->conn[i].fd >= 0 && d->conn[i].server != 0;
	return n;
}

static struct conn *first_pending(struct daemon *d)
{
	struct conn *first = NULL;

	for (int i = 0; i < MPS_MAX_CONNS; i++) {
		struct conn *c = &d->conn[i];

		if (c->fd >= 0 && c->pending && (first == NULL || c->order < first->order))
			first = c;
	}
	return first;
}

static void grant(struct conn *c, const struct mps_grant *g)
{
	char line[MPS_LINE];

	mps_format_grant(g, line);
	c->pending = false;
	c->server = g->server;
	if (send(c->fd, line, strlen(line), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 || g->server == 0)
		drop(c);
}

/* Strictly in order: while another user's client waits, the server's own user queues behind it. */
static void serve_queue(struct daemon *d)
{
	struct conn *c;

	while (!d->quitting && (c = first_pending(d)) != NULL) {
		if (d->server.pid == 0) {
			daemon_start_server(d, c->uid);
			return;
		}
		if (!d->server.ready || d->server.stopping)
			return;
		if (d->server.uid != c->uid) {
			if (clients(d) == 0)
				daemon_stop_server(d);
			return;
		}
		daemon_log(d, "NEW CLIENT %d from user %u: Server already exists", c->pid, c->uid);
		grant(c, &d->server.grant);
	}
}

/* The end of a connection: perhaps of a client that others wait for. */
static void hang_up(struct daemon *d, struct conn *gone)
{
	pid_t pid = gone->pid;
	bool client = gone->server != 0;

	if (gone->fd == d->quit_fd)
		d->quit_fd = -1;
	drop(gone);
	for (int i = 0; client && i < MPS_MAX_CONNS; i++) {
		struct conn *c = &d->conn[i];

		if (c->fd >= 0 && c->awaits == pid) {
			command_answer(c->fd, 0, "");
			drop(c);
		}
	}
}

static void server_gone(struct daemon *d)
{
	struct conn *c = first_pending(d);
	struct mps_grant none = { .server = 0 };

	daemon_log(d, "Server %d exited", d->server.pid);
	for (int i = 0; i < MPS_MAX_CONNS; i++)
		if (d->conn[i].fd >= 0 && d->conn[i].server == d->server.pid)
			hang_up(d, &d->conn[i]);
	/* It never came up: whoever it was for cannot be served, else it would be started over and over. */
	if (!d->server.ready && c != NULL)
		grant(c, &none);
	if (d->server.pipe >= 0)
		close(d->server.pipe);
	d->server = (struct server){ .pipe = -1 };
}

/* As 535 and 550: while a client that has connected says nothing, nobody else is served. */
static bool says_something(int fd)
{
	char c;
	ssize_t n;

	while ((n = recv(fd, &c, 1, MSG_PEEK)) < 0 && errno == EINTR)
		;
	return n > 0;
}

static void accept_one(struct daemon *d)
{
	int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
	struct ucred who;
	socklen_t len = sizeof(who);

	if (fd < 0)
		return;
	for (int i = 0; i < MPS_MAX_CONNS; i++) {
		if (d->conn[i].fd >= 0)
			continue;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0)
			break;
		daemon_log(d, "Accepting connection...");
		if (!says_something(fd)) {
			daemon_log(d, "User did not send valid credentials");
			break;
		}
		d->conn[i] = (struct conn){ .fd = fd, .pid = who.pid, .uid = who.uid, .order = d->order++ };
		return;
	}
	close(fd);
}

static void read_conn(struct daemon *d, struct conn *c)
{
	char line[MPS_LINE];
	ssize_t n = recv(c->fd, line, sizeof(line) - 1, MSG_DONTWAIT);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		hang_up(d, c);
		return;
	}
	line[n] = '\0';
	line[strcspn(line, "\n")] = '\0';
	if (strcmp(line, "attach") == 0 && c->server == 0) {
		c->pending = true;
		if (!d->server.ready || d->server.uid != c->uid)
			daemon_log(d, "NEW CLIENT %d from user %u: Server is not ready, push client to pending list", c->pid,
				   c->uid);
	} else if (strncmp(line, "run ", 4) != 0 || command_run(d, c, line + 4)) {
		hang_up(d, c);
	}
}

static void read_signals(struct daemon *d)
{
	struct signalfd_siginfo info;

	while (read(d->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			continue;
		d->quitting = true;
		d->quit_at = 0.0;
	}
	for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
		if (pid == d->server.pid)
			server_gone(d);
}

/* True when the daemon may end. */
static bool quit_now(struct daemon *d)
{
	if (!d->quitting)
		return false;
	if (d->server.pid == 0)
		return true;
	if (clients(d) == 0)
		daemon_stop_server(d);
	else if (monotonic() >= d->quit_at)
		kill(d->server.pid, SIGKILL);
	return false;
}

static void read_fifo(struct daemon *d)
{
	char buf[4096];
	ssize_t n;

	while ((n = read(d->fifo, buf, sizeof(buf))) > 0)
		if (write(d->server_log, buf, (size_t)n) != n)
			return;
}

static void loop(struct daemon *d)
{
	while (!quit_now(d)) {
		struct pollfd p[MPS_MAX_CONNS + 4] = { { .fd = d->signals, .events = POLLIN },
						       { .fd = d->listener, .events = POLLIN },
						       { .fd = d->server.ready ? -1 : d->server.pipe, .events = POLLIN },
						       { .fd = d->fifo, .events = POLLIN } };
		char c;

		for (int i = 0; i < MPS_MAX_CONNS; i++)
			p[i + 4] = (struct pollfd){ .fd = d->conn[i].fd, .events = POLLIN };
		poll(p, MPS_MAX_CONNS + 4, d->quitting ? 50 : -1);
		if (p[0].revents != 0)
			read_signals(d);
		if (d->server.pipe >= 0 && p[2].fd == d->server.pipe && p[2].revents != 0 &&
		    recv(d->server.pipe, &c, 1, MSG_DONTWAIT) == 1) {
			d->server.ready = true;
			daemon_log(d, "NEW SERVER %d: Ready", d->server.pid);
		}
		for (int i = 0; i < MPS_MAX_CONNS; i++)
			if (p[i + 4].revents != 0 && d->conn[i].fd == p[i + 4].fd)
				read_conn(d, &d->conn[i]);
		if (p[3].revents != 0)
			read_fifo(d);
		if (p[1].revents != 0)
			accept_one(d);
		serve_queue(d);
	}
}

static int listen_on(const char *dir, const char *name)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -1;
	if ((size_t)snprintf(a.sun_path, sizeof(a.sun_path), "%s/%s", dir, name) < sizeof(a.sun_path)) {
		unlink(a.sun_path);
		if (bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 128) == 0)
			return fd;
	}
	close(fd);
	return -1;
}

/* mode: whatever the umask; 0: what the umask leaves of 0644. */
static int open_in(const char *dir, const char *name, int flags, mode_t mode)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (mode == 0)
		return open(path, flags | O_CREAT | O_CLOEXEC, 0644);
	mode_t old = umask(0);
	int fd = open(path, flags | O_CREAT | O_CLOEXEC, mode);

	umask(old);
	return fd;
}

static void remove_in(const char *dir, const char *name)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	unlink(path);
}

/* The FIFO that servers, which run as users, log through. */
static int make_fifo(const char *dir)
{
	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/log", dir);
	unlink(path);
	if (mkfifo(path, 0777) != 0 || chmod(path, 0777) != 0)
		return -1;
	return open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

/* The lock of a process, which ends with it; anybody who can open the file can take it before. */
static bool take_lock(int fd)
{
	struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	return fcntl(fd, F_SETLK, &all) == 0;
}

/* NULL, or what failed. */
static const char *setup(struct daemon *d)
{
	static const int signals[] = { SIGCHLD, SIGTERM, SIGINT, 0 };
	const char *dir = getenv(MPS_PIPE_ENV), *log_dir = getenv(MPS_LOG_ENV);
	int base[SIM_MAX_GPUS], unit[SIM_MAX_GPUS];

	if (dir == NULL)
		dir = "/tmp/nvidia-mps";
	if (log_dir == NULL)
		log_dir = "/var/log/nvidia-mps";
	mkdir(dir, 0755);
	mkdir(log_dir, 0755);
	d->version = getenv(MPS_VERSION_ENV) == NULL ? 550 : atoi(getenv(MPS_VERSION_ENV));
	int lock = open_in(dir, "control_lock", O_WRONLY, 0666);

	if (lock >= 0 && !take_lock(lock))
		return "An instance of this daemon is already running";
	int log = open_in(log_dir, "control.log", O_WRONLY | O_APPEND, 0);

	d->server_log = open_in(log_dir, "server.log", O_WRONLY | O_APPEND, 0);
	if (lock < 0 || log < 0 || d->server_log < 0 || realpath(dir, d->dir) == NULL)
		return "Cannot write to CUDA_MPS_PIPE_DIRECTORY or CUDA_MPS_LOG_DIRECTORY";
	if ((d->sim = sim_open(NULL)) == NULL)
		return sim_error();
	if ((d->log = fdopen(log, "a")) == NULL || (d->fifo = make_fifo(dir)) < 0 ||
	    (d->privileged = listen_on(dir, "control_privileged")) < 0 || (d->listener = listen_on(dir, "control")) < 0)
		return "Cannot listen on CUDA_MPS_PIPE_DIRECTORY/control: is the path longer than 107 bytes?";
	/* The server finds the state by the same variable, from another directory. */
	char *state = realpath(getenv(SIM_STATE_ENV), NULL);
	const struct sim_snap *s = daemon_look(d);

	char path[PATH_MAX + 64];

	snprintf(path, sizeof(path), "%s/control", d->dir);
	if (chmod(path, 0666) != 0)
		return "Cannot open CUDA_MPS_PIPE_DIRECTORY/control for clients";
	if (state == NULL || setenv(SIM_STATE_ENV, state, 1) != 0 || setenv(MPS_PIPE_ENV, d->dir, 1) != 0 || chdir("/") != 0)
		return "Cannot resolve the path of the state";
	free(state);
	d->defaults.percent = 100;
	d->defaults.gpus = (uint32_t)visible_units(s, base, visible_all(s, base), getenv("CUDA_VISIBLE_DEVICES"), unit);
	for (uint32_t i = 0; i < d->defaults.gpus; i++) {
		d->defaults.gpu[i].unit = unit[i];
		d->defaults.gpu[i].limit = visible_mem_limit(getenv(MPS_LIMIT_ENV), (int)i, s->unit[unit[i]].uuid);
	}
	d->signals = nap_open(signals);
	if (d->version < 550) /* 535 leaves none */
		return NULL;
	int pid_file = open_in(d->dir, PID_FILE, O_WRONLY | O_TRUNC, 0666);

	dprintf(pid_file, "%d", getpid());
	close(pid_file);
	return NULL;
}

int daemon_run(int report_fd)
{
	static struct daemon d;

	d.quit_fd = d.server.pipe = -1;
	for (int i = 0; i < MPS_MAX_CONNS; i++)
		d.conn[i].fd = -1;
	const char *problem = setup(&d);

	if (problem != NULL) {
		dprintf(report_fd, "%s\n", problem);
		return 1;
	}
	if (report_fd > 2)
		close(report_fd);
	daemon_log(&d, "Starting control daemon using socket %s/control", d.dir);
	daemon_log(&d, "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", d.dir);
	loop(&d);
	daemon_log(&d, "Exit with status 0");
	/* As 535 and 550: its sockets and its lock file stay, and so does all of this if it is killed. */
	remove_in(d.dir, "log");
	remove_in(d.dir, PID_FILE);
	if (d.quit_fd >= 0)
		command_answer(d.quit_fd, 0, "");
	return 0;
}
