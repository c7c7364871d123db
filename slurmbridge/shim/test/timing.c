/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How long a submission takes, alone and beside others. */
#include <pthread.h>

#include "host.h"

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

void time_it(long n, int threads)
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
