/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tries what a user may do to a process of the same user, and says "reached ..." for what it could.
 *
 * usage: trace PID...
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		pid_t pid = atoi(argv[i]);
		struct rlimit limit;
		struct iovec here = { &limit, 1 }, there = { (void *)8192, 1 };
		char path[64];
		int fd;

		printf("looked at %d\n", pid);
		if (ptrace(PTRACE_SEIZE, pid, 0, 0) == 0) {
			printf("reached %d by ptrace\n", pid);
			ptrace(PTRACE_DETACH, pid, 0, 0);
		}
		/* EFAULT: it may, and nothing lies there. */
		if (process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0)
			printf("reached memory of %d\n", pid);
		if (prlimit(pid, RLIMIT_NPROC, NULL, &limit) == 0)
			printf("reached limits of %d\n", pid);
		snprintf(path, sizeof(path), "/proc/%d/mem", pid);
		if ((fd = open(path, O_RDWR)) >= 0)
			printf("reached %s\n", path);
		snprintf(path, sizeof(path), "/proc/%d/environ", pid);
		if ((fd = open(path, O_RDONLY)) >= 0)
			printf("reached %s\n", path);
	}
	return 0;
}
