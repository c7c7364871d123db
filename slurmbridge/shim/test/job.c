/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Job descriptions, and a moment to wait between them. */
#include <string.h>
#include <time.h>

#include "host.h"

static double ms_of(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

double now_ms(void)
{
	return ms_of(CLOCK_MONOTONIC);
}

/* What this thread has worked, however busy the machine is. */
double cpu_ms(void)
{
	return ms_of(CLOCK_THREAD_CPUTIME_ID);
}

void nap(void)
{
	struct timespec pause = { 0, 10000000 };

	nanosleep(&pause, NULL);
}

void empty(job_desc_msg_t *job)
{
	memset(job, 0, sizeof(*job));
	job->min_nodes = job->max_nodes = job->num_tasks = NO_VAL;
	job->ntasks_per_node = job->sockets_per_node = job->requeue = NO_VAL16;
	job->time_limit = NO_VAL;
}

void clear(job_desc_msg_t *job)
{
	char **texts[] = {
		&job->script, &job->partition, &job->tres_per_node, &job->tres_per_job, &job->tres_per_socket,
		&job->tres_per_task, &job->admin_comment, &job->comment, &job->name, &job->account, &job->cpus_per_tres,
		&job->extra,
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		free(*texts[i]);
	for (uint32_t i = 0; i < job->spank_job_env_size; i++)
		free(job->spank_job_env[i]);
	free(job->spank_job_env);
	memset(job, 0, sizeof(*job));
}

void add_spank(job_desc_msg_t *job, const char *entry)
{
	job->spank_job_env = realloc(job->spank_job_env, (job->spank_job_env_size + 2) * sizeof(char *));
	job->spank_job_env[job->spank_job_env_size++] = entry ? strdup(entry) : NULL;
	job->spank_job_env[job->spank_job_env_size] = NULL;
}

const char *spank(const job_desc_msg_t *job, const char *name)
{
	size_t n = strlen(name);

	for (uint32_t i = 0; i < job->spank_job_env_size; i++)
		if (!strncmp(job->spank_job_env[i], name, n) && job->spank_job_env[i][n] == '=')
			return job->spank_job_env[i] + n + 1;
	return NULL;
}

int submit(job_desc_msg_t *job, const char *script, char **err_msg)
{
	empty(job);
	job->script = script ? strdup(script) : NULL;
	job->partition = strdup("gpu");
	job->tres_per_node = strdup(GRES "gpu:1");
	*err_msg = NULL;
	return job_submit(job, A_USER, err_msg);
}

/* job_submit() again until libcarma, which has 50 ms, has had a word for the user. rc: of the first try. */
int told(job_desc_msg_t *job, int rc, char **err_msg)
{
	for (int tries = 0; !*err_msg && tries < 1000; tries++) {
		CHECK(rc == SLURM_SUCCESS);
		nap();
		rc = job_submit(job, A_USER, err_msg);
	}
	CHECK(*err_msg);
	return rc;
}
