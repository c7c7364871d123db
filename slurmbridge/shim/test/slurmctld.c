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

/* slurmctld's own: it goes to where jobs without a partition go. */
char *default_part_name = "gpu";

/* Of a record, which the shim does not look into. */
struct job_record {
	job_desc_msg_t *job;
};

struct job_record *record_of(job_desc_msg_t *job)
{
	struct job_record *r = malloc(sizeof(*r));

	r->job = job;
	return r;
}

/* The accounting database has one operator. */
#define AN_OPERATOR 7

bool validate_operator(uid_t uid)
{
	return uid == AN_OPERATOR;
}

bool extra_constraints_enabled(void)
{
	return true;
}

static char **find(char **env, const char *entry, size_t len)
{
	while (*env && strncmp(*env, entry, len))
		env++;
	return env;
}

/* As slurmctld's: entries are merged up to the NULL that ends them, those without
 * "=" or with a long name left out, and then as many as there were get their
 * prefix, in an array of as many as are left. */
char **job_common_env_vars(struct job_record *record, bool is_complete)
{
	char **from = record->job->spank_job_env, **env = calloc(1, sizeof(*env)), **at;
	size_t n = 0;

	CHECK(!is_complete);
	for (; from && *from; from++) {
		size_t len = strcspn(*from, "=") + 1;

		if (!(*from)[len - 1] || len > 256)
			continue;
		at = find(env, *from, len);
		free(*at);
		if (!*at) {
			env = realloc(env, (++n + 1) * sizeof(*env));
			at = env + n - 1;
			env[n] = NULL;
		}
		*at = strdup(*from);
	}
	for (uint32_t i = 0; i < record->job->spank_job_env_size; i++) {
		char *entry = env[i];

		CHECK(entry);
		if (strncmp(entry, "SPANK_", 6)) {
			CHECK(asprintf(&env[i], "SPANK_%s", entry) > 0);
			free(entry);
		}
	}
	env = realloc(env, (n + 3) * sizeof(*env));
	if (record->job->extra)
		CHECK(asprintf(&env[n++], "SLURM_JOB_EXTRA=%s", record->job->extra) > 0);
	if (record->job->partition)
		CHECK(asprintf(&env[n++], "SLURM_JOB_PARTITION=%s", record->job->partition) > 0);
	env[n] = NULL;
	return env;
}

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

char first_info[128];

void slurm_info(const char *format, ...)
{
	va_list args;

	if (*first_info)
		return;
	va_start(args, format);
	vsnprintf(first_info, sizeof(first_info), format, args);
	va_end(args);
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
