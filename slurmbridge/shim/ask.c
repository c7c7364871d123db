/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The ask for libcarma about a job (carma.h), and the answer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* The arguments of a script decide its needs. argv[0] is the script's name. */
static void join_args(const job_desc_msg_t *job, char *to, size_t room)
{
	size_t n = 0;

	for (uint32_t i = 1; job->argv && i < job->argc && n < room - 1; i++)
		n += (size_t)snprintf(to + n, room - n, "%s%c", TEXT(job->argv[i]), CARMA_ARG_END);
	to[n < room ? n : room - 1] = '\0';
}

/* More entries than an environment has; slurmctld waits meanwhile. */
#define MOST_ENTRIES 65536

/* The values of so many names; an environment is read once, for reading takes longer than comparing. */
static void values_in(char **env, uint32_t n, const char *const *names, size_t many, const char **values)
{
	size_t len[CARMA_VARS_MAX];

	for (size_t k = 0; k < many; k++) {
		len[k] = strlen(names[k]);
		values[k] = NULL;
	}
	for (uint32_t i = 0; env && i < n && i < MOST_ENTRIES; i++)
		for (size_t k = 0; env[i] && k < many; k++)
			if (!values[k] && !strncmp(env[i], names[k], len[k]) && env[i][len[k]] == '=')
				values[k] = env[i] + len[k] + 1;
}

static const char *value_in(char **env, uint32_t n, const char *name)
{
	const char *value;

	values_in(env, n, &name, 1, &value);
	return value;
}

/* The option of the SPANK plugin arrives so (22.05 to 26.05). */
static const char *option_of(const job_desc_msg_t *job)
{
	return value_in(job->spank_job_env, job->spank_job_env_size, "_SLURM_SPANK_OPTION_carma_carma");
}

/* The environment arrives with batch jobs alone; the plugin sends the variable of any job. */
static const char *variable_of(const job_desc_msg_t *job)
{
	const char *keys = value_in(job->spank_job_env, job->spank_job_env_size, "_CARMA");

	return keys ? keys : value_in(job->environment, job->env_size, "CARMA");
}

/* The values of variables, whose names have commas between. */
static void join_values(const job_desc_msg_t *job, char *names, char *to, size_t room)
{
	const char *name[CARMA_VARS_MAX], *value[CARMA_VARS_MAX];
	size_t many = 0, n = 0;

	if (!job->environment || !job->env_size) {
		snprintf(to, room, CARMA_NO_VALUES);
		return;
	}
	names[strcspn(names, "\n")] = '\0';
	for (char *rest = names; rest && many < CARMA_VARS_MAX;)
		name[many++] = strsep(&rest, ",");
	values_in(job->environment, job->env_size, name, many, value);
	for (size_t k = 0; k < many && n < room - 1; k++)
		n += (size_t)snprintf(to + n, room - n, "%s=%s%c", name[k], TEXT(value[k]), CARMA_ARG_END);
	to[n < room ? n : room - 1] = '\0';
}

static char *ask_of(const job_desc_msg_t *job, uint32_t gpus, const char *values, size_t *len)
{
	const char *option = option_of(job), *variable = variable_of(job);
	char *ask, args[CARMA_ARGS_MAX];
	int n;

	join_args(job, args, sizeof(args));
	n = asprintf(&ask, "%s%c%s%c%s%c%s%c%s%c%u%c%u%c%u%c%u%c%u%c%u%c%u%c%u%c%d%c%s%c%.*s%c%.*s%c%s%c%s%c%.*s",
		     TEXT(job->partition), 0, TEXT(job->tres_per_node), 0, TEXT(job->tres_per_job), 0,
		     TEXT(job->tres_per_socket), 0, TEXT(job->tres_per_task), 0,
		     job->min_nodes, 0, job->num_tasks, 0, WIDE(job->ntasks_per_node), 0,
		     WIDE(job->sockets_per_node), 0, job->user_id, 0, job->time_limit, 0,
		     job->max_nodes, 0, gpus, 0, record_constrains(), 0, TEXT(extra_of(job)), 0,
		     CARMA_KEYS_MAX, TEXT(option), 0, CARMA_KEYS_MAX, TEXT(variable), 0, values, 0, args, 0,
		     CARMA_SCRIPT_MAX, TEXT(job->script));
	*len = (size_t)n;
	return n < 0 ? NULL : ask;
}

/* libcarma's answer for a job; NULL: libcarma leaves the job alone, or, where why is set, has no answer. Where
 * the first answer wants the values of variables, libcarma is asked again with the values. */
static char *asked(const job_desc_msg_t *job, uint32_t gpus, uint32_t submit_uid, const char **why)
{
	char values[CARMA_ARGS_MAX] = "", *ask, *answer;
	size_t len;

	for (bool again = false;; again = true) {
		if (!(ask = ask_of(job, gpus, values, &len))) {
			*why = "out of memory";
			return NULL;
		}
		answer = worker_ask(submit_uid, ask, len, why);
		if (again || !answer || strncmp(answer, "vars ", 5))
			return answer;
		join_values(job, answer + 5, values, sizeof(values));
		free(answer);
	}
}

char *answer_for(const job_desc_msg_t *job, uint32_t gpus, uint32_t submit_uid, bool *late)
{
	const char *why = NULL;
	char *answer = asked(job, gpus, submit_uid, &why), *whole;

	if (answer && !strncmp(answer, "leave ", 6)) {
		why = answer + 6;
		answer[strcspn(answer, "\n")] = '\0';
	}
	*late = why;
	if (!why)
		return answer;
	whole = whole_answer(job, gpus);
	worker_complain(whole ? "whole GPUs booked for a job" : AS_WRITTEN, why);
	free(answer);
	return whole;
}
