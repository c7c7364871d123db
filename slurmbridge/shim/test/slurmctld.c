/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the shim uses of libslurmfull, which slurmctld has loaded. */
#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "host.h"

unsigned long errors_logged;

void *slurm_xcalloc(size_t n, size_t size, bool clear, bool may_fail, const char *file, int line, const char *func)
{
	(void)clear, (void)may_fail, (void)file, (void)line, (void)func;
	void *p = calloc(n, size);
	assert(p);
	return p;
}

void slurm_xfree(void **item)
{
	free(*item);
	*item = NULL;
}

char *slurm_xstrdup(const char *text)
{
	return text ? strdup(text) : NULL;
}

void slurm_info(const char *format, ...)
{
	(void)format;
}

/* Makes a thread that logs end late: after AddressSanitizer has let go of it, in
 * the last round of destructors, and before the C library frees what it kept for
 * it. The leak checker, which runs meanwhile, must find nothing there. */
static pthread_key_t ending;
static bool ends_late;

static void end_late(void *rounds_left)
{
	if ((long)rounds_left > 1)
		pthread_setspecific(ending, (void *)((long)rounds_left - 1));
	else
		nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
}

int slurm_error(const char *format, ...)
{
	va_list args;

	if (ends_late)
		pthread_setspecific(ending, (void *)PTHREAD_DESTRUCTOR_ITERATIONS);

	__atomic_add_fetch(&errors_logged, 1, __ATOMIC_RELAXED);
	va_start(args, format);
	fputs("log: ", stdout);
	vprintf(format, args);
	putchar('\n');
	va_end(args);
	return 0;
}

void end_threads_late(void)
{
	CHECK(!pthread_key_create(&ending, end_late));
	ends_late = true;
}
