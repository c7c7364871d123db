/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits or changes a job with texts that Slurm's own commands would not send.
 *
 *   rawjob submit PARTITION FIELD TEXT    prints the job id
 *   rawjob update ID FIELD TEXT
 *
 * "spank" as FIELD: the job gets TEXT in its SPANK environment, a hundred times;
 * "ntasks_per_tres": the number TEXT, which sbatch sends for --ntasks-per-gpu.
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

static void set(job_desc_msg_t *job, const char *field, char *text)
{
	const struct {
		const char *name;
		char **at;
	} fields[] = {
		{ "tres_per_node", &job->tres_per_node }, { "tres_per_job", &job->tres_per_job },
		{ "tres_per_task", &job->tres_per_task }, { "tres_per_socket", &job->tres_per_socket },
		{ "cpus_per_tres", &job->cpus_per_tres }, { "mem_per_tres", &job->mem_per_tres },
		{ "name", &job->name }, { "account", &job->account }, { "wckey", &job->wckey }, { "comment", &job->comment },
		{ "partition", &job->partition }, { "features", &job->features }, { "licenses", &job->licenses },
		{ "dependency", &job->dependency }, { "work_dir", &job->work_dir }, { "std_out", &job->std_out },
		{ "mail_user", &job->mail_user }, { "network", &job->network }, { "exc_nodes", &job->exc_nodes },
	};

	if (!strcmp(field, "spank")) {
		job->spank_job_env_size = 100;
		job->spank_job_env = calloc(job->spank_job_env_size + 1, sizeof(char *));
		if (!job->spank_job_env)
			exit(1);
		for (uint32_t i = 0; i < job->spank_job_env_size; i++)
			job->spank_job_env[i] = text;
		return;
	}
	if (!strcmp(field, "ntasks_per_tres")) {
		job->ntasks_per_tres = (uint16_t)strtoul(text, NULL, 10);
		return;
	}
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		if (!strcmp(field, fields[i].name)) {
			*fields[i].at = text;
			return;
		}
	}
	fprintf(stderr, "rawjob: no field %s\n", field);
	exit(2);
}

int main(int argc, char **argv)
{
	char *env[] = { "PATH=/usr/bin:/bin", NULL }, cwd[4096];
	submit_response_msg_t *answer = NULL;
	job_desc_msg_t job;

	if (argc != 5)
		return 2;
	slurm_init(NULL);
	slurm_init_job_desc_msg(&job);
	if (!strcmp(argv[1], "update")) {
		JOB_ID(&job) = (uint32_t)strtoul(argv[2], NULL, 10);
		set(&job, argv[3], argv[4]);
		if (slurm_update_job(&job)) {
			slurm_perror("update");
			return 1;
		}
		return 0;
	}
	job.environment = env;
	job.env_size = 1;
	job.script = "#!/bin/sh\nsleep 100\n";
	job.user_id = getuid();
	job.group_id = getgid();
	job.name = "raw";
	job.work_dir = getcwd(cwd, sizeof(cwd));
	job.partition = argv[2];
	job.std_out = job.std_in = "/dev/null";
	job.min_nodes = 1;
	job.priority = 0; /* held */
	set(&job, argv[3], argv[4]);
	if (slurm_submit_batch_job(&job, &answer)) {
		slurm_perror("submit");
		if (answer && answer->job_submit_user_msg)
			fprintf(stderr, "%s\n", answer->job_submit_user_msg);
		return 1;
	}
	printf("%u\n", JOB_ID(answer));
	return 0;
}
