/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the child a process that reads with the user's rights and that the user can do nothing to: its real, effective
 * and saved uid stay 0, so kill(2), ptrace(2) and prlimit(2) refuse him; its fsuid, which decides what it may open and
 * what an NFS client tells its server, is the user's; and it has no capability.
 *
 * File system uid and capabilities belong to a thread, and execve(2) resets the former (credentials(7)). So this runs
 * in the new program before Go's runtime starts its threads; these inherit all of it. AllThreadsSyscall is no way: it
 * does nothing in a program that links C.
 */
#include <errno.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "credentials.h"

int userfile_ready;

static bool parse_uid(const char *text, uid_t *uid)
{
	char *end;

	errno = 0;
	unsigned long n = strtoul(text, &end, 10);
	if (errno || *text < '0' || *text > '9' || *end || n >= UINT32_MAX)
		return false;
	*uid = (uid_t)n;
	return true;
}

static bool is_root(void)
{
	uid_t real, effective, saved;

	return !getresuid(&real, &effective, &saved) && !real && !effective && !saved;
}

/* Nothing gives a capability back: no execve, no change of ids, no ambient set. */
static bool keep_none(void)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return false;
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0))
			return false;
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
		return false;
	return !prctl(PR_SET_SECUREBITS, SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP |
		      SECBIT_NO_SETUID_FIXUP_LOCKED | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE |
		      SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED, 0, 0, 0);
}

/* setfsuid(2) tells no error; what it returns is the id of before. */
static bool read_as(uid_t uid)
{
	setfsuid(uid);
	return setfsuid((uid_t)-1) == (int)uid;
}

static bool drop_all(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

	return !syscall(SYS_capset, &header, none);
}

/* Both are undone by a change of credentials, so they come last. */
static bool close_up(pid_t parent)
{
	return !prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) && !prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) && getppid() == parent;
}

__attribute__((constructor)) static void become(int argc, char **argv)
{
	pid_t parent = getppid();
	uid_t uid;

	if (argc != 3 || strcmp(argv[1], USERFILE_COMMAND) || !parse_uid(argv[2], &uid))
		return;
	userfile_ready = is_root() && keep_none() && read_as(uid) && drop_all() && close_up(parent);
}
