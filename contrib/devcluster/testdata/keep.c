/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps whatever an MPS daemon's pipe directories offer, and uses it until it is ended.
 *
 * usage: keep WHAT DIR...
 *   silent   a connection to "control" that says nothing
 *   opath    O_PATH descriptors of the directory, "control" and "log": once connecting by path is
 *            refused, connects through these and says nothing
 *   log      "log" open for writing: writes a server's fault into it again and again
 *   lock     waits for the lock of control_lock, and keeps it
 *   all      all of these
 *   flood    writes into "log" as fast as it is read
 *
 * Says "kept" when it has what it wants, and "reached ..." for what it got through what it kept
 * after the directory was closed to its path.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MOST 64
#define FAULT "[2022-04-28 15:56:08.906 Other 11570] Volta MPS: Server is handling a fatal GPU error.\n"

struct kept {
	const char *dir;
	int path_dir, control, path_log, log, closed;
};

static int open_in(const char *dir, const char *name, int flags)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return open(path, flags | O_CLOEXEC);
}

static int join(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	strncpy(to.sun_path, path, sizeof(to.sun_path) - 1);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
		return fd;
	close(fd);
	return -1;
}

static int join_in(const char *dir)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/control", dir);
	return join(path);
}

static void lock(const char *dir)
{
	struct flock all = { .l_type = F_WRLCK };
	int fd = open_in(dir, "control_lock", O_RDWR);

	if (fd < 0 || fork() != 0)
		return;
	while (fcntl(fd, F_SETLKW, &all) != 0)
		usleep(1000);
	printf("locked a file of %s\n", dir);
	for (;;)
		pause();
}

static void reach(struct kept *k)
{
	char path[64];
	int fd;

	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), i ? "/proc/self/fd/%d" : "/proc/self/fd/%d/control", i ? k->control : k->path_dir);
		if ((fd = join(path)) >= 0)
			printf("reached a daemon of %s by %s\n", k->dir, i ? "its socket" : "its directory");
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", k->path_log);
	if (k->log < 0 && (k->log = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC)) >= 0)
		printf("reached a log of %s\n", k->dir);
}

int main(int argc, char **argv)
{
	static struct kept kept[MOST];
	static char full[4096];
	const char *what = argc > 2 ? argv[1] : "";
	int n = argc - 2;

	setvbuf(stdout, NULL, _IONBF, 0);
	memset(full, 'x', sizeof(full));
	full[sizeof(full) - 1] = '\n';
#define WANTS(word) (!strcmp(what, word) || !strcmp(what, "all"))
	for (int i = 0; i < n && i < MOST; i++) {
		struct kept *k = &kept[i];

		*k = (struct kept){ argv[i + 2], -1, -1, -1, -1, 0 };
		if (WANTS("opath")) {
			k->path_dir = open(k->dir, O_PATH | O_CLOEXEC);
			k->control = open_in(k->dir, "control", O_PATH);
			k->path_log = open_in(k->dir, "log", O_PATH);
		}
		if (WANTS("log") || !strcmp(what, "flood"))
			k->log = open_in(k->dir, "log", O_WRONLY | O_NONBLOCK);
		if (WANTS("lock"))
			lock(k->dir);
		if (WANTS("silent") && join_in(k->dir) < 0)
			perror("connect");
	}
	printf("kept\n");
	for (;;) {
		for (int i = 0; i < n && i < MOST; i++) {
			struct kept *k = &kept[i];

			if (!strcmp(what, "flood")) {
				while (k->log >= 0 && write(k->log, full, sizeof(full)) > 0)
					;
				continue;
			}
			/* EACCES: the next one is there. Between the two the daemon before may be ending. */
			if (k->control >= 0 && !k->closed && access(k->dir, X_OK) != 0 && errno == EACCES)
				k->closed = 1;
			if (k->closed)
				reach(k);
			if (k->log >= 0 && write(k->log, FAULT, strlen(FAULT)) < 0 && errno != EAGAIN) {
				close(k->log);
				k->log = -1;
			}
		}
		usleep(strcmp(what, "flood") ? 100000 : 1000);
	}
}
