/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Runs the program that says what a task is told, for as long as it says something. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spank.h"

static long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* LD_PRELOAD and LD_LIBRARY_PATH of a job may be meant for the inside of its container, and
 * would keep a program of the host from starting. CARMA_TASK is this plugin's own. */
char **helper_env(char **env)
{
	size_t n = 0, kept = 0;
	char **copy;

	while (env && env[n])
		n++;
	copy = malloc((n + 1) * sizeof(*copy));
	if (!copy)
		return NULL;
	for (size_t i = 0; i < n; i++)
		if (strncmp(env[i], "LD_", 3) && strncmp(env[i], "CARMA_TASK=", 11))
			copy[kept++] = env[i];
	copy[kept] = NULL;
	return copy;
}

/* In the child: between fork and exec, so nothing that takes memory. It ends with the task, for
 * in a process group of its own a tracker by groups (proctrack/pgid) does not find it. */
static void become(const char *path, char **env, int out, int failed, pid_t task)
{
	char *argv[] = { (char *)path, NULL };
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC), to, why;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != task)
		_exit(127);
	setpgid(0, 0);
	if (null >= 0)
		dup2(null, STDIN_FILENO);
	/* stderr stays the task's. failed is above 2, or the pipe would be one of these. */
	to = dup2(out, STDOUT_FILENO); /* kept: -fanalyzer of gcc 13 takes a result that nobody has for a leak */
	if (to >= 0) {
#ifdef SYS_close_range
		syscall(SYS_close_range, 3, UINT_MAX, 4 /* CLOSE_RANGE_CLOEXEC */); /* Linux 5.11 */
#endif
		execve(path, argv, env);
	}
	why = errno;
	if (write(failed, &why, sizeof(why)) < 0)
		_exit(126);
	_exit(127);
}

/* Both ends close at exec, and are none of the standard descriptors. */
static bool tube(int end[2])
{
	if (pipe2(end, O_CLOEXEC))
		return false;
	for (int i = 0; i < 2; i++) {
		int above = fcntl(end[i], F_DUPFD_CLOEXEC, 3);

		close(end[i]);
		end[i] = above;
	}
	return end[0] >= 0 && end[1] >= 0;
}

static void shut(int end[2])
{
	for (int i = 0; i < 2; i++)
		if (end[i] >= 0)
			close(end[i]);
	end[0] = end[1] = -1;
}

/* A task's parent is its slurmstepd. Once that has ended nobody ends the task, and a helper that
 * waits and says so would be waited for for ever. */
#define LOOK_MS 1000

/* Reads to the end of what the helper prints. Returns why it could not be. */
static const char *take(int from, int silence_ms, pid_t stepd, char **output, size_t *len)
{
	long until = now_ms() + silence_ms;
	size_t room = 0;
	ssize_t n;

	for (;;) {
		struct pollfd wait = { .fd = from, .events = POLLIN };
		long left = until - now_ms();

		if (left <= 0)
			return "printed nothing for too long";
		if (getppid() != stepd)
			return "has lost its slurmstepd";
		n = poll(&wait, 1, left < LOOK_MS ? (int)left : LOOK_MS);
		if (n < 0 && errno != EINTR)
			return strerror(errno);
		if (n <= 0)
			continue;
		if (room - *len < 4096) {
			char *more = *len < HELPER_OUTPUT_MAX ? realloc(*output, room + 16384) : NULL;

			if (!more)
				return "printed too much";
			*output = more;
			room += 16384;
		}
		n = read(from, *output + *len, room - *len);
		if (n == 0)
			return NULL;
		if (n < 0 && errno != EINTR)
			return strerror(errno);
		if (n > 0) {
			*len += (size_t)n;
			until = now_ms() + silence_ms;
		}
	}
}

/* Waits for the end of a child that has closed its output, or kills it and what it has started.
 * One that cannot be killed is left: the task is not to wait for it. */
static const char *reap(pid_t pid, int silence_ms, pid_t stepd, bool at_once)
{
	const struct timespec pause = { 0, 2000000 };
	long until = now_ms() + silence_ms;
	bool killed = false;
	int status;
	pid_t got;

	for (;;) {
		if (!killed && (at_once || now_ms() >= until || getppid() != stepd)) {
			kill(-pid, SIGKILL);
			kill(pid, SIGKILL); /* it may not have got to setpgid() */
			killed = true;
			until = now_ms() + 2000;
		} else if (killed && now_ms() >= until) {
			return "does not end";
		}
		got = waitpid(pid, &status, WNOHANG);
		if (got == pid)
			break;
		if (got < 0 && errno != EINTR)
			return "ended unseen";
		nanosleep(&pause, NULL);
	}
	if (killed)
		return "does not end";
	if (!WIFEXITED(status))
		return "was ended by a signal";
	return WEXITSTATUS(status) ? "ended with another status than 0" : NULL;
}

const char *helper_run(const char *path, char **env, int silence_ms, char **output, size_t *len)
{
	int out[2] = { -1, -1 }, failed[2] = { -1, -1 }, why;
	const char *error = "no pipe", *ended;
	pid_t pid, task = getpid(), stepd = getppid();

	*output = NULL;
	*len = 0;
	if (!tube(out) || !tube(failed))
		goto done;
	pid = fork();
	if (pid < 0) {
		error = "no process";
		goto done;
	}
	if (pid == 0)
		become(path, env, out[1], failed[1], task);
	close(out[1]);
	close(failed[1]);
	out[1] = failed[1] = -1;
	error = take(out[0], silence_ms, stepd, output, len);
	ended = reap(pid, silence_ms, stepd, error != NULL);
	/* Its end of this pipe is closed, by exec or by its end. */
	if (!error && read(failed[0], &why, sizeof(why)) == sizeof(why))
		error = strerror(why);
	if (!error)
		error = ended;
done:
	if (error) {
		free(*output);
		*output = NULL;
	}
	shut(out);
	shut(failed);
	return error;
}
