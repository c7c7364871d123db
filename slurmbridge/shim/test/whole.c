/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What jobs get for which libcarma has no answer. */
#include <string.h>

#include "host.h"

#define AS_IT_WAS NULL

static const struct {
	char list; /* n: of a node, c: with -c 2, j: of the job, t: by tasks, b: by tasks with -c 2 */
	const char *entry, *want; /* tres_per_node */
} spellings[] = {
	{ 'n', GRES "gpu", GRES "gpu," GRES "carma:100" },
	{ 'n', GRES "gpu:1", GRES "gpu:1," GRES "carma:100" },
	{ 'n', GRES "gpu:2", GRES "gpu:2," GRES "carma:200" },
	{ 'n', GRES "gpu:a100", GRES "gpu:a100," GRES "carma:100" },
	{ 'n', GRES "gpu:nvidia_a100-80.gb:2", GRES "gpu:nvidia_a100-80.gb:2," GRES "carma:200" },
	{ 'n', GRES "gpu:3090:2", GRES "gpu:3090:2," GRES "carma:200" },
	{ 'j', GRES "gpu:1", GRES "gpu:1," GRES "carma:100" },
	{ 'j', GRES "gpu:a100:2", GRES "gpu:a100:2," GRES "carma:200" },
	{ 'c', GRES "gpu:2", GRES "gpu:2," GRES "carma:200" },
	{ 't', "", GRES "gpu:1," GRES "carma:100" },
	{ 'b', "", GRES "gpu:1," GRES "carma:100" },
	/* slurmctld reads 3090 GPUs, 1024 GPUs, none, and so on; no node has as many as 3. */
	{ 'n', GRES "gpu:3090", AS_IT_WAS }, { 'n', GRES "gpu:1k", AS_IT_WAS }, { 'n', GRES "gpu:0", AS_IT_WAS },
	{ 'n', GRES "gpu:3", AS_IT_WAS }, { 'n', GRES "gpu: 2", AS_IT_WAS }, { 'n', GRES "gpu=2", AS_IT_WAS },
	{ 'n', GRES "gpu:", AS_IT_WAS }, { 'n', GRES "gpu::2", AS_IT_WAS }, { 'n', GRES "gpu:a:", AS_IT_WAS },
	{ 'n', GRES "gpu:a:b:1", AS_IT_WAS }, { 'n', GRES "gpu:-1", AS_IT_WAS }, { 'n', GRES "gpu:1(S:0)", AS_IT_WAS },
	{ 'n', GRES "gpu:1," GRES "carma:1", AS_IT_WAS }, { 'n', GRES "gpu:1," GRES "gpu:1", AS_IT_WAS },
	{ 'n', GRES "gpus:1", AS_IT_WAS }, { 'n', "gpu:1", AS_IT_WAS }, { 'n', GRES "x:1", AS_IT_WAS },
	{ 'n', "", AS_IT_WAS }, { 'j', GRES "carma:1", AS_IT_WAS },
};

static char *not_answered(job_desc_msg_t *job, char *partition)
{
	char *err = NULL;

	job->partition = partition ? strdup(partition) : NULL;
	job->script = strdup("leave");
	CHECK(job_submit(job, A_USER, &err) == SLURM_SUCCESS && !err);
	return job->tres_per_node;
}

static void is_as_it_was(const job_desc_msg_t *job)
{
	CHECK(!job->spank_job_env_size && !job->admin_comment && !job->time_limit);
}

static void check_spellings(void)
{
	job_desc_msg_t job;
	char *got;

	for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
		empty(&job);
		job.time_limit = 0;
		job.max_nodes = 1;
		job.user_id = 1234;
		if (spellings[i].list == 'c' || spellings[i].list == 'b')
			job.tres_per_task = strdup("cpu=2");
		if (spellings[i].list == 'n' || spellings[i].list == 'c')
			job.tres_per_node = strdup(spellings[i].entry);
		else if (spellings[i].list == 'j')
			job.tres_per_job = strdup(spellings[i].entry);
		else
			job.num_tasks = job.ntasks_per_tres = 4;
		got = not_answered(&job, i % 2 ? "late" : NULL);
		if (spellings[i].want == AS_IT_WAS) {
			is_as_it_was(&job);
		} else {
			CHECK(got && !strcmp(got, spellings[i].want) && !job.tres_per_job);
			CHECK(!strcmp(spank(&job, "CARMA_LIST"), strchr("nc", spellings[i].list) ? "node" : "job"));
			CHECK(spank(&job, "CARMA_V") && spank(&job, "CARMA_SUBMIT") && job.time_limit == 240);
			CHECK(!strcmp(job.admin_comment, "carma={\"late\":1}"));
			CHECK(job.ntasks_per_tres == (strchr("tb", spellings[i].list) ? NO_VAL16 : 0));
#if HAS_EXTRA
			CHECK(!strcmp(job.extra, "carma1>=100|carma1u1234>=100"));
#endif
		}
		clear(&job);
	}
}

/* A job that may get GPUs of several nodes, has an extra of its own, names several of CARMA's partitions
 * or none of them; and a job's own shorter time limit. */
void check_whole(void)
{
	static char *partitions[] = { "late,", "late,late", "plain", "gpu", "lat", "late2" };
	job_desc_msg_t job;

	check_spellings();
	empty(&job);
	job.max_nodes = NO_VAL;
	job.time_limit = 0;
	job.tres_per_job = strdup(GRES "gpu:2");
	CHECK(!not_answered(&job, "late"));
	is_as_it_was(&job);
	clear(&job);
	for (size_t i = 0; i < sizeof(partitions) / sizeof(partitions[0]); i++) {
		empty(&job);
		job.time_limit = 0;
		job.tres_per_node = strdup(GRES "gpu:1");
		CHECK(!strcmp(not_answered(&job, partitions[i]), GRES "gpu:1"));
		is_as_it_was(&job);
		clear(&job);
	}
	empty(&job);
	job.time_limit = 7;
	job.tres_per_node = strdup(GRES "gpu:1");
	CHECK(strstr(not_answered(&job, "plain,late"), "carma:100") && job.time_limit == 7);
	clear(&job);
#if HAS_EXTRA
	empty(&job);
	job.time_limit = 0;
	job.extra = strdup("a=1");
	job.tres_per_node = strdup(GRES "gpu:1");
	CHECK(!strcmp(not_answered(&job, "late"), GRES "gpu:1") && !strcmp(job.extra, "a=1"));
	is_as_it_was(&job);
	clear(&job);
#endif
}
