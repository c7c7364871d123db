/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whole GPUs for a job that libcarma does not answer for, because it is busy, has no processor or
 * fails: a job without a booking would be started ahead of all who wait for memory of GPUs. What is
 * booked was asked of libcarma before (carma_whole). No parser of GRES lists stands here: jobs that
 * ask for GPUs in one plain entry are booked, as nearly all do; others stay as they were written, and
 * yield to every job with a booking when they start.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* The GPUs of gres:gpu, gres:gpu:2, gres:gpu:TYPE or gres:gpu:TYPE:2; 0: it is none of these. */
static uint32_t plain_gpus(const char *list)
{
	static const char gpu[] = GRES_PREFIX "gpu";
	const char *last;
	size_t digits;

	if (strncmp(list, gpu, sizeof(gpu) - 1))
		return 0;
	list += sizeof(gpu) - 1;
	if (!*list)
		return 1;
	for (const char *c = list; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr(":_-.", *c))
			return 0;
	last = strrchr(list, ':');
	if (*list != ':' || (last != list && memrchr(list + 1, ':', (size_t)(last - list - 1))) || last == list + 1)
		return 0; /* more than a type and a number, or no type */
	digits = strspn(last + 1, "0123456789");
	if (!digits)
		return last == list && isalpha((unsigned char)last[1]) ? 1 : 0;
	return last[1 + digits] || digits > 3 ? 0 : (uint32_t)strtoul(last + 1, NULL, 10); /* slurmctld reads 1k as 1024 */
}

static bool is_set(const char *text)
{
	return text && *text;
}

/* The list with the job's GPUs, and its kind (carma.h); NULL: there is none, or several. The cpu=2 of -c 2 may stand
 * in tres_per_task. */
static const char *one_list(const job_desc_msg_t *job, const char *of_tasks, const char **kind)
{
	bool of_job = is_set(job->tres_per_job), of_node = is_set(job->tres_per_node);

	if (is_set(job->tres_per_socket) || (is_set(job->tres_per_task) && strstr(job->tres_per_task, "gres")) ||
	    (of_job && of_node) || (!of_job && !of_node && !*of_tasks))
		return NULL;
	*kind = of_node ? "node" : "job";
	return of_node ? job->tres_per_node : of_job ? job->tres_per_job : of_tasks;
}

/* A line of the block as a line of the answer. */
static void put_line(FILE *to, const job_desc_msg_t *job, const char *entry, const char *line)
{
	const char *text = strchr(line, ' '), *user;
	char anybody[16];

	if (!text++)
		return;
	snprintf(anybody, sizeof(anybody), "%u", CARMA_NO_VAL);
	if (!strncmp(line, "book ", 5)) {
		fprintf(to, "tres_per_node %s,%s\ntres_per_job \n", entry, text);
	} else if (!strncmp(line, "constrain ", 10)) {
		user = strstr(text, anybody);
		if (user) /* with slurm.user_key libcarma alone knows a user's name: a hold for the job does not serve it */
			fprintf(to, "extra %.*s%u%s\n", (int)(user - text), text, job->user_id, user + strlen(anybody));
		else
			fprintf(to, "extra %s\n", text);
	} else if (strncmp(line, "time_limit ", 11) || !job->time_limit || job->time_limit == NO_VAL ||
		   job->time_limit > strtoul(text, NULL, 10)) {
		fprintf(to, "%s\n", line);
	}
}

char *whole_answer(const job_desc_msg_t *job, uint32_t gpus)
{
	bool constrains = record_constrains();
	char *block, *answer = NULL, of_tasks[32] = "";
	const char *kind, *entry;
	uint32_t n;
	size_t len;
	FILE *to;

	if (gpus)
		snprintf(of_tasks, sizeof(of_tasks), GRES_PREFIX "gpu:%u", gpus);
	entry = one_list(job, of_tasks, &kind);
	n = entry ? plain_gpus(entry) : 0;
	if (!n || (constrains && is_set(extra_of(job))) || (!strcmp(kind, "job") && n > 1 && job->max_nodes != 1))
		return NULL;
	block = worker_whole(job->partition ? job->partition : "", kind, n, constrains);
	if (!block)
		return NULL;
	if ((to = open_memstream(&answer, &len))) {
		for (char *rest = block, *line; (line = strsep(&rest, "\n"));)
			put_line(to, job, entry, line);
		if (fclose(to)) {
			free(answer);
			answer = NULL;
		}
	}
	free(block);
	return answer;
}
