/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits held batch jobs as fast as slurmctld takes them, by several processes
 * at once, and prints how many a second. sbatch itself would cost more than
 * what is to be measured.
 *
 * usage: submit SUBMITTERS JOBS PARTITION SCRIPT-FILE [GRES]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static char *read_file(const char *path)
{
	static char text[1 << 20];
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

/* Returns how many were refused. */
static int submit(int jobs, char *partition, char *script, char *gres)
{
	static char *env[] = { "PATH=/usr/bin:/bin", NULL };
	int failed = 0;

	for (int i = 0; i < jobs; i++) {
		job_desc_msg_t job;
		submit_response_msg_t *answer = NULL;

		slurm_init_job_desc_msg(&job);
		job.name = "submit";
		job.partition = partition;
		job.script = script;
		job.tres_per_node = gres;
		job.environment = env;
		job.env_size = 1;
		job.work_dir = "/tmp";
		job.user_id = getuid();
		job.group_id = getgid();
		job.priority = 0; /* held */
		job.min_nodes = job.min_cpus = job.num_tasks = 1;
		if (slurm_submit_batch_job(&job, &answer) != SLURM_SUCCESS) {
			if (!failed++)
				slurm_perror("submit");
		} else {
			slurm_free_submit_response_response_msg(answer);
		}
	}
	return failed;
}

int main(int argc, char **argv)
{
	int submitters, jobs, failed = 0, status;
	char *script;
	double start;

	if (argc < 5 || argc > 6 || (submitters = atoi(argv[1])) < 1 || (jobs = atoi(argv[2])) < 1) {
		fprintf(stderr, "usage: submit SUBMITTERS JOBS PARTITION SCRIPT-FILE [GRES]\n");
		return 2;
	}
	script = read_file(argv[4]);
	slurm_init(NULL);
	start = now();
	for (int i = 0; i < submitters; i++)
		if (fork() == 0)
			_exit(submit(jobs / submitters, argv[3], script, argc == 6 ? argv[5] : "gres:gpu:1") ? 1 : 0);
	while (wait(&status) > 0)
		failed += status != 0;
	printf("%.1f submissions/s, %d submitters failed\n", jobs / (now() - start), failed);
	return failed ? 1 : 0;
}
