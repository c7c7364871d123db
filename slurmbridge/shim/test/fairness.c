/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Who is next, and that nobody is kept from an answer by those who ask for more. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "../queue.h"
#include "host.h"

static void order(struct queue *q, const struct ask *asks, const char *want)
{
	for (struct ask *a; (a = queue_next(q)); want++)
		CHECK(*want == '0' + (a - asks));
	CHECK(!*want);
}

static void line_up(struct queue *q, struct ask *asks, const uint32_t *uids, int n)
{
	for (int i = 0; i < n; i++) {
		asks[i].uid = uids[i];
		queue_add(q, &asks[i]);
	}
}

void check_queue(void)
{
	static struct queue q;
	static struct ask asks[10];
	const uint32_t uids[] = { 1, 1, 1, 2, 0, 2 };

	CHECK(!queue_next(&q));
	line_up(&q, asks, uids, 6); /* nobody has had anything: as they came */
	order(&q, asks, "012345");
	queue_charge(&q, 1, 0, 10000);
	queue_charge(&q, 2, 0, 5000);
	line_up(&q, asks, uids, 6);
	order(&q, asks, "435012");
	queue_charge(&q, 2, 0, 9000);
	line_up(&q, asks, uids, 6);
	queue_remove(&q, &asks[4]);
	queue_remove(&q, &asks[0]);
	order(&q, asks, "1235");
	queue_charge(&q, 3, 60000000, 60000001); /* a minute later it is forgotten */
	line_up(&q, asks, uids, 6);
	order(&q, asks, "012345");
	for (uint32_t uid = 100; uid < 1000; uid++) /* more users than are listed */
		queue_charge(&q, uid, 60000000, 60000000 + uid);
	line_up(&q, asks, uids, 6);
	order(&q, asks, "012345");
	line_up(&q, asks, (const uint32_t[]){ 999, 1 }, 2);
	order(&q, asks, "10");
}

static char *large; /* 1 MiB that says what is trained */
static atomic_bool flooding;

static void *flood(void *uid)
{
	job_desc_msg_t job;

	while (flooding) {
		empty(&job);
		job.partition = strdup("gpu");
		job.tres_per_node = strdup(GRES "gpu:1");
		job.script = strdup(large);
		CHECK(job_submit(&job, (uint32_t)(uintptr_t)uid, NULL) == SLURM_SUCCESS);
		clear(&job);
	}
	return NULL;
}

static bool booked(void)
{
	job_desc_msg_t job;
	char *err;
	bool yes;

	CHECK(submit(&job, "#!/bin/sh\n#CARMA mem=10G\n", &err) == SLURM_SUCCESS);
	yes = strstr(job.tres_per_node, "carma:10240"); /* not whole GPUs for want of an answer, the user is told */
	CHECK(!yes || !err);
	free(err);
	clear(&job);
	return yes;
}

/* Three users submit megabytes of model from eight loops each; another's forty jobs
 * are all booked. An answer has 50 ms, which a machine that is busy elsewhere may
 * take away: then once more. */
void check_flood(void)
{
	static const char layer[] = "#CARMA| (l): Linear(in_features=512, out_features=512, bias=True)\n";
	enum { LOOPS = 24, JOBS = 40, TRIES = 800 };
	pthread_t thread[LOOPS];
	size_t n = 0, size = 1 << 20;
	int tries = 0, yes = 0;

	large = malloc(size + 100);
	CHECK(large);
	n += (size_t)sprintf(large, "#!/bin/sh\n#CARMA batch=32\n");
	while (n + sizeof(layer) < size)
		n += (size_t)sprintf(large + n, "%s", layer);
	flooding = true;
	for (uintptr_t i = 0; i < LOOPS; i++)
		CHECK(!pthread_create(&thread[i], NULL, flood, (void *)(2000 + i % 3)));
	for (; yes < JOBS && tries < TRIES; tries++) {
		if (booked())
			yes++;
		else
			nap(); /* a library that is stuck turns everybody away at once */
	}
	flooding = false;
	for (int i = 0; i < LOOPS; i++)
		pthread_join(thread[i], NULL);
	free(large);
	printf("host: beside %d loops of large jobs %d jobs booked, with %d asks\n", LOOPS, yes, tries);
	CHECK(yes == JOBS);
}
