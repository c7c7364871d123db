/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Drives the plugin as slurmstepd does, without one, under the sanitizers: host DIR N.
 * DIR takes helpers, which are scripts; N is how many hostile outputs are taken apart.
 * It stands in for libslurmfull with the few functions that the plugin uses.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "../spank.h"

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("%s:%d: not so: %s\nlast error: %s\n", __FILE__, __LINE__, #what, last_error); \
			exit(1); \
		} \
	} while (0)

struct spank_handle {
	char **env;
	bool no_item;
};

static char last_error[512], helper[256];
static const char *dir;
static unsigned errors_logged;
static struct spank_handle task;

void slurm_error(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
	errors_logged++;
}

const char *spank_strerror(spank_err_t err)
{
	(void)err;
	return "an error";
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...)
{
	va_list args;

	if (sp->no_item)
		return ESPANK_ERROR;
	va_start(args, item);
	if (item == S_JOB_ENV)
		*va_arg(args, char ***) = sp->env;
	va_end(args);
	return ESPANK_SUCCESS;
}

static struct spank_option option;
static spank_context_t context = S_CTX_REMOTE;
static char job_control[2048];

spank_err_t spank_option_register(spank_t sp, struct spank_option *o)
{
	CHECK(sp == &task);
	option = *o;
	return ESPANK_SUCCESS;
}

spank_context_t spank_context(void)
{
	return context;
}

spank_err_t spank_job_control_setenv(spank_t sp, const char *name, const char *text, int overwrite)
{
	CHECK(sp == &task && overwrite);
	snprintf(job_control, sizeof(job_control), "%s=%s", name, text);
	return ESPANK_SUCCESS;
}

static char **find(const char *name)
{
	size_t n = strlen(name);
	char **at = task.env;

	while (*at && (strncmp(*at, name, n) || (*at)[n] != '='))
		at++;
	return at;
}

static const char *value(const char *name)
{
	char **at = find(name);

	return *at ? *at + strlen(name) + 1 : NULL;
}

static bool is(const char *name, const char *want)
{
	const char *has = value(name);

	return has && want ? !strcmp(has, want) : has == want;
}

static size_t count(void)
{
	size_t n = 0;

	while (task.env[n])
		n++;
	return n;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *to, int room)
{
	const char *text = value(name);

	CHECK(sp == &task && room > 0);
	if (!text)
		return ESPANK_ENV_NOEXIST;
	if (strlen(text) >= (size_t)room)
		return ESPANK_NOSPACE;
	strcpy(to, text);
	return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t sp, const char *name, const char *text, int overwrite)
{
	char **at = find(name), *entry;

	CHECK(sp == &task && overwrite);
	if (!strcmp(name, "REFUSED"))
		return ESPANK_ERROR;
	CHECK(asprintf(&entry, "%s=%s", name, text) >= 0);
	if (!*at) {
		size_t n = count();

		task.env = realloc(task.env, (n + 2) * sizeof(*task.env));
		task.env[n + 1] = NULL;
		at = task.env + n;
	}
	free(*at);
	*at = entry;
	return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t sp, const char *name)
{
	char **at = find(name);

	CHECK(sp == &task);
	free(*at);
	for (; *at; at++)
		at[0] = at[1];
	return ESPANK_SUCCESS;
}

static void clear(void)
{
	for (char **at = task.env; at && *at; at++)
		free(*at);
	free(task.env);
	task.env = calloc(1, sizeof(*task.env));
	*last_error = '\0';
	errors_logged = 0;
}

static void set(const char *name, const char *text)
{
	spank_setenv(&task, name, text, 1);
}

static void write_helper(const char *script)
{
	FILE *f;

	snprintf(helper, sizeof(helper), "%s/helper", dir);
	unlink(helper);
	f = fopen(helper, "w");
	CHECK(f);
	fprintf(f, "#!/bin/sh\n%s\n", script);
	CHECK(!fclose(f) && !chmod(helper, 0755));
}

/* Calls the plugin with a helper of this text; a task is never failed. */
static void start(const char *script)
{
	char *args[] = { helper, NULL };

	write_helper(script);
	CHECK(slurm_spank_task_init(&task, 1, args) == 0);
}

static void check_told(void)
{
	int to[2];
	char text[32] = "";
	int stdout_was = dup(STDOUT_FILENO);

	clear();
	set("CUDA_VISIBLE_DEVICES", "7");
	set("CUDA_MPS_PIPE_DIRECTORY", "/of/the/user");
	set("SLURM_JOB_ID", "1234");
	set("SLURM_TASK_PID", "99");
	set("LD_PRELOAD", "/no/such.so");
	set("CARMA_TASK", "5:6");
	CHECK(!pipe(to));
	fflush(stdout);
	dup2(to[1], STDOUT_FILENO);
	start("[ -z \"$LD_PRELOAD$CARMA_TASK\" ] || exit 1\n"
	      "echo; echo export CUDA_VISIBLE_DEVICES=GPU-$SLURM_JOB_ID\necho 'export EMPTY='; echo 'export A=b=c d '\n"
	      "echo unset CUDA_MPS_PIPE_DIRECTORY; echo 'print  two words'; echo nonsense; echo 'export 1X=1'\n"
	      "echo 'export A B=1'; echo export REFUSED=1; printf 'export PART=1'");
	dup2(stdout_was, STDOUT_FILENO);
	close(to[1]);
	CHECK(read(to[0], text, sizeof(text) - 1) == 11 && !strcmp(text, " two words\n"));
	close(to[0]);
	close(stdout_was);
	CHECK(is("CUDA_VISIBLE_DEVICES", "GPU-1234") && is("EMPTY", "") && is("A", "b=c d "));
	CHECK(is("CUDA_MPS_PIPE_DIRECTORY", NULL) && is("CARMA_TASK", "1234:99") && is("LD_PRELOAD", "/no/such.so"));
	CHECK(is("PART", NULL) && is("B", NULL) && count() == 7);
	CHECK(errors_logged == 1 && strstr(last_error, "set REFUSED"));
}

/* Each ends with the task told that it has no GPU, and one line in the log. */
static void check_failures(void)
{
	static const struct {
		const char *script, *why;
	} some[] = {
		{ "echo export CUDA_VISIBLE_DEVICES=GPU-1; exit 1", "another status" },
		{ "echo export CUDA_VISIBLE_DEVICES=GPU-1; kill -9 $$", "by a signal" },
		{ "echo export CUDA_VISIBLE_DEVICES=GPU-1; sleep 1000", "nothing for too long" },
		{ "echo export CUDA_VISIBLE_DEVICES=GPU-1; exec >&-; sleep 1000", "does not end" },
		{ "trap '' TERM; sleep 1000 & wait", "nothing for too long" },
		{ "exec yes", "too much" },
		{ "exec cat /dev/zero", "too much" },
	};

	for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
		clear();
		set("CUDA_VISIBLE_DEVICES", "7");
		start(some[i].script);
		CHECK(strstr(last_error, some[i].why) && strstr(last_error, "sees no GPU") && errors_logged == 1);
		CHECK(is("CUDA_VISIBLE_DEVICES", "") && is("NVIDIA_VISIBLE_DEVICES", "void") && is("CARMA_TASK", NULL));
		CHECK(waitpid(-1, NULL, WNOHANG) < 0);
	}
	clear();
	task.no_item = true;
	start("exit 0");
	task.no_item = false;
	CHECK(strstr(last_error, "no environment") && is("CUDA_VISIBLE_DEVICES", ""));
}

static void check_program(void)
{
	char *relative[] = { "carma-task-prolog", NULL }, *missing[] = { "/no/such/program", NULL };
	char *args[] = { helper, NULL };

	/* Not there: CARMA is not on this node, and Slurm's word stays. */
	clear();
	set("CUDA_VISIBLE_DEVICES", "7");
	CHECK(slurm_spank_task_init(&task, 1, missing) == 0 && strstr(last_error, "is missing"));
	CHECK(slurm_spank_task_init(&task, 1, relative) == 0 && strstr(last_error, "not an absolute path"));
	CHECK(is("CUDA_VISIBLE_DEVICES", "7") && count() == 1 && errors_logged == 2);
	/* There, and no program. */
	write_helper("exit 0");
	CHECK(!chmod(helper, 0644));
	CHECK(slurm_spank_task_init(&task, 1, args) == 0);
	CHECK(strstr(last_error, "Permission denied; the task sees no GPU") && is("CUDA_VISIBLE_DEVICES", ""));
	/* Without an argument, the path that was compiled in. */
	clear();
	CHECK(slurm_spank_task_init(&task, 0, NULL) == 0 && strstr(last_error, "/no/default is missing"));
}

/* A task's process may have no standard descriptor at all. */
static void check_descriptors(void)
{
	int saved[3], more;

	for (int i = 0; i < 3; i++)
		saved[i] = fcntl(i, F_DUPFD_CLOEXEC, 10);
	more = open("/dev/null", O_RDONLY); /* without CLOEXEC: not the helper's */
	fflush(stdout);
	for (int i = 0; i < 3; i++)
		close(i);
	clear();
	start("set -- /proc/self/fd/*; echo export FDS=$#; read x || echo export IN=empty");
	for (int i = 0; i < 3; i++) {
		dup2(saved[i], i);
		close(saved[i]);
	}
	close(more);
	CHECK(is("IN", "empty") && value("FDS") && atoi(value("FDS")) <= 4);
	CHECK(open("/dev/null", O_RDONLY) == 3 && !close(3)); /* nothing is left open */
}

static void check_environment(void)
{
	char name[32], *big = malloc(200000);

	clear();
	for (int i = 0; i < 10000; i++) {
		snprintf(name, sizeof(name), "VARIABLE_%d", i);
		set(name, "x");
	}
	start("echo export SEEN=$VARIABLE_0$VARIABLE_9999");
	CHECK(is("SEEN", "xx") && errors_logged == 0);
	/* More than the kernel takes: the task itself cannot start with it either. */
	memset(big, 'x', 199999);
	big[199999] = '\0';
	set("BIG", big);
	free(big);
	start("exit 0");
	CHECK(strstr(last_error, "too long; the task sees no GPU"));
}

/* --carma, and CARMA in the environment of srun, salloc and sbatch. */
static void check_option(void)
{
	char *big = calloc(1, KEYS_MAX + 2);

	clear();
	memset(big, 'x', KEYS_MAX + 1);
	CHECK(slurm_spank_init(&task, 0, NULL) == 0 && !strcmp(option.name, "carma") && option.has_arg == 1);
	setenv("CARMA", "mem=12G", 1);
	CHECK(slurm_spank_init_post_opt(&task, 0, NULL) == 0 && !*job_control); /* on a node */
	context = S_CTX_LOCAL;
	CHECK(slurm_spank_init_post_opt(&task, 0, NULL) == 0 && !strcmp(job_control, "_CARMA=mem=12G"));
	*job_control = '\0';
	setenv("CARMA", big, 1);
	CHECK(slurm_spank_init_post_opt(&task, 0, NULL) == 0 && !*job_control && strstr(last_error, "longer than"));
	CHECK(option.cb(0, big, 0) == -1 && option.cb(0, big, 1) == 0 && option.cb(0, "mem=1G", 0) == 0);
	unsetenv("CARMA");
	context = S_CTX_REMOTE;
	free(big);
}

/* One that waits and says so is waited for, for longer than one that says nothing. */
static void check_patience(void)
{
	char *output, *env[] = { "PATH=/usr/bin:/bin", NULL };
	size_t len;

	write_helper("for i in 1 2 3 4 5 6 7 8; do echo; sleep 1; done; echo export A=1");
	CHECK(!helper_run(helper, env, 5000, &output, &len));
	CHECK(len == 8 + 11 && !memcmp(output + 8, "export A=1\n", 11));
	free(output);
}

/* The status of a process that becomes ours when its parent ends. */
static int inherited(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) != pid)
		usleep(10000);
	return status;
}

/* What kill -9 of the task, and of its slurmstepd, leaves of a helper that hangs: nothing. */
static void check_left(bool kill_stepd)
{
	char path[300], script[1000];
	int ids[2];
	pid_t stepd, task, hangs;
	FILE *f;

	snprintf(path, sizeof(path), "%s/hangs", dir);
	snprintf(script, sizeof(script), "echo $$ >%s.new; mv %s.new %s; exec sleep 30", path, path, path);
	unlink(path);
	CHECK(!pipe(ids) && !prctl(PR_SET_CHILD_SUBREAPER, 1));
	stepd = fork();
	if (stepd == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		task = fork();
		if (task == 0) {
			clear();
			start(script);
			_exit(strstr(last_error, "has lost its slurmstepd; the task sees no GPU") ? 0 : 1);
		}
		CHECK(write(ids[1], &task, sizeof(task)) == sizeof(task));
		for (;;)
			pause();
	}
	CHECK(read(ids[0], &task, sizeof(task)) == sizeof(task) && !close(ids[0]) && !close(ids[1]));
	while (!(f = fopen(path, "r")))
		usleep(10000);
	CHECK(fscanf(f, "%d", &hangs) == 1 && !fclose(f));
	kill(kill_stepd ? stepd : task, SIGKILL);
	if (kill_stepd) { /* the task goes on without it */
		CHECK(inherited(task) == 0);
		CHECK(kill(hangs, 0) && errno == ESRCH);
	} else {
		CHECK(WIFSIGNALED(inherited(hangs)));
		kill(stepd, SIGKILL);
		inherited(task);
	}
	CHECK(waitpid(stepd, NULL, 0) == stepd);
}

static void ignore(void *to, const char *name, const char *text)
{
	size_t *n = to;

	*n += strlen(name) + strlen(text);
}

static void ignore_name(void *to, const char *name)
{
	size_t *n = to;

	*n += strlen(name);
}

static void ignore_text(void *to, const char *text, size_t len)
{
	size_t *n = to;

	CHECK(len > 0 && text[len - 1] == '\n');
	*n += len;
}

static void hostile(long n)
{
	static const char *words[] = {
		"export ", "unset ", "print ", "A", "=", "\n", "_", "9", " ", "\t", "CUDA_VISIBLE_DEVICES"
	};
	static const struct line_actions act = { .export = ignore, .unset = ignore_name, .print = ignore_text };
	size_t sum = 0;

	srand(1);
	for (long i = 0; i < n; i++) {
		size_t len = 0, want = (size_t)(rand() % 60);
		char *text = malloc(want + 1); /* exactly so long: the sanitizer sees a step beyond */

		while (len < want) {
			const char *word = words[rand() % (int)(sizeof(words) / sizeof(words[0]))];

			if (rand() % 8 == 0)
				text[len++] = (char)rand();
			for (; rand() % 50 && *word && len < want; word++)
				text[len++] = *word;
		}
		char *exact = malloc(len ? len : 1);
		memcpy(exact, text, len);
		free(text);
		lines_apply(exact, len, &act, &sum);
		free(exact);
	}
	printf("host: %ld hostile outputs, %zu bytes taken of them\n", n, sum);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	dir = argv[1];
	signal(SIGPIPE, SIG_IGN);
	clear();
	check_told();
	check_failures();
	check_program();
	check_descriptors();
	check_environment();
	check_option();
	check_patience();
	check_left(false);
	check_left(true);
	hostile(atol(argv[2]));
	clear();
	free(task.env);
	return 0;
}
