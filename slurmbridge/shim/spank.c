/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The entries of a job's spank_job_env, which Prolog and Epilog see as SPANK_*. */
#include <string.h>

#include <slurm/slurm.h>

#include "job.h"

/* More than any site has; to merge them costs slurmctld the square of their number. */
#define MAX_ENTRIES 512
#define MAX_SEEN 4096 /* a user's array may be as large as a message; those beyond are dropped unseen */
#define MAX_BYTES (256 << 10)
#define MAX_NAME 254

static size_t name_length(const char *entry)
{
	return strcspn(entry, "=");
}

static bool given(char **entries, uint32_t n, const char *entry)
{
	size_t len = name_length(entry) + 1;

	for (uint32_t i = 0; i < n; i++)
		if (!strncmp(entries[i], entry, len))
			return true;
	return false;
}

/* What looks like ours is not. And slurmctld (job_common_env_vars() up to 26.05,
 * for mail and for record.c) merges the entries into an array, leaves out those
 * without "=", with a long name and the second of a name, and then writes as many
 * as there were before: beyond the end of the array. So they go here. */
static bool keep(char **kept, uint32_t n, size_t bytes, const char *entry)
{
	const char *name = strncmp(entry, "SPANK_", 6) ? entry : entry + 6;
	size_t len = name_length(entry);

	return strncmp(name, "CARMA", 5) && entry[len] && len && len <= MAX_NAME && n < MAX_ENTRIES &&
	       bytes + strlen(entry) <= MAX_BYTES && !given(kept, n, entry);
}

void spank_clean(job_desc_msg_t *job)
{
	uint32_t kept = 0;
	size_t bytes = 0;

	for (uint32_t i = 0; job->spank_job_env && i < job->spank_job_env_size; i++) {
		char *entry = job->spank_job_env[i];

		job->spank_job_env[i] = NULL;
		if (entry && i < MAX_SEEN && keep(job->spank_job_env, kept, bytes, entry)) {
			bytes += strlen(entry);
			job->spank_job_env[kept++] = entry;
		} else if (entry) {
			slurm_xfree((void **)&entry);
		}
	}
	job->spank_job_env_size = kept;
}

static void *allocate(size_t n, size_t size)
{
	return slurm_xcalloc(n, size, true, false, __FILE__, __LINE__, __func__);
}

/* A NULL ends the array, which slurmctld's env_array_merge() goes by. */
void spank_grow(job_desc_msg_t *job, size_t more)
{
	uint32_t n = job->spank_job_env_size;
	char **env;

	if (!more)
		return;
	env = allocate(n + more + 1, sizeof(*env));
	if (n)
		memcpy(env, job->spank_job_env, n * sizeof(*env));
	slurm_xfree((void **)&job->spank_job_env);
	job->spank_job_env = env;
}

void spank_add(job_desc_msg_t *job, const char *name_value)
{
	static const char prefix[] = "CARMA_";
	size_t len = strlen(name_value) + 1;
	char *entry;

	if (!strchr(name_value, '='))
		return;
	entry = allocate(1, sizeof(prefix) - 1 + len);
	memcpy(entry, prefix, sizeof(prefix) - 1);
	memcpy(entry + sizeof(prefix) - 1, name_value, len);
	job->spank_job_env[job->spank_job_env_size++] = entry;
}
