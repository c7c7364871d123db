/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks every file below some directories that it can open, and goes on doing so.
 *
 * usage: lock FIRST SECONDS DIR...
 *
 * Of SQLite's shared memory it takes the bytes from FIRST to 127 (120 is the
 * writer's, 121 the checkpoint's, 123 and up the readers': wal.c, WAL_WRITE_LOCK), of
 * other files all.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST 4000

static struct {
	dev_t dev;
	ino_t ino;
} held[MOST];
static int count, first;

static int take(const char *path, const struct stat *st, int type, struct FTW *where)
{
	size_t n = strlen(path);
	struct flock range = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
	int fd;

	(void)type, (void)where;
	if (!S_ISREG(st->st_mode) || count == MOST)
		return 0;
	for (int i = 0; i < count; i++)
		if (held[i].dev == st->st_dev && held[i].ino == st->st_ino)
			return 0;
	if ((fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)) < 0)
		return 0;
	if (n > 4 && !strcmp(path + n - 4, "-shm")) {
		range.l_start = first;
		range.l_len = 128 - first;
	}
	if (fcntl(fd, F_SETLK, &range) && errno != EAGAIN && errno != EACCES)
		perror(path);
	if (flock(fd, LOCK_EX | LOCK_NB))
		flock(fd, LOCK_SH | LOCK_NB);
	held[count].dev = st->st_dev;
	held[count++].ino = st->st_ino;
	printf("holds %s\n", path);
	fflush(stdout);
	return 0;
}

int main(int argc, char **argv)
{
	time_t end;

	if (argc < 4) {
		fprintf(stderr, "usage: lock FIRST SECONDS DIR...\n");
		return 2;
	}
	first = atoi(argv[1]);
	end = time(NULL) + atoi(argv[2]);
	while (time(NULL) < end) {
		for (int i = 3; i < argc; i++)
			nftw(argv[i], take, 16, FTW_PHYS);
		usleep(20000);
	}
	return 0;
}
