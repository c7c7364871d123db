/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * spank/carma: tells each task its GPUs before other plugins of the stack run.
 *
 * slurmstepd calls slurm_spank_task_init in the task's own process, as the job's user and
 * with the environment that the task is to have, and only then the TaskProlog (exec_task(),
 * src/slurmd/slurmstepd/task.c, 22.05 to 26.05). Between the two, pyxis enters the container.
 * So this plugin runs CARMA's TaskProlog itself and does what that prints; docs/adr/0016 says
 * why. It fails open: whatever goes wrong, the task starts.
 *
 * It gives sbatch, srun and salloc the option --carma.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "spank.h"

SPANK_PLUGIN(carma, 1)

#ifndef CARMA_TASK_PROLOG /* the Makefile says it */
#define CARMA_TASK_PROLOG "/usr/sbin/carma-task-prolog"
#endif

/* A job that waits for the decision what it gets makes TaskProlog print an empty line every
 * few seconds (prolog/task.go, taskSays). A program that hangs, on a file system say, is not waited
 * for for ever; one on a machine that is busy is to have its time. */
#ifndef SILENCE_MS
#define SILENCE_MS 300000
#endif

static void export(void *to, const char *name, const char *value)
{
	spank_err_t rc = spank_setenv(to, name, value, 1);

	if (rc != ESPANK_SUCCESS)
		slurm_error("spank/carma: set %s: %s", name, spank_strerror(rc));
}

static void unset(void *to, const char *name)
{
	spank_unsetenv(to, name);
}

static void print(void *to, const char *text, size_t len)
{
	(void)to;
	while (len > 0) {
		ssize_t n = write(STDOUT_FILENO, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return; /* the task's output is closed, or full */
		text += n;
		len -= (size_t)n;
	}
}

static const struct line_actions actions = { .export = export, .unset = unset, .print = print };

/* The numbers that Slurm gave the task may be slots, and the GPUs of those numbers other jobs'. */
static void shut_out(spank_t sp, const char *program, const char *why)
{
	slurm_error("spank/carma: %s %s; the task sees no GPU", program, why);
	export(sp, "CUDA_VISIBLE_DEVICES", "");
	export(sp, "NVIDIA_VISIBLE_DEVICES", "void");
}

/* Tells a TaskProlog that slurm.conf names, too, that this task has been told (prolog/task.go,
 * Told). slurmstepd sets both variables for each task. */
static void mark(spank_t sp)
{
	char text[32], job[16], pid[16];

	if (spank_getenv(sp, "SLURM_JOB_ID", job, sizeof(job)) != ESPANK_SUCCESS ||
	    spank_getenv(sp, "SLURM_TASK_PID", pid, sizeof(pid)) != ESPANK_SUCCESS)
		return;
	snprintf(text, sizeof(text), "%.15s:%.15s", job, pid);
	export(sp, "CARMA_TASK", text);
}

/* The keys of a #CARMA line beside the script, for jobs that have no script to write one in: Slurm
 * puts them into the job's spank_job_env, where job_submit/carma reads them. Called in sbatch, srun
 * and salloc, where the user sees an error, and again on the node. */
static int take(int val, const char *keys, int remote)
{
	(void)val;
	if (!remote && strlen(keys) > KEYS_MAX) {
		slurm_error("--carma: longer than %d bytes", KEYS_MAX);
		return -1;
	}
	return 0;
}

static struct spank_option option = {
	.name = "carma",
	.arginfo = "KEYS",
	.usage = "keys of a #CARMA line, as mem=12G,policy=shared",
	.has_arg = 1,
	.cb = take,
};

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	if (spank_option_register(sp, &option) != ESPANK_SUCCESS)
		slurm_error("spank/carma: register --carma");
	return 0;
}

/* The variable CARMA is as good as the option. The environment of srun and salloc does not reach
 * slurmctld, nor does that of sbatch --export=NONE. */
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	spank_context_t where = spank_context();
	const char *keys = getenv("CARMA");

	(void)ac, (void)av;
	if (!keys || !*keys || (where != S_CTX_LOCAL && where != S_CTX_ALLOCATOR))
		return 0;
	if (strlen(keys) > KEYS_MAX)
		slurm_error("the variable CARMA: longer than %d bytes; not read", KEYS_MAX);
	else
		spank_job_control_setenv(sp, "_CARMA", keys, 1); /* CARMA_* are job_submit/carma's own */
	return 0;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	const char *program = ac > 0 ? av[0] : CARMA_TASK_PROLOG, *why;
	char **env = NULL, **some, *output;
	size_t len;
	int before = errno;

	if (program[0] != '/') {
		slurm_error("spank/carma: %s is not an absolute path; name TaskProlog's in plugstack.conf", program);
		return 0;
	}
	if (access(program, F_OK) && errno == ENOENT) {
		slurm_error("spank/carma: %s is missing: CARMA sets nothing for the task", program);
		return 0;
	}
	if (spank_get_item(sp, S_JOB_ENV, &env) != ESPANK_SUCCESS || !(some = helper_env(env))) {
		shut_out(sp, program, "got no environment");
		return 0;
	}
	why = helper_run(program, some, SILENCE_MS, &output, &len);
	free(some);
	if (why) {
		shut_out(sp, program, why);
	} else {
		if (len > 0)
			lines_apply(output, len, &actions, sp);
		mark(sp);
		free(output);
	}
	errno = before;
	return 0;
}
