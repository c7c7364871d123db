/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * job_submit/carma: the part of CARMA that slurmctld loads.
 *
 * It hands a few fields of a submitted job to libcarma (worker.c) and does what
 * the answer says. It fails open: whatever goes wrong, the job is accepted as
 * it was written and slurmctld goes on. Public headers only.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "job.h"

#ifndef CARMA_VERSION /* the Makefile says it */
#define CARMA_VERSION "unknown"
#endif

const char plugin_name[] = "CARMA job submission";
const char plugin_type[] = "job_submit/carma";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

static pid_t loaded_by;

/* A failing init() is fatal for slurmctld: this one cannot fail. */
extern int init(void)
{
	loaded_by = getpid();
	slurm_info("job_submit/carma: version " CARMA_VERSION);
	record_init();
	worker_start(GRES_PREFIX);
	return SLURM_SUCCESS;
}

/* Compiled out of slurmctld's shutdown, so nothing may depend on it. */
extern int fini(void)
{
	return SLURM_SUCCESS;
}

/* Go code must not run in a forked child (golang/go#12873); the switch file is
 * for the admin who wants CARMA out of the way at once. */
static bool off(void)
{
	return getpid() != loaded_by || worker_is_off();
}

/* root and SlurmUser, as which slurmctld runs and CARMA's hooks change jobs, and whom slurmctld
 * itself lets change others' jobs. */
static bool administrator(uint32_t uid)
{
	return uid == 0 || uid == getuid() || record_operates(uid);
}

static void set(char **field, const char *text)
{
	char *copy = *text ? slurm_xstrdup(text) : NULL;

	slurm_xfree((void **)field);
	*field = copy;
}

/* AdminComment may already hold what an earlier plugin wrote. */
static void add_comment(job_desc_msg_t *job, const char *token)
{
	char *both;

	if (!job->admin_comment || !*job->admin_comment) {
		set(&job->admin_comment, token);
	} else if (asprintf(&both, "%s %s", job->admin_comment, token) >= 0) {
		set(&job->admin_comment, both);
		free(both);
	}
}

/* What the user has said on the command line, or an earlier plugin, stays. */
static void set_signal(job_desc_msg_t *job, const char *text)
{
	unsigned number, seconds;
	char to[8];

	if (sscanf(text, "%u %u %7s", &number, &seconds, to) != 3 || (job->warn_signal && job->warn_signal != NO_VAL16))
		return;
	job->warn_signal = (uint16_t)number;
	job->warn_time = (uint16_t)seconds;
	if (!strcmp(to, "batch"))
		job->warn_flags |= KILL_JOB_BATCH;
}

/* Takes text, which is of slurm_xstrdup(), over. */
static void tell(char **err_msg, char *text)
{
	if (text && err_msg && !*err_msg)
		*err_msg = text;
	else
		slurm_xfree((void **)&text);
}

static int apply_line(job_desc_msg_t *job, const char *word, const char *text, char **err_msg)
{
	const struct {
		const char *word;
		char **field;
	} lists[] = {
		{ "tres_per_node", &job->tres_per_node },
		{ "tres_per_job", &job->tres_per_job },
		{ "tres_per_socket", &job->tres_per_socket },
		{ "tres_per_task", &job->tres_per_task },
	};

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
		if (!strcmp(word, lists[i].word))
			set(lists[i].field, text);
#if HAS_EXTRA
	if (!strcmp(word, "extra"))
		set(&job->extra, text);
#endif
	if (!strcmp(word, "env")) {
		spank_add(job, text);
	} else if (!strcmp(word, "time")) {
		char now[64];

		snprintf(now, sizeof(now), "%.32s=%lld", text, (long long)time(NULL));
		spank_add(job, now);
	} else if (!strcmp(word, "time_limit")) {
		job->time_limit = (uint32_t)strtoul(text, NULL, 10);
	} else if (!strcmp(word, "signal")) {
		set_signal(job, text);
	} else if (!strcmp(word, "requeue")) {
		if (job->requeue == NO_VAL16)
			job->requeue = 1;
	} else if (!strcmp(word, "tell")) {
		tell(err_msg, slurm_xstrdup(text));
	} else if (!strcmp(word, "comment")) {
		add_comment(job, text);
	} else if (!strcmp(word, "refuse")) {
		tell(err_msg, slurm_xstrdup(text));
		return ESLURM_INVALID_GRES;
	}
	return SLURM_SUCCESS;
}

static size_t count_env(const char *answer)
{
	size_t n = 0;

	for (const char *line = answer; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		n += !strncmp(line, "env ", 4) || !strncmp(line, "time ", 5);
	}
	return n;
}

static int apply(job_desc_msg_t *job, char *answer, char **err_msg)
{
	char *line = answer, *end, *text;
	int rc = SLURM_SUCCESS;

	spank_grow(job, count_env(answer));
	for (; !rc && (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		if (!(text = strchr(line, ' ')))
			continue;
		*text++ = '\0';
		rc = apply_line(job, line, text, err_msg);
	}
	return rc;
}

static int __attribute__((format(printf, 3, 4))) refuse(char **why, int rc, const char *format, ...)
{
	char line[200];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	*why = slurm_xstrdup(line);
	return rc;
}

/* What is refused in a partition of CARMA's or any other, with libcarma or without:
 * it would harm others. Nothing is while the switch file is there, or where carma.toml has CARMA
 * watch alone, for Slurm is then to be as it was. */
static int check(job_desc_msg_t *job, const char *partitions, uint32_t uid, char **why)
{
	const char *what;
	char name[64];
	unsigned byte;

	if (worker_watches())
		return SLURM_SUCCESS;
	if ((what = text_with_control(job, &byte)) && byte)
		return refuse(why, EINVAL, "carma: the job's %s has a control character (byte %u); remove it", what, byte);
	if (what)
		return refuse(why, EINVAL, "carma: the job's %s is too long; shorten it", what);
	if (worker_recovers(partitions, name, sizeof(name)) && !administrator(uid))
		return refuse(why, ESLURM_ACCESS_DENIED, "carma: partition %s accepts jobs only from CARMA; name another", name);
	return SLURM_SUCCESS;
}

static bool contains(const char *list, const char *word)
{
	return list && strstr(list, word);
}

static bool asks_for(const job_desc_msg_t *job, const char *gres)
{
	return contains(job->tres_per_node, gres) || contains(job->tres_per_job, gres) ||
	       contains(job->tres_per_socket, gres) || contains(job->tres_per_task, gres);
}

static bool names(const job_desc_msg_t *job, const char *gres)
{
	return asks_for(job, gres) || contains(job->cpus_per_tres, gres) || contains(job->mem_per_tres, gres);
}

/* The nodes of which slurmctld makes the tasks of a job that does not tell their number, as of
 * sbatch -M (gres.c, 22.05; job_mgr.c, _figure_out_num_tasks(), since 23.02); 0: it makes none. */
static uint32_t nodes_for_tasks(const job_desc_msg_t *job)
{
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
	return job->min_nodes == NO_VAL ? 1 : job->min_nodes;
#else
	return job->min_nodes != NO_VAL && job->min_nodes == job->max_nodes ? job->min_nodes : 0;
#endif
}

/* The GPUs made by slurmctld of a job's tasks or nodes and the tasks of a GPU, where no list
 * names a GPU (gres.c, gres_job_state_validate(), 22.05 to 26.05): other GRES may stand there, and
 * from 24.05 on clients write cpu=2 of -c 2 into tres_per_task (slurm_opt.c). */
static uint32_t gpus_for_tasks(const job_desc_msg_t *job)
{
	uint32_t per_gpu = WIDE(job->ntasks_per_tres);

	if (!per_gpu || per_gpu == CARMA_NO_VAL)
		return 0;
	return job->num_tasks != NO_VAL ? job->num_tasks / per_gpu : nodes_for_tasks(job);
}

/* slurmctld takes --ntasks-per-gpu for tasks of each unit of any GRES, and a booking of
 * 40536 MiB for so many times as many tasks (tried: 22.05.8, 25.11.7). The client has
 * made their number of the GPUs already; srun binds its tasks by its own option. */
static void spell_tasks_out(job_desc_msg_t *job, bool of_tasks)
{
	if (!job->ntasks_per_tres || job->ntasks_per_tres == NO_VAL16)
		return;
	if (of_tasks && job->num_tasks == NO_VAL)
		job->num_tasks = nodes_for_tasks(job) * job->ntasks_per_tres;
	if (job->num_tasks != NO_VAL)
		job->ntasks_per_tres = NO_VAL16;
}

static int submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	char *answer, *why = NULL;
	const char *partitions;
	uint32_t gpus;
	bool booked = false, of_tasks, late;
	int rc;

	spank_clean(job);
	if (off())
		return SLURM_SUCCESS;
	partitions = *TEXT(job->partition) ? job->partition : record_default_partition();
	rc = check(job, partitions, submit_uid, &why);
	if (rc) {
		tell(err_msg, why);
		return rc;
	}
	gpus = gpus_for_tasks(job);
	of_tasks = gpus && !asks_for(job, "gpu");
	answer = answer_for(job, gpus, submit_uid, &late);
	if (answer) {
		booked = !strncmp(answer, "tres_per_node ", 14) || strstr(answer, "\ntres_per_node ");
		rc = apply(job, answer, err_msg);
		free(answer);
	}
	/* Without a booking no GPU is to come of the number, now or with the number of tasks of a later change. */
	if (!rc && (booked || (!late && worker_manages(partitions) && !worker_watches())))
		spell_tasks_out(job, of_tasks);
	return rc;
}

/* slurmctld takes an errno that is left behind for its own (job_mgr.c of 22.05,
 * _update_job() with a partition). */
extern int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	int before = errno, rc = submit(job, submit_uid, err_msg);

	errno = before;
	return rc;
}

/* Of these slurmctld makes GPUs, where the job names none (gres_job_state_validate()). */
static bool gives_tasks_per_gpu(const job_desc_msg_t *job)
{
	return job->ntasks_per_tres && job->ntasks_per_tres != NO_VAL16;
}

static bool names_gpus(const job_desc_msg_t *job) { return names(job, "gpu") || gives_tasks_per_gpu(job); }

/* slurmctld makes the job's GRES anew if one of these is given. */
static bool changes_gres(const job_desc_msg_t *job)
{
	return job->tres_per_node || job->tres_per_job || job->tres_per_socket || job->tres_per_task ||
	       job->cpus_per_tres || job->mem_per_tres || gives_tasks_per_gpu(job);
}

static bool changes_nodes(const job_desc_msg_t *job)
{
	return job->min_nodes != NO_VAL || job->max_nodes != NO_VAL || job->num_tasks != NO_VAL ||
	       job->ntasks_per_node != NO_VAL16 || job->sockets_per_node != NO_VAL16;
}

/* Whether the job is, or is to be, in a partition of CARMA's. */
static bool is_managed(const job_desc_msg_t *job, job_record_t *record)
{
	char *now = record_value(record, ITS_PARTITION);
	bool managed = worker_manages(job->partition) || worker_manages(now);

	slurm_xfree((void **)&now);
	return managed;
}

/* A booking is the controller's word to the other jobs of a node: only an
 * administrator writes one into a job, or changes what it was made for. Nor does anybody else
 * add GPUs to a job that has booked none: slurmctld would start it ahead of all who wait. */
static bool breaks_booking(const job_desc_msg_t *job, job_record_t *record)
{
	if (names(job, "carma"))
		return true;
	if (!changes_gres(job) && !changes_nodes(job))
		return false;
	switch (record_booking(record)) {
	case NO_BOOKING:
		return names_gpus(job) && is_managed(job, record);
	case BOOKED:
		return changes_gres(job);
	case BOOKED_BY_NODES:
		return true;
	default: /* a slurmctld that does not say: what a booking may be about stays */
		return names_gpus(job);
	}
}

#if HAS_EXTRA
static const char ours[] = "carma", joint[] = ")&(carma";

/* What a job's user has written in extra, of what libcarma joined (slurmbridge/extra, Join): before
 * the last joint, for CARMA's own part has none. */
static size_t users_part(const char *extra, const char **begin)
{
	const char *end = NULL;

	for (const char *at = extra; (at = strstr(at, joint)); at++)
		end = at;
	*begin = extra;
	if (end && *extra == '(') {
		*begin = extra + 1;
		return (size_t)(end - *begin);
	}
	return strncmp(extra, ours, sizeof(ours) - 1) ? strlen(extra) : 0;
}

/* CARMA's programs write their own part of a job's extra alone, of numbers: what the user wrote
 * never stands in an argument of a command of root's. "carma" alone takes CARMA's part away;
 * where the user wrote none it stays as it is, for slurmctld takes no empty extra (extra_constraints_parse). */
static void join_extra(job_desc_msg_t *job, job_record_t *record)
{
	char *old, *both;
	const char *users;
	size_t len;
	int n;

	if (!job->extra || strncmp(job->extra, ours, sizeof(ours) - 1))
		return;
	old = record_value(record, ITS_EXTRA);
	len = users_part(TEXT(old), &users);
	if (!strcmp(job->extra, ours) && !len) {
		slurm_xfree((void **)&old);
		slurm_xfree((void **)&job->extra);
		return;
	}
	if (!strcmp(job->extra, ours))
		n = asprintf(&both, "%.*s", (int)len, users);
	else if (len)
		n = asprintf(&both, "(%.*s)&(%s)", (int)len, users, job->extra);
	else
		n = asprintf(&both, "%s", job->extra);
	if (n >= 0) {
		slurm_xfree((void **)&job->extra);
		job->extra = slurm_xstrdup(both);
		free(both);
	}
	slurm_xfree((void **)&old);
}
#else
static void join_extra(job_desc_msg_t *job, job_record_t *record)
{
	(void)job, (void)record;
}
#endif

/* The switch file does not free bookings: the nodes go on by them. Of spank_job_env slurmctld takes
 * nothing into a job that is there (job_mgr.c, _update_job(), 22.05 to 26.05). */
static int modify(job_desc_msg_t *job, job_record_t *record, uint32_t uid, char **why)
{
	int rc;

	if (!off() && (rc = check(job, job->partition, uid, why)))
		return rc;
	if (administrator(uid)) {
		join_extra(job, record);
		return SLURM_SUCCESS;
	}
	if (breaks_booking(job, record))
		return refuse(why, ESLURM_ACCESS_DENIED, "carma: GPU memory is booked at submission; submit the job again");
	if (extra_of(job) && record_booking(record) != NO_BOOKING)
		return refuse(why, ESLURM_ACCESS_DENIED,
			      "carma: the job's Extra holds what it waits for; submit the job again with another --extra");
	return SLURM_SUCCESS;
}

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
extern int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t uid, char **err_msg)
{
	char *why = NULL;
	int before = errno, rc = modify(job, record, uid, &why);

	tell(err_msg, why);
	errno = before;
	return rc;
}
#else
/* Nobody but the log is told why. */
extern int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t uid)
{
	char *why = NULL;
	int before = errno, rc = modify(job, record, uid, &why);

	if (why)
		slurm_info("job_submit/carma: change of a job by uid %u refused: %s", uid, why);
	slurm_xfree((void **)&why);
	errno = before;
	return rc;
}
#endif
