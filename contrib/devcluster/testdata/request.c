/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits or changes one job with libslurm, with any bytes in any text field:
 * sbatch and scontrol look at some of them first.
 *
 * usage: request submit SCRIPT-FILE [FIELD=VALUE]...     prints the job id
 *        request update JOBID [FIELD=VALUE]...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

/* Where a message has the job's id. */
#if SLURM_VERSION_NUMBER >= SLURM_VERSION_NUM(25, 11, 0)
#define JOB_ID(message) ((message)->step_id.job_id)
#else
#define JOB_ID(message) ((message)->job_id)
#endif

static job_desc_msg_t job;

static const struct {
	const char *name;
	char **value;
} fields[] = {
	{ "account", &job.account },
	{ "admin_comment", &job.admin_comment },
	{ "array", &job.array_inx },
	{ "burst_buffer", &job.burst_buffer },
	{ "comment", &job.comment },
	{ "dependency", &job.dependency },
	{ "exc_nodes", &job.exc_nodes },
	{ "features", &job.features },
	{ "licenses", &job.licenses },
	{ "mcs_label", &job.mcs_label },
	{ "name", &job.name },
	{ "network", &job.network },
	{ "partition", &job.partition },
	{ "qos", &job.qos },
	{ "req_nodes", &job.req_nodes },
	{ "reservation", &job.reservation },
	{ "std_err", &job.std_err },
	{ "std_out", &job.std_out },
	{ "tres_per_job", &job.tres_per_job },
	{ "tres_per_node", &job.tres_per_node },
	{ "tres_per_socket", &job.tres_per_socket },
	{ "tres_per_task", &job.tres_per_task },
	{ "wckey", &job.wckey },
	{ "work_dir", &job.work_dir },
};

static void set(char *text)
{
	char *value = strchr(text, '=');

	if (value) {
		*value++ = '\0';
		if (!strcmp(text, "hold")) {
			job.priority = (uint32_t)atoi(value) ? 0 : NO_VAL;
			return;
		}
		if (!strcmp(text, "spank")) { /* NAME=TEXT, as the plugin's option and variable arrive */
			static char *entries[2];

			entries[0] = value;
			job.spank_job_env = entries;
			job.spank_job_env_size = 1;
			return;
		}
		if (!strcmp(text, "shared")) { /* 0: --exclusive */
			job.shared = (uint16_t)atoi(value);
			return;
		}
		for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
			if (!strcmp(text, fields[i].name)) {
				*fields[i].value = value;
				return;
			}
	}
	fprintf(stderr, "request: no field %s\n", text);
	exit(2);
}

static char *read_file(const char *path)
{
	static char text[4 << 20];
	FILE *f = fopen(path, "r");
	size_t n;

	if (!f) {
		perror(path);
		exit(2);
	}
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	return text;
}

static int submit(void)
{
	static char *env[] = { "PATH=/usr/bin:/bin", NULL };
	submit_response_msg_t *answer = NULL;

	job.environment = env;
	job.env_size = 1;
	job.user_id = getuid();
	job.group_id = getgid();
	job.min_nodes = job.min_cpus = job.num_tasks = 1;
	if (slurm_submit_batch_job(&job, &answer) != SLURM_SUCCESS) {
		slurm_perror("submit");
		return 1;
	}
	/* error_code may be a mere note, as that the job is held. */
	printf("%u\n", JOB_ID(answer));
	slurm_free_submit_response_response_msg(answer);
	return 0;
}

int main(int argc, char **argv)
{
	bool update = argc > 2 && !strcmp(argv[1], "update");
	char here[4096];

	if (argc < 3 || (!update && strcmp(argv[1], "submit"))) {
		fprintf(stderr, "usage: request submit SCRIPT-FILE [FIELD=VALUE]...\n       request update JOBID [FIELD=VALUE]...\n");
		return 2;
	}
	slurm_init(NULL);
	slurm_init_job_desc_msg(&job);
	if (!update) {
		job.script = read_file(argv[2]);
		job.work_dir = getcwd(here, sizeof(here));
		job.name = "request";
	}
	for (int i = 3; i < argc; i++)
		set(argv[i]);
	if (!update)
		return submit();
	JOB_ID(&job) = (uint32_t)atoi(argv[2]);
	if (slurm_update_job(&job) != SLURM_SUCCESS) {
		slurm_perror("update");
		return 1;
	}
	return 0;
}
