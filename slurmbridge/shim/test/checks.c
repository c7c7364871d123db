/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What must hold of the shim's answers, one by one. */
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "host.h"

atomic_int hold, held;

/* On a machine that is busy elsewhere an answer may come after its 50 ms; the
 * job must then be as it was written, or have whole GPUs and its user be told, and
 * the next one is tried a little later: as long as a late call has not ended, others
 * are turned away at once. */
void check_annotate(const char *script)
{
	job_desc_msg_t job;
	char *err;

	for (int tries = 0;; tries++) {
		CHECK(submit(&job, script, &err) == SLURM_SUCCESS && tries < 1000);
		if (!err && strcmp(job.tres_per_node, GRES "gpu:1"))
			break;
		CHECK(err ? strstr(err, "whole GPUs") && strstr(job.tres_per_node, GRES "carma:")
			  : !job.spank_job_env_size && !job.admin_comment);
		free(err);
		clear(&job);
		nap(); /* a library that is stuck turns everybody away at once */
	}
	CHECK(strstr(job.tres_per_node, GRES "gpu:1," GRES "carma:"));
	CHECK(!strcmp(spank(&job, "CARMA_V"), "1"));
	CHECK(atol(spank(&job, "CARMA_SUBMIT")) > 1000000000);
	CHECK(!strncmp(job.admin_comment, "carma={", 7));
	clear(&job);
}

static bool is(const char *text, const char *want)
{
	return want ? text && !strcmp(text, want) : !text;
}

/* --ntasks-per-gpu would be so many tasks for each booked MiB; where no list names a GPU
 * the GPUs follow from the tasks: other GRES, no GPUs and the cpu=2 of -c 2 change nothing. */
void check_tasks_per_gpu(const char *script)
{
	static const struct {
		bool by_nodes; /* as of sbatch -M */
		const char *of_node, *of_job, *of_task;
	} kinds[] = {
		{ false, NULL, NULL, NULL },
		{ false, NULL, GRES "gpu:1", NULL },
		{ true, NULL, NULL, NULL },
		{ false, NULL, NULL, "cpu=2" },
		{ false, GRES "gpu:0", NULL, NULL },
		{ false, GRES "nvme:1", NULL, NULL },
		{ false, NULL, GRES "nvme:1", "cpu=2" },
	};
	job_desc_msg_t job;
	char *err = NULL;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		for (int tries = 0;; tries++) {
			empty(&job);
			job.partition = strdup("gpu");
			job.script = strdup(script);
			if (kinds[i].by_nodes)
				job.min_nodes = job.max_nodes = 1;
			else
				job.num_tasks = 2;
			job.ntasks_per_tres = 2;
			job.tres_per_node = kinds[i].of_node ? strdup(kinds[i].of_node) : NULL;
			job.tres_per_job = kinds[i].of_job ? strdup(kinds[i].of_job) : NULL;
			job.tres_per_task = kinds[i].of_task ? strdup(kinds[i].of_task) : NULL;
			CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS && tries < 1000);
			if (job.tres_per_node && strstr(job.tres_per_node, "carma") && !err) /* answered in time */
				break;
			CHECK(err || (job.ntasks_per_tres == 2 && is(job.tres_per_node, kinds[i].of_node) &&
				      is(job.tres_per_job, kinds[i].of_job)));
			free(err);
			err = NULL;
			clear(&job);
			nap();
		}
		CHECK(strstr(job.tres_per_node, GRES "carma:"));
		CHECK(strstr(job.tres_per_node, GRES "gpu:1") || strstr(job.tres_per_job, GRES "gpu:1"));
		CHECK(job.ntasks_per_tres == NO_VAL16 && job.num_tasks == 2);
		CHECK(!kinds[i].of_job || !strstr(kinds[i].of_job, "nvme") || strstr(job.tres_per_job, GRES "nvme:1"));
		clear(&job);
	}
}

/* A job without GPUs in a partition of CARMA's gets no GPUs by a later change of the number of tasks; elsewhere the
 * job stays as written. The real library answers. */
void check_no_gpus_of_tasks(void)
{
	job_desc_msg_t job;
	char *err = NULL;

	for (int managed = 0; managed < 2; managed++) {
		for (int tries = 0;; tries++) {
			empty(&job);
			job.partition = strdup(managed ? "gpu" : "plain");
			job.num_tasks = 1;
			job.ntasks_per_tres = 2;
			CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS && !err && tries < 1000);
			CHECK(!job.tres_per_node && !job.tres_per_job && job.num_tasks == 1);
			if (job.ntasks_per_tres == (managed ? NO_VAL16 : 2)) /* answered in time */
				break;
			CHECK(managed);
			clear(&job);
			nap();
		}
		clear(&job);
	}
}

/* What a client sends under our names does not get through; the rest does. */
void check_forged(const char *script)
{
	job_desc_msg_t job;
	char *err = NULL;

	empty(&job);
	job.partition = strdup("gpu");
	job.tres_per_node = strdup(GRES "gpu:1");
	job.script = strdup(script);
	job.admin_comment = strdup("of an earlier plugin");
	add_spank(&job, "CARMA_MODE=shared");
	add_spank(&job, "A=1");
	add_spank(&job, NULL);
	add_spank(&job, "SPANK_CARMA_MEM_MIB=1");
	add_spank(&job, "CARMA");
	add_spank(&job, "SPANK_B=2");
	add_spank(&job, "");
	CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS);
	CHECK(!strcmp(spank(&job, "A"), "1") && !strcmp(spank(&job, "SPANK_B"), "2"));
	CHECK(!spank(&job, "SPANK_CARMA_MEM_MIB"));
	if (strcmp(job.tres_per_node, GRES "gpu:1")) /* answered in time */
		CHECK(!strncmp(job.admin_comment, "of an earlier plugin carma={", 28));
	else
		CHECK(!spank(&job, "CARMA_MODE"));
	free(err); /* of whole GPUs */
	clear(&job);
}

void check_answers(void)
{
	job_desc_msg_t job;
	char *err;

	CHECK(told(&job, submit(&job, "refuse", &err), &err) == ESLURM_INVALID_GRES && !strcmp(err, "carma: line 1: no"));
	CHECK(!strcmp(job.tres_per_node, GRES "gpu:1") && !job.spank_job_env_size);
	free(err);
	clear(&job);
	for (int i = 0; i < 2; i++) {
		CHECK(submit(&job, i ? "none" : "leave", &err) == SLURM_SUCCESS && !err);
		CHECK(!strcmp(job.tres_per_node, GRES "gpu:1") && !job.spank_job_env_size && !job.admin_comment);
		clear(&job);
	}
}

/* A time slot, and a signal before its end; what the user has said of them stays. */
void check_slot(void)
{
	job_desc_msg_t job;
	char *err;

	CHECK(told(&job, submit(&job, "slot", &err), &err) == SLURM_SUCCESS && !strcmp(err, "carma: cut"));
	CHECK(job.time_limit == 240 && job.requeue == 1);
	CHECK(job.warn_signal == 10 && job.warn_time == 300 && job.warn_flags == KILL_JOB_BATCH);
	free(err);
	clear(&job);
	empty(&job);
	job.script = strdup("slot");
	job.requeue = 0;
	job.warn_signal = 12;
	job.warn_time = 60;
	CHECK(job_submit(&job, A_USER, NULL) == SLURM_SUCCESS);
	CHECK(job.requeue == 0 && job.warn_signal == 12 && job.warn_time == 60 && job.warn_flags == 0);
	clear(&job);
}

/* --carma, by the entry of the SPANK plugin's option, and the variable CARMA. */
void check_keys(void)
{
	static char *env[] = { "CARMA_TASK=no", "XCARMA=no", "CARMA=mem=2G", "CARMA=mem=3G" };
	char *long_one, *err;
	job_desc_msg_t job;

	CHECK(told(&job, submit(&job, "keys", &err), &err) == SLURM_SUCCESS && !strcmp(err, ";"));
	free(err);
	clear(&job);
	empty(&job);
	job.script = strdup("keys");
	job.environment = env;
	job.env_size = 4;
	add_spank(&job, "_SLURM_SPANK_OPTION_carma_carma=mem=1G");
	err = NULL;
	CHECK(told(&job, job_submit(&job, A_USER, &err), &err) == SLURM_SUCCESS && !strcmp(err, "mem=1G;mem=2G"));
	CHECK(!strcmp(spank(&job, "_SLURM_SPANK_OPTION_carma_carma"), "mem=1G")); /* it stays */
	free(err);
	CHECK(asprintf(&long_one, "_SLURM_SPANK_OPTION_carma_carma=%05000d", 0) > 0);
	free(job.spank_job_env[0]);
	job.spank_job_env[0] = long_one;
	job.env_size = 2;
	err = NULL;
	CHECK(told(&job, job_submit(&job, A_USER, &err), &err) == SLURM_SUCCESS && strlen(err) == CARMA_KEYS_MAX + 1);
	free(err);
	job.environment = NULL;
	clear(&job);
}

/* The values of the variables that libcarma names, and of no others; a library that names some again
 * is not asked a third time. */
void check_vars(void)
{
	static char *env[] = { "XMODEL=no", "MODEL=small", "EMPTY=", "MODEL=large", NULL, "SIZE=7=7", "MODEL_2=no" };
	char *long_one, *err;
	job_desc_msg_t job;

	empty(&job);
	job.script = strdup("vars EMPTY,MODEL,NONE,SIZE\n");
	job.environment = env;
	job.env_size = 7;
	err = NULL;
	CHECK(told(&job, job_submit(&job, A_USER, &err), &err) == SLURM_SUCCESS &&
	      !strcmp(err, "EMPTY=\x1fMODEL=small\x1fNONE=\x1fSIZE=7=7\x1f"));
	free(err);
	CHECK(asprintf(&long_one, "MODEL=%05000d", 0) > 0);
	env[0] = long_one;
	err = NULL;
	CHECK(told(&job, job_submit(&job, A_USER, &err), &err) == SLURM_SUCCESS && strlen(err) == CARMA_ARGS_MAX - 1);
	free(err);
	free(long_one);
	env[0] = "XMODEL=no";
	free(job.script);
	job.script = strdup("vars A,B,C,D,E,F,G,H,MODEL\n"); /* one more than libcarma names */
	err = NULL;
	CHECK(told(&job, job_submit(&job, A_USER, &err), &err) == SLURM_SUCCESS &&
	      !strcmp(err, "A=\x1f""B=\x1f""C=\x1f""D=\x1f""E=\x1f""F=\x1fG=\x1fH=\x1f"));
	free(err);
	free(job.script);
	job.script = strdup("again");
	err = NULL;
	CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS && !err && !job.tres_per_node);
	job.environment = NULL;
	job.env_size = 0;
	clear(&job);
	CHECK(told(&job, submit(&job, "vars MODEL", &err), &err) == SLURM_SUCCESS);
	CHECK(!strcmp(err, CARMA_NO_VALUES)); /* as of srun */
	free(err);
	clear(&job);
}

/* The real library asks for the values of variables, which make the key; no other variable does. */
void check_keys_of_values(void)
{
	static const char *const models[] = { "MODEL=small", "MODEL=small", "MODEL=large" };
	char key[3][32], other[32], *env[2], *err = NULL;
	job_desc_msg_t job;

	for (int i = 0; i < 3;) {
		snprintf(other, sizeof(other), "OTHER=%d", i);
		env[0] = (char *)models[i];
		env[1] = other;
		empty(&job);
		job.partition = strdup("gpu");
		job.tres_per_node = strdup(GRES "gpu:1");
		job.script = strdup("#!/bin/sh\n#CARMA on vars=MODEL\ntrue\n");
		job.environment = env;
		job.env_size = 2;
		CHECK(job_submit(&job, A_USER, &err) == SLURM_SUCCESS);
		if (spank(&job, "CARMA_KEY")) /* answered in time */
			snprintf(key[i++], sizeof(key[0]), "%s", spank(&job, "CARMA_KEY"));
		else
			nap();
		free(err); /* of whole GPUs */
		err = NULL;
		job.environment = NULL;
		clear(&job);
	}
	CHECK(!strcmp(key[0], key[1]) && strcmp(key[0], key[2]));
}

/* How often this thread has gone to sleep by itself. */
static long sleeps(void)
{
	struct rusage used;

	CHECK(!getrusage(RUSAGE_THREAD, &used));
	return used.ru_nvcsw;
}

/* While the worker does not go on one submission waits for it and no more. Another try on a machine
 * that held up this one. */
void check_starved(void)
{
	job_desc_msg_t job;
	int waited = 0;
	char *err;

	for (int tries = 0; tries < 10; tries++) {
		CHECK(submit(&job, "sleep", &err) == SLURM_SUCCESS && !err);
		clear(&job);
		waited = 0;
		for (double end = now_ms() + 170, at = now_ms(); at < end;) { /* it sleeps 300 ms, 50 are over */
			long before = sleeps();

			CHECK(submit(&job, "x", &err) == SLURM_SUCCESS && !err);
			clear(&job);
			waited += now_ms() - at >= 49 && sleeps() > before; /* without a processor it does not wait */
			at = now_ms();
		}
		do { /* until it answers again */
			nap();
			submit(&job, "x", &err);
			err = strstr(job.tres_per_node, "carma");
			clear(&job);
		} while (!err);
		if (waited <= 1)
			return;
	}
	CHECK(waited <= 1);
}

/* A stuck library costs a few submissions their 50 ms and later ones nothing. */
void check_stuck(void)
{
	job_desc_msg_t job;
	char *err;
	double start, longest = 0;
	unsigned long before = errors_logged;

	hold = 1;
	do { /* a worker without a processor does not take the job */
		nap();
		start = now_ms();
		CHECK(submit(&job, "hold", &err) == SLURM_SUCCESS && !err && !strcmp(job.tres_per_node, GRES "gpu:1"));
		clear(&job);
		if (now_ms() - start > longest)
			longest = now_ms() - start;
	} while (!held);
	CHECK(longest >= 49);
	while (now_ms() < start + 220) { /* 50, 150 until it is stuck, and some */
		CHECK(submit(&job, "x", &err) == SLURM_SUCCESS && !err && !strcmp(job.tres_per_node, GRES "gpu:1"));
		clear(&job);
	}
	for (int i = 0; i < 100; i++) {
		CHECK(submit(&job, "x", &err) == SLURM_SUCCESS && !err);
		clear(&job);
	}
	CHECK(errors_logged <= before + 1); /* a line a minute */
	hold = 0;
	do { /* it answers at last and is asked again */
		nap();
		submit(&job, "x", &err);
		start = strstr(job.tres_per_node, "carma") ? 1 : 0;
		clear(&job);
	} while (start == 0);
}

/* A submission while the worker looks at carma.toml (every 2 s; the fake takes
 * 300 ms over it) goes unanswered; the next ones must not. */
void check_tick(const char *script)
{
	const struct timespec until_tick = { 2, 100000000 };
	job_desc_msg_t job;
	char *err;

	nanosleep(&until_tick, NULL);
	CHECK(submit(&job, script, &err) == SLURM_SUCCESS && !err);
	clear(&job);
	check_annotate(script);
}

/* One that hangs costs a few submissions their 50 ms and later ones nothing. */
void check_long_tick(const char *script)
{
	const struct timespec until_tick = { 4, 0 };
	job_desc_msg_t job;
	double start;
	char *err;

	CHECK(submit(&job, "long tick", &err) == SLURM_SUCCESS);
	free(err);
	clear(&job);
	nanosleep(&until_tick, NULL);
	start = now_ms();
	for (int i = 0; i < 20; i++) {
		CHECK(submit(&job, script, &err) == SLURM_SUCCESS);
		free(err);
		clear(&job);
	}
	CHECK(now_ms() - start < 20 * 49);
	check_annotate(script);
}

static int ticks(void)
{
	job_desc_msg_t job;
	char *err;
	int n = -1;

	CHECK(submit(&job, "ticks", &err) == SLURM_SUCCESS);
	if (err)
		n = atoi(err);
	free(err);
	clear(&job);
	return n;
}

/* The worker looks at carma.toml also when submissions leave it no pause. */
void check_tick_when_busy(void)
{
	int before;

	while ((before = ticks()) < 0)
		nap();
	for (double start = now_ms(); ticks() <= before; nap())
		CHECK(now_ms() - start < 20000);
}

void check_none(const char *script)
{
	job_desc_msg_t job;
	char *err;

	for (int i = 0; i < 100; i++) {
		CHECK(submit(&job, script, &err) == SLURM_SUCCESS && !err);
		CHECK(!strcmp(job.tres_per_node, GRES "gpu:1") && !job.spank_job_env_size && !job.admin_comment);
		clear(&job);
	}
	CHECK(errors_logged == 1);
}
