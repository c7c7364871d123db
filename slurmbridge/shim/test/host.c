/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Drives the shim as slurmctld does, without a slurmctld, under the sanitizers:
 *
 *   host N      N hostile job descriptions, and the checks below
 *   host real   the same checks against the real libcarma
 *   host none   a libcarma that cannot be loaded: jobs are left as they are
 *   host time N N submissions by one thread and by 8 at once: how long job_submit takes
 *
 * It stands in for libslurmfull with the few functions that the shim uses.
 */
#include <assert.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "../shim.h"

/* How slurmctld of this version writes a GRES into a job. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
#define GRES "gres/"
#else
#define GRES "gres:"
#endif

extern int init(void);
extern int fini(void);
extern int job_submit(job_desc_msg_t *job, uint32_t uid, char **err_msg);

static unsigned long errors_logged;

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

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void nap(void)
{
	struct timespec pause = { 0, 10000000 };

	nanosleep(&pause, NULL);
}

static void empty(job_desc_msg_t *job)
{
	memset(job, 0, sizeof(*job));
	job->min_nodes = job->num_tasks = NO_VAL;
	job->ntasks_per_node = job->sockets_per_node = job->requeue = NO_VAL16;
	job->time_limit = NO_VAL;
}

static void clear(job_desc_msg_t *job)
{
	free(job->script);
	free(job->partition);
	free(job->tres_per_node);
	free(job->tres_per_job);
	free(job->tres_per_socket);
	free(job->tres_per_task);
	free(job->admin_comment);
	for (uint32_t i = 0; i < job->spank_job_env_size; i++)
		free(job->spank_job_env[i]);
	free(job->spank_job_env);
	memset(job, 0, sizeof(*job));
}

static void add_spank(job_desc_msg_t *job, const char *entry)
{
	job->spank_job_env = realloc(job->spank_job_env, (job->spank_job_env_size + 1) * sizeof(char *));
	job->spank_job_env[job->spank_job_env_size++] = entry ? strdup(entry) : NULL;
}

static const char *spank(const job_desc_msg_t *job, const char *name)
{
	size_t n = strlen(name);

	for (uint32_t i = 0; i < job->spank_job_env_size; i++)
		if (!strncmp(job->spank_job_env[i], name, n) && job->spank_job_env[i][n] == '=')
			return job->spank_job_env[i] + n + 1;
	return NULL;
}

static int submit(job_desc_msg_t *job, const char *script, char **err_msg)
{
	empty(job);
	job->script = script ? strdup(script) : NULL;
	job->partition = strdup("gpu");
	job->tres_per_node = strdup(GRES "gpu:1");
	*err_msg = NULL;
	return job_submit(job, 1000, err_msg);
}

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
extern int job_modify(job_desc_msg_t *job, void *record, uint32_t uid, char **err_msg);
#define MODIFY(job, uid, err) job_modify(job, NULL, uid, err)
#else
extern int job_modify(job_desc_msg_t *job, void *record, uint32_t uid);
#define MODIFY(job, uid, err) job_modify(job, NULL, uid)
#endif

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)

/* On a machine that is busy elsewhere an answer may come after its 50 ms; the
 * job must then be as it was written, and the next one is tried a little later:
 * as long as a late call has not ended, others are turned away at once. */
static void check_annotate(const char *script)
{
	job_desc_msg_t job;
	char *err;

	for (int tries = 0;; tries++) {
		CHECK(submit(&job, script, &err) == SLURM_SUCCESS && !err && tries < 1000);
		if (strcmp(job.tres_per_node, GRES "gpu:1"))
			break;
		CHECK(!job.spank_job_env_size && !job.admin_comment);
		clear(&job);
		nap(); /* a library that is stuck turns everybody away at once */
	}
	CHECK(strstr(job.tres_per_node, GRES "gpu:1," GRES "carma:"));
	CHECK(!strcmp(spank(&job, "CARMA_V"), "1"));
	CHECK(atol(spank(&job, "CARMA_SUBMIT")) > 1000000000);
	CHECK(!strncmp(job.admin_comment, "carma={", 7));
	clear(&job);
}

/* What a client sends under our names does not get through; the rest does. */
static void check_forged(const char *script)
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
	CHECK(job_submit(&job, 1000, &err) == SLURM_SUCCESS);
	CHECK(!strcmp(spank(&job, "A"), "1") && !strcmp(spank(&job, "SPANK_B"), "2"));
	CHECK(!spank(&job, "SPANK_CARMA_MEM_MIB"));
	if (strcmp(job.tres_per_node, GRES "gpu:1")) /* answered in time */
		CHECK(!strncmp(job.admin_comment, "of an earlier plugin carma={", 28));
	else
		CHECK(!spank(&job, "CARMA_MODE"));
	clear(&job);
}

static void check_answers(void)
{
	job_desc_msg_t job;
	char *err;

	CHECK(submit(&job, "refuse", &err) == ESLURM_INVALID_GRES && !strcmp(err, "carma: line 1: no"));
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
static void check_slot(void)
{
	job_desc_msg_t job;
	char *err;

	CHECK(submit(&job, "slot", &err) == SLURM_SUCCESS && !strcmp(err, "carma: cut"));
	CHECK(job.time_limit == 240 && job.requeue == 1);
	CHECK(job.warn_signal == 10 && job.warn_time == 300 && job.warn_flags == KILL_JOB_BATCH);
	free(err);
	clear(&job);
	empty(&job);
	job.script = strdup("slot");
	job.requeue = 0;
	job.warn_signal = 12;
	job.warn_time = 60;
	CHECK(job_submit(&job, 1000, NULL) == SLURM_SUCCESS);
	CHECK(job.requeue == 0 && job.warn_signal == 12 && job.warn_time == 60 && job.warn_flags == 0);
	clear(&job);
}

/* Only an administrator writes a booking into a pending job. */
static void check_modify(void)
{
	job_desc_msg_t job;
	char *err = NULL;

	for (int field = 0; field < 4; field++) {
		empty(&job);
		char **list[] = { &job.tres_per_node, &job.tres_per_job, &job.tres_per_socket, &job.tres_per_task };
		*list[field] = strdup(GRES "gpu:1");
		CHECK(MODIFY(&job, 1000, &err) == SLURM_SUCCESS);
		free(*list[field]);
		*list[field] = strdup(GRES "gpu:1," GRES "carma:1");
		CHECK(MODIFY(&job, 1000, &err) == ESLURM_ACCESS_DENIED);
		CHECK(MODIFY(&job, 0, &err) == SLURM_SUCCESS);
		clear(&job);
		free(err);
		err = NULL;
	}
	empty(&job);
	add_spank(&job, "CARMA_MODE=shared");
	CHECK(MODIFY(&job, 1000, &err) == SLURM_SUCCESS && !job.spank_job_env_size);
	clear(&job);
}

/* A stuck library costs a few submissions their 50 ms and later ones nothing. */
static void check_stuck(void)
{
	job_desc_msg_t job;
	char *err;
	double start = now_ms();
	unsigned long before = errors_logged;

	CHECK(submit(&job, "sleep", &err) == SLURM_SUCCESS && !err);
	CHECK(!strcmp(job.tres_per_node, GRES "gpu:1") && now_ms() - start >= 49);
	clear(&job);
	while (now_ms() < start + 220) { /* it sleeps 300 ms */
		CHECK(submit(&job, "x", &err) == SLURM_SUCCESS && !err && !strcmp(job.tres_per_node, GRES "gpu:1"));
		clear(&job);
	}
	for (int i = 0; i < 100; i++) {
		CHECK(submit(&job, "x", &err) == SLURM_SUCCESS && !err);
		clear(&job);
	}
	CHECK(errors_logged <= before + 1); /* a line a minute */
	do { /* it answers at last and is asked again */
		nap();
		submit(&job, "x", &err);
		start = strstr(job.tres_per_node, "carma") ? 1 : 0;
		clear(&job);
	} while (start == 0);
}

/* A submission while the worker looks at carma.toml (every 2 s; the fake takes
 * 300 ms over it) goes unanswered; the next ones must not. */
static void check_tick(const char *script)
{
	const struct timespec until_tick = { 2, 100000000 };
	job_desc_msg_t job;
	char *err;

	nanosleep(&until_tick, NULL);
	CHECK(submit(&job, script, &err) == SLURM_SUCCESS && !err);
	clear(&job);
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
static void check_tick_when_busy(void)
{
	int before;

	while ((before = ticks()) < 0)
		nap();
	for (double start = now_ms(); ticks() <= before; nap())
		CHECK(now_ms() - start < 20000);
}

static void check_none(const char *script)
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

static unsigned seed = 1;

static unsigned dice(unsigned sides)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % sides;
}

static char *noise(unsigned most)
{
	unsigned n = dice(most + 1);
	char *text;

	if (dice(4) == 0)
		return NULL;
	text = malloc(n + 1);
	for (unsigned i = 0; i < n; i++)
		text[i] = (char)(1 + dice(255));
	text[n] = '\0';
	return text;
}

static void hostile(void)
{
	static const char *scripts[] = { "garbage", "none", "leave", "refuse", "x", "#CARMA mem=1G\n" };
	job_desc_msg_t job;
	char *err = NULL;

	empty(&job);
	if (dice(2))
		job.script = dice(3) ? strdup(scripts[dice(6)]) : noise(300);
	if (dice(500) == 0) {
		free(job.script);
		job.script = strdup("huge");
	}
	job.partition = dice(2) ? strdup("gpu") : noise(20);
	job.tres_per_node = dice(2) ? strdup(GRES "gpu:1") : noise(40);
	job.tres_per_job = noise(20);
	job.tres_per_socket = noise(20);
	job.tres_per_task = noise(20);
	job.admin_comment = noise(30);
	job.min_nodes = dice(2) ? NO_VAL : dice(1000);
	job.num_tasks = dice(2) ? 0 : 0xffffffff;
	job.ntasks_per_node = (uint16_t)dice(65536);
	if (dice(3) == 0)
		for (unsigned i = dice(dice(1000) ? 8 : 10000); i > 0; i--) {
			char *e = noise(20);

			add_spank(&job, dice(2) ? "CARMA_X=1" : e);
			free(e);
		}
	job_submit(&job, dice(100000), dice(2) ? &err : NULL);
	free(err);
	clear(&job);
}

static void *submitter(void *script)
{
	for (int i = 0; i < 2000; i++)
		check_annotate(script);
	return NULL;
}

static double *took; /* ms, of all submissions of all threads */
static long each;

static void *timed(void *first)
{
	double *mine = first;
	job_desc_msg_t job;
	char *err;

	for (long i = 0; i < each; i++) {
		double start = now_ms();

		submit(&job, "#!/bin/sh\n#SBATCH --gres=gpu:1\n#CARMA mem=10G batch=32\npython train.py\n", &err);
		mine[i] = now_ms() - start;
		clear(&job);
	}
	return NULL;
}

static int by_size(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;

	return (d > 0) - (d < 0);
}

static void time_it(long n, int threads)
{
	pthread_t thread[8];

	each = n / threads;
	n = each * threads;
	took = calloc((size_t)n, sizeof(*took));
	CHECK(took);
	for (int i = 0; i < threads; i++)
		pthread_create(&thread[i], NULL, timed, took + i * each);
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	qsort(took, (size_t)n, sizeof(*took), by_size);
	printf("job_submit, %ld by %d at once: p50 %.0f us, p99 %.0f us, longest %.0f us\n", n, threads,
	       took[n / 2] * 1e3, took[n * 99 / 100] * 1e3, took[n - 1] * 1e3);
	free(took);
}

int main(int argc, char **argv)
{
	bool real = argc == 2 && !strcmp(argv[1], "real");
	long n = argc == 2 && !real ? atol(argv[1]) : 0;
	char script[] = "#!/bin/sh\n#CARMA mem=10G\n";
	pthread_t thread[8];

	ends_late = argc == 2 && !strcmp(argv[1], "none") && !pthread_key_create(&ending, end_late);
	CHECK(init() == SLURM_SUCCESS);
	if (ends_late) {
		check_none(script);
		return 0;
	}
	if (argc == 3 && !strcmp(argv[1], "time")) {
		time_it(atol(argv[2]), 1);
		time_it(atol(argv[2]), 8);
		return 0;
	}
	CHECK(init() == SLURM_SUCCESS); /* slurmctld 22.05 may do so on reconfigure */
	check_annotate(script);
	check_forged(script);
	check_modify();
	for (int i = 0; i < 8; i++)
		pthread_create(&thread[i], NULL, submitter, script);
	for (int i = 0; i < 8; i++)
		pthread_join(thread[i], NULL);
	if (!real) {
		check_answers();
		check_slot();
		check_stuck();
		check_tick(script);
		check_tick_when_busy();
	}
	for (long i = 0; i < n; i++)
		hostile();
	CHECK(fini() == SLURM_SUCCESS);
	printf("host: %ld hostile jobs, %lu lines logged\n", n, errors_logged);
	return 0;
}
