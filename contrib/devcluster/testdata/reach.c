/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits for the processes of a cluster's hooks, and does to each what it may.
 *
 * usage: reach try SECONDS DIR            stop, trace and read each; say what worked
 *        reach stop SECONDS DIR           stop each for good
 *        reach slow SECONDS DIR           stop each for one and a half seconds
 *        reach freeze SECONDS DIR CGROUP  put each look into a user's file into a frozen cgroup
 *
 * A process is one of the hooks' if it, or one that started it, is carma-node and
 * names DIR. TaskProlog is the user's own.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PIDS (1 << 22)
#define ANCESTORS 4

/* An old process does not turn into one of the hooks'. */
#define YOUNG_SECONDS 1.0

static unsigned char done[PIDS];
static double first_seen[PIDS], stopped_at[PIDS];
static int slowed[4096], slow_count;

static volatile sig_atomic_t over;

static void stop(int signal)
{
	(void)signal;
	over = 1;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static ssize_t read_proc(int pid, const char *name, char *to, size_t room)
{
	char path[64];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
	if ((fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
		return -1;
	n = read(fd, to, room - 1);
	close(fd);
	to[n > 0 ? n : 0] = '\0';
	return n;
}

static int parent_of(int pid)
{
	char text[1024], *end;

	if (read_proc(pid, "stat", text, sizeof(text)) <= 0 || !(end = strrchr(text, ')')))
		return 0;
	return atoi(end + 4);
}

static bool has_word(const char *words, ssize_t n, const char *word)
{
	for (ssize_t i = 0; i < n; i += (ssize_t)strlen(words + i) + 1)
		if (!strcmp(words + i, word))
			return true;
	return false;
}

/* A process between fork and exec still has the words of its parent. */
static bool young(int pid)
{
	if (!first_seen[pid])
		first_seen[pid] = now();
	return now() - first_seen[pid] < YOUNG_SECONDS;
}

static bool of_hook(int pid, const char *dir, bool *look)
{
	char words[4096], first[4096];
	ssize_t n = read_proc(pid, "cmdline", words, sizeof(words));

	if (n <= 0 || has_word(words, n, "task-prolog"))
		return false;
	*look = has_word(words, n, "as-user");
	for (int level = 0; level < ANCESTORS && pid > 1; level++) {
		n = read_proc(pid, "cmdline", words, sizeof(words));
		if (n > 0) {
			snprintf(first, sizeof(first), "%s", words);
			if (!strcmp(basename(first), "carma-node") && !has_word(words, n, "task-prolog") &&
			    memmem(words, (size_t)n, dir, strlen(dir)))
				return true;
		}
		pid = parent_of(pid);
	}
	return false;
}

static int worked(int pid, const char *what)
{
	printf("reached %d: %s\n", pid, what);
	fflush(stdout);
	return 1;
}

static int try(int pid)
{
	char path[64], byte;
	struct iovec here = { &byte, 1 }, there = { (void *)0x400000, 1 };
	int fd, found = 0;
	DIR *d;

	if (!kill(pid, SIGSTOP)) {
		kill(pid, SIGCONT);
		found += worked(pid, "stopped");
	}
	if (!ptrace(PTRACE_SEIZE, pid, 0, 0)) {
		found += worked(pid, "traced");
		ptrace(PTRACE_INTERRUPT, pid, 0, 0);
		waitpid(pid, NULL, __WALL);
		ptrace(PTRACE_DETACH, pid, 0, 0);
	}
	for (const char *const *name = (const char *const[]){ "mem", "environ", "maps", NULL }; *name; name++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", pid, *name);
		if ((fd = open(path, O_RDONLY | O_CLOEXEC)) >= 0) {
			/* Root's environ opens and does not read. */
			if (!strcmp(*name, "mem") || read(fd, &byte, 1) == 1)
				found += worked(pid, *name);
			close(fd);
		}
	}
	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	if ((d = opendir(path))) {
		found += worked(pid, "fd");
		closedir(d);
	}
	if (process_vm_readv(pid, &here, 1, &there, 1, 0) == 1)
		found += worked(pid, "process_vm_readv");
	return found;
}

static void move_to(int pid, const char *cgroup)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	if ((fd = open(path, O_WRONLY | O_CLOEXEC)) < 0 || dprintf(fd, "%d", pid) < 0)
		perror(path);
	if (fd >= 0)
		close(fd);
}

static void go_on(bool all)
{
	for (int i = 0; i < slow_count;)
		if (all || now() - stopped_at[slowed[i]] > 1.5) {
			kill(slowed[i], SIGCONT);
			slowed[i] = slowed[--slow_count];
		} else {
			i++;
		}
}

int main(int argc, char **argv)
{
	int looks = 0, reached = 0, self = getpid();
	double end;

	if (argc < 4 || (!strcmp(argv[1], "freeze") && argc < 5)) {
		fprintf(stderr, "usage: reach try|stop|slow|freeze SECONDS DIR [CGROUP]\n");
		return 2;
	}
	signal(SIGTERM, stop);
	end = now() + atof(argv[2]);
	while (!over && now() < end) {
		DIR *proc = opendir("/proc");
		struct dirent *e;

		while (proc && (e = readdir(proc))) {
			int pid = atoi(e->d_name);
			bool look = false;

			if (!isdigit((unsigned char)*e->d_name) || pid == self || pid >= PIDS || done[pid] || !young(pid) ||
			    !of_hook(pid, argv[3], &look))
				continue;
			/* What a user can reach of it may come with its next exec. */
			if (look)
				done[pid] = 1;
			looks += look;
			if (!strcmp(argv[1], "try")) {
				int found = try(pid);

				reached += found;
				done[pid] = found > 0;
			} else if (!strcmp(argv[1], "freeze")) {
				if (look)
					move_to(pid, argv[4]);
			} else if (!kill(pid, SIGSTOP)) {
				reached++;
				done[pid] = 1;
				if (!strcmp(argv[1], "slow") && slow_count < 4096) {
					stopped_at[pid] = now();
					slowed[slow_count++] = pid;
				}
			}
		}
		if (proc)
			closedir(proc);
		go_on(false);
		usleep(500);
	}
	go_on(true);
	printf("looks=%d reached=%d\n", looks, reached);
	return 0;
}
