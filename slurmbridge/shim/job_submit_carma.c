/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * job_submit/carma: the part of CARMA that slurmctld loads.
 *
 * It hands a few fields of a submitted job to libcarma (worker.c) and does what
 * the answer says. It fails open: whatever goes wrong, the job is accepted as
 * it was written and slurmctld goes on. Public headers only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#include "shim.h"

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 11, 0)
#define GRES_PREFIX "gres/" /* slurm_get_next_tres() skips only "/" */
#else
#define GRES_PREFIX "gres:" /* slurm_opt writes it so up to 23.02 */
#endif

/* A 16 bit field that the user left unset holds NO_VAL16. */
#define WIDE(v) ((v) == NO_VAL16 ? CARMA_NO_VAL : (uint32_t)(v))
#define TEXT(s) ((s) ? (s) : "")

const char plugin_name[] = "CARMA job submission";
const char plugin_type[] = "job_submit/carma";
const uint32_t plugin_version = SLURM_VERSION_NUMBER;

/* Private to slurmctld; never looked into. */
typedef struct job_record job_record_t;

static pid_t loaded_by;

/* A failing init() is fatal for slurmctld: this one cannot fail. */
extern int init(void)
{
	loaded_by = getpid();
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
	struct stat st;

	return getpid() != loaded_by || stat(worker_switch_file(), &st) == 0;
}

static void set(char **field, const char *text)
{
	char *copy = *text ? slurm_xstrdup(text) : NULL;

	slurm_xfree((void **)field);
	*field = copy;
}

/* Clients can fill spank_job_env: what looks like ours is not. */
static void drop_forged_env(job_desc_msg_t *job)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; job->spank_job_env && i < job->spank_job_env_size; i++) {
		char *entry = job->spank_job_env[i];
		const char *name = entry && !strncmp(entry, "SPANK_", 6) ? entry + 6 : entry;

		job->spank_job_env[i] = NULL;
		if (name && !strncmp(name, "CARMA", 5))
			slurm_xfree((void **)&entry);
		else if (name)
			job->spank_job_env[kept++] = entry;
	}
	job->spank_job_env_size = kept;
}

static void *allocate(size_t n, size_t size)
{
	return slurm_xcalloc(n, size, true, false, __FILE__, __LINE__, __func__);
}

/* Makes room for so many entries more. */
static void grow_env(job_desc_msg_t *job, size_t more)
{
	uint32_t n = job->spank_job_env_size;
	char **env;

	if (!more)
		return;
	env = allocate(n + more, sizeof(*env));
	if (n)
		memcpy(env, job->spank_job_env, n * sizeof(*env));
	slurm_xfree((void **)&job->spank_job_env);
	job->spank_job_env = env;
}

static void add_env(job_desc_msg_t *job, const char *name_value)
{
	static const char prefix[] = "CARMA_";
	size_t len = strlen(name_value) + 1;
	char *entry = allocate(1, sizeof(prefix) - 1 + len);

	memcpy(entry, prefix, sizeof(prefix) - 1);
	memcpy(entry + sizeof(prefix) - 1, name_value, len);
	job->spank_job_env[job->spank_job_env_size++] = entry;
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
	if (!strcmp(word, "env")) {
		add_env(job, text);
	} else if (!strcmp(word, "time")) {
		char now[64];

		snprintf(now, sizeof(now), "%.32s=%lld", text, (long long)time(NULL));
		add_env(job, now);
	} else if (!strcmp(word, "time_limit")) {
		job->time_limit = (uint32_t)strtoul(text, NULL, 10);
	} else if (!strcmp(word, "signal")) {
		set_signal(job, text);
	} else if (!strcmp(word, "requeue")) {
		if (job->requeue == NO_VAL16)
			job->requeue = 1;
	} else if (!strcmp(word, "tell")) {
		if (err_msg && !*err_msg)
			*err_msg = slurm_xstrdup(text);
	} else if (!strcmp(word, "comment")) {
		add_comment(job, text);
	} else if (!strcmp(word, "leave")) {
		worker_complain(text);
	} else if (!strcmp(word, "refuse")) {
		if (err_msg && !*err_msg)
			*err_msg = slurm_xstrdup(text);
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

	grow_env(job, count_env(answer));
	for (; !rc && (end = strchr(line, '\n')); line = end + 1) {
		*end = '\0';
		if (!(text = strchr(line, ' ')))
			continue;
		*text++ = '\0';
		rc = apply_line(job, line, text, err_msg);
	}
	return rc;
}

/* What a script is called with decides what it needs. argv[0] is its name. */
static void join_args(const job_desc_msg_t *job, char *to, size_t room)
{
	size_t n = 0;

	for (uint32_t i = 1; job->argv && i < job->argc && n < room - 1; i++)
		n += (size_t)snprintf(to + n, room - n, "%s%c", TEXT(job->argv[i]), CARMA_ARG_END);
	to[n < room ? n : room - 1] = '\0';
}

/* Options that slurmctld takes only from a job that asks for GPUs, and --exclusive:
 * a job for all of a node never gets shards (tried: 23.11.11, 25.11.7). */
static bool needs_gpu(const job_desc_msg_t *job)
{
	return job->cpus_per_tres || job->mem_per_tres || job->tres_freq || job->shared == JOB_SHARED_NONE ||
	       (job->ntasks_per_tres && job->ntasks_per_tres != NO_VAL16);
}

extern int job_submit(job_desc_msg_t *job, uint32_t submit_uid, char **err_msg)
{
	char *ask, *answer, args[CARMA_ARGS_MAX];
	int len, rc;

	(void)submit_uid;
	drop_forged_env(job);
	if (off())
		return SLURM_SUCCESS;
	join_args(job, args, sizeof(args));
	len = asprintf(&ask, "%s%c%s%c%s%c%s%c%s%c%u%c%u%c%u%c%u%c%u%c%u%c%d%c%d%c%s%c%.*s",
		       TEXT(job->partition), 0, TEXT(job->tres_per_node), 0, TEXT(job->tres_per_job), 0,
		       TEXT(job->tres_per_socket), 0, TEXT(job->tres_per_task), 0,
		       job->min_nodes, 0, job->num_tasks, 0, WIDE(job->ntasks_per_node), 0,
		       WIDE(job->sockets_per_node), 0, job->user_id, 0, job->time_limit, 0,
		       *TEXT(job->req_nodes) || *TEXT(job->reservation), 0, needs_gpu(job), 0, args, 0,
		       CARMA_SCRIPT_MAX, TEXT(job->script));
	if (len < 0) {
		worker_complain("out of memory");
		return SLURM_SUCCESS;
	}
	if (!(answer = worker_ask(ask, (size_t)len)))
		return SLURM_SUCCESS;
	rc = apply(job, answer, err_msg);
	free(answer);
	return rc;
}

static bool books(const char *list)
{
	return list && strstr(list, "carma");
}

/* A booking is the controller's word to the other jobs of a node; only an
 * administrator may write one into a pending job. */
static int modify(job_desc_msg_t *job, uint32_t uid)
{
	drop_forged_env(job);
	if (uid == 0 || uid == getuid())
		return SLURM_SUCCESS;
	if (books(job->tres_per_node) || books(job->tres_per_job) ||
	    books(job->tres_per_socket) || books(job->tres_per_task)) {
		slurm_info("job_submit/carma: uid %u may not change a carma booking", uid);
		return ESLURM_ACCESS_DENIED;
	}
	return SLURM_SUCCESS;
}

#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(23, 2, 0)
extern int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t uid, char **err_msg)
{
	int rc = modify(job, uid);

	(void)record;
	if (rc && err_msg && !*err_msg)
		*err_msg = slurm_xstrdup("carma: GPU memory is booked at submission; submit the job anew");
	return rc;
}
#else
extern int job_modify(job_desc_msg_t *job, job_record_t *record, uint32_t uid)
{
	(void)record;
	return modify(job, uid);
}
#endif
